"""An MLflow server in a pod of the test cluster, and the runs that it has stored."""

from __future__ import annotations

import json

from scripts.setup import VENV
from tests.kube_node.cluster import Cluster
from tests.kube_node.pods import pod, service

NAME = "mlflow"
PORT = 5000
LIST_RUNS = f"""
import json, urllib.request
def post(path, body):
    url = "http://127.0.0.1:{PORT}/api/2.0/mlflow/" + path
    request = urllib.request.Request(url, json.dumps(body).encode(), {{"Content-Type": "application/json"}})
    return json.load(urllib.request.urlopen(request))
experiments = post("experiments/search", {{"max_results": 100}})["experiments"]
ids = [experiment["experiment_id"] for experiment in experiments]
runs = post("runs/search", {{"experiment_ids": ids, "max_results": 1000}})
print(json.dumps({{run["info"]["run_name"]: [run["info"]["status"], len(run["data"].get("metrics", []))]
                  for run in runs.get("runs", [])}}))
"""
"""Python program that prints run name -> [status, number of metrics]; it runs in the server's pod."""


def start(cluster: Cluster, namespace: str) -> str:
    """Start the server with this machine's Python; return its URI inside the cluster."""
    volumes, mounts = cluster.mount_python(namespace)
    command = [
        *("env", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false", str(VENV / "bin" / "mlflow"), "server"),
        *("--host=0.0.0.0", f"--port={PORT}", "--workers=1"),
        *("--backend-store-uri=sqlite:////tmp/mlflow.db", "--default-artifact-root=mlflow-artifacts:/"),
        *("--artifacts-destination=/tmp/artifacts", "--allowed-hosts=*"),
    ]
    labels = {"app": NAME}
    server = pod(namespace, NAME, *command, labels=labels, volumes=volumes, mounts=mounts)
    cluster.apply([server, service(namespace, NAME, labels, PORT)])
    return f"http://{NAME}.{namespace}:{PORT}"


def runs(cluster: Cluster, namespace: str) -> dict[str, tuple[str, int]]:
    """Return run name -> (status, number of metrics)."""
    output = cluster.exec(namespace, NAME, "python3", "-c", LIST_RUNS).stdout
    return {name: (status, metrics) for name, (status, metrics) in json.loads(output).items()}
