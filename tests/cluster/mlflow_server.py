"""An MLflow server in a pod of the test cluster, and the runs that it has stored.

`python -m tests.cluster.mlflow_server [NAMESPACE]` starts one in the running cluster, and prints how jobs use it.
"""

from __future__ import annotations

import json
import sys

from scripts.setup import VENV
from tests.kube_node.cluster import Cluster, CommandFailed, attach
from tests.kube_node.pods import pod, service
from tests.kube_node.requirements import ClusterUnavailable

NAME = "mlflow"
PORT = 5000
NEXT = """\
MLflow runs at {uri}, until its pod is deleted. All jobs that name no other server use it after the first command:

  helm upgrade rstar2 helm/rstar2 --namespace rstar2 --reuse-values --set operator.mlflowUri={uri}
  kubectl port-forward -n {namespace} service/{name} {port}     # its pages: http://localhost:{port}
"""
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


def main(arguments: list[str]) -> int:
    """Start a server in a namespace of the running cluster (default: `default`). Return 1 and the reason on failure."""
    namespace = (*arguments, "default")[0]
    try:
        cluster = attach()
        uri = start(cluster, namespace)
        cluster.wait(namespace, f"pod/{NAME}", "condition=Ready")
    except (ClusterUnavailable, CommandFailed) as problem:
        print(problem, file=sys.stderr)
        return 1
    print(NEXT.format(uri=uri, namespace=namespace, name=NAME, port=PORT), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
