"""Jobs for the test cluster: an example manifest, changed so that its pods run this machine's Python.

Operator, judge and executors run the project's images; trainer and engines, whose images are too large for every test
run, run a small Debian that mounts the clone and its environment by runtimePatches, as a site mounts a model cache.
"""

from __future__ import annotations

import datetime
import json
import math
import time
from pathlib import Path
from typing import Any

from rstar2_train.api.loader import read_manifest
from scripts.setup import ROOT, VENV
from tests.cluster import project_images
from tests.kube_node import volumes
from tests.kube_node.cluster import Cluster
from tests.kube_node.pods import pod, restricted, service

Object = dict[str, Any]
MLFLOW = "mlflow"
MLFLOW_PORT = 5000
RELEASE = "rstar2"
NAMESPACE = "rstar2"
"""Where the operator runs."""
DEFINITION = "crd/agenticrljobs.rstar2.dev"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{RELEASE}-operator"
OPERATORS = "app.kubernetes.io/component=operator"
"""Selects the operator's pods."""


def install(cluster: Cluster, *values: str) -> None:
    """The operator and judge images on the node, and the chart."""
    cluster.apply([restricted(NAMESPACE)])
    for name in project_images.NAMES:
        cluster.load(project_images.archive(name))
    chart = str(ROOT / "helm" / "rstar2")
    sets = [item for value in (*project_images.values(), *values) for item in ("--set", value)]
    arguments = ["--namespace", NAMESPACE, *sets, "--wait", "--timeout", "300s", "--take-ownership"]
    cluster.run("helm", "upgrade", "--install", RELEASE, chart, *arguments, seconds=400)


def uninstall(cluster: Cluster) -> None:
    """Everything that `install` made, the definition with every job too."""
    cluster.run("helm", "uninstall", RELEASE, "--namespace", NAMESPACE, check=False)
    cluster.kubectl("delete", DEFINITION, f"namespace/{NAMESPACE}", "--ignore-not-found", "--wait=false")


def kill_operator(cluster: Cluster) -> None:
    """End all replicas at once, without a word, and wait until new ones stand."""
    cluster.kubectl("delete", "pods", "-n", NAMESPACE, "-l", OPERATORS, "--grace-period=0", "--force", "--wait=false")
    cluster.kubectl("rollout", "status", "-n", NAMESPACE, f"deployment/{RELEASE}-operator", "--timeout=120s")


def writes(cluster: Cluster, *, since: float, until: float | None = None) -> list[tuple[str, str]]:
    """What the operator asked the API server to change, as (verb, namespace/resource/name[/subresource])."""
    made = []
    for event in cluster.audit():
        when = datetime.datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp()
        if event["user"].get("username") != ACCOUNT or event["verb"] in ("get", "list", "watch"):
            continue
        if since <= when < (until or math.inf):
            what = event["objectRef"]
            parts = (what.get("namespace", ""), what["resource"], what.get("name", ""), what.get("subresource", ""))
            made.append((event["verb"], "/".join(part for part in parts if part)))
    return made


def statuses(cluster: Cluster, namespace: str) -> list[Object]:
    """Every status that was written of the namespace's jobs, in order."""
    return [event["requestObject"]["status"] for event in cluster.audit()
            if event["objectRef"].get("namespace") == namespace and "requestObject" in event]  # fmt: skip


def wait_until_alone(cluster: Cluster, *, seconds: float = 120) -> None:
    """Wait until the pods of earlier tests are gone: a job that finds no room says so, which is a write of status."""
    deadline = time.monotonic() + seconds
    while left := cluster.get("pods", "-A", "-l", "rstar2.dev/job")["items"]:
        assert time.monotonic() < deadline, [pod["metadata"]["name"] for pod in left]
        time.sleep(1)


def start_mlflow(cluster: Cluster, namespace: str) -> str:
    """An MLflow server in a pod of this machine's Python; returns its URI inside the cluster."""
    shown, mounts = cluster.show_python(namespace)
    command = [
        *("env", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false", str(VENV / "bin" / "mlflow"), "server"),
        *("--host=0.0.0.0", f"--port={MLFLOW_PORT}", "--workers=1"),
        *("--backend-store-uri=sqlite:////tmp/mlflow.db", "--default-artifact-root=mlflow-artifacts:/"),
        *("--artifacts-destination=/tmp/artifacts", "--allowed-hosts=*"),
    ]
    labels = {"app": MLFLOW}
    server = pod(namespace, MLFLOW, *command, labels=labels, volumes=shown, mounts=mounts)
    cluster.apply([server, service(namespace, MLFLOW, labels, MLFLOW_PORT)])
    return f"http://{MLFLOW}.{namespace}:{MLFLOW_PORT}"


def job(cluster: Cluster, namespace: str, example: str, **spec: Any) -> Object:
    """An example's manifest for a namespace of the test cluster; `spec` is laid over the example's."""
    data = read_manifest(ROOT / "examples" / example)
    data["metadata"]["namespace"] = namespace
    shown, mounts = cluster.show_python(namespace)
    path = f"{VENV / 'bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    patch = {
        "manager": "tests",
        "roles": ["trainer", "rollout"],
        "env": [{"name": "PATH", "value": path}, {"name": "PYTHONPATH", "value": str(ROOT)}],
        "volumes": shown,
        "volumeMounts": mounts,
    }
    data["spec"] |= {
        "storage": {"size": "5Gi", "storageClassName": volumes.STORAGE_CLASS, "accessModes": ["ReadWriteMany"]},
        "runtimePatches": [patch],
        **spec,
    }
    return data


def as_json(thing: Object) -> str:
    """An object as kubectl reads it."""
    return json.dumps(thing)


def state_folder(cluster: Cluster, namespace: str, job: str) -> Path:
    """The job's state folder, as this machine sees it."""
    claim = cluster.get("pvc", "-n", namespace, f"{job}-state")
    return cluster.own().folder / "var" / (volumes.FOLDER / volumes.volume_name(claim)).relative_to("/var") / job


def phase(cluster: Cluster, namespace: str, name: str) -> str:
    """The job's phase now."""
    status = cluster.get("agenticrljob", "-n", namespace, name).get("status") or {}
    return str(status.get("phase", ""))


MLFLOW_QUESTION = """
import json, urllib.request
def ask(path, body):
    url = "http://127.0.0.1:PORT/api/2.0/mlflow/" + path
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))
found = ask("experiments/search", {"max_results": 100})["experiments"]
runs = ask("runs/search", {"experiment_ids": [one["experiment_id"] for one in found], "max_results": 1000})
print(json.dumps({run["info"]["run_name"]: [run["info"]["status"], len(run["data"].get("metrics", []))]
                  for run in runs.get("runs", [])}))
"""


def mlflow_runs(cluster: Cluster, namespace: str) -> dict[str, tuple[str, int]]:
    """Run name -> (status, number of metrics), as the MLflow server of `start_mlflow` tells."""
    script = MLFLOW_QUESTION.replace("PORT", str(MLFLOW_PORT))
    told = json.loads(cluster.exec(namespace, MLFLOW, "python3", "-c", script).stdout)
    return {name: (status, metrics) for name, (status, metrics) in told.items()}
