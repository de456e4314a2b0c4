"""Jobs for the test cluster: an example manifest, changed so that its pods use this machine's Python.

Operator, judge and executors run the project's images. The images of trainer and engines are too large for every test
run: their pods run a small Debian that mounts the clone and its environment by spec.runtimePatches.

`python -m tests.cluster.jobs EXAMPLE [NAMESPACE]` creates the claims in the running cluster and prints the manifest.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rstar2_train.api.loader import read_manifest
from scripts.setup import ROOT, VENV
from tests.cluster import engine_cache
from tests.kube_node import volumes
from tests.kube_node.cluster import Cluster, Object, attach
from tests.kube_node.requirements import ClusterUnavailable
from tests.support.example_manifests import MANIFESTS

FINAL = ("Succeeded", "Failed")
"""Phases of a job that has ended."""


def example_job(cluster: Cluster, namespace: str, example: str, **spec: Any) -> Object:
    """Return the manifest of an example for a namespace, with `spec` merged in; creates the claims that it mounts."""
    return cluster_job(cluster, namespace, read_manifest(ROOT / "examples" / example), **spec)


def cluster_job(
    cluster: Cluster, namespace: str, job: Object, *, roles: Sequence[str] = ("trainer", "rollout"), **spec: Any
) -> Object:
    """Return a manifest for a namespace, with `spec` merged in; creates the claims that the pods of `roles` mount."""
    job["metadata"]["namespace"] = namespace
    python_volumes, python_mounts = cluster.mount_python(namespace)
    path = f"{VENV / 'bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    environment = {"PATH": path, "PYTHONPATH": str(ROOT), "VLLM_CACHE_ROOT": str(engine_cache.ensure())}
    patch = {
        "manager": "tests",
        "roles": list(roles),
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        "volumes": python_volumes,
        "volumeMounts": python_mounts,
    }
    job["spec"] |= {
        "storage": {"size": "5Gi", "storageClassName": volumes.STORAGE_CLASS, "accessModes": ["ReadWriteMany"]},
        "runtimePatches": [patch],
        **spec,
    }
    return job


def state_folder(cluster: Cluster, namespace: str, job: str) -> Path:
    """Return the state directory of a job, as a path of this machine."""
    claim = cluster.get("pvc", "-n", namespace, f"{job}-state")
    volume = volumes.FOLDER / volumes.volume_name(claim)
    return cluster.node_layout().folder / "var" / volume.relative_to("/var") / job


def phase(cluster: Cluster, namespace: str, name: str) -> str:
    """Return the phase of a job; empty before its first status."""
    status = cluster.get("agenticrljob", "-n", namespace, name).get("status") or {}
    return str(status.get("phase", ""))


def wait_until_alone(cluster: Cluster, *, seconds: float = 400) -> None:
    """Wait until the pods of earlier jobs are gone: they take capacity and cause writes."""
    deadline = time.monotonic() + seconds
    while pods := cluster.get("pods", "-A", "-l", "rstar2.dev/job")["items"]:
        assert time.monotonic() < deadline, [pod["metadata"]["name"] for pod in pods]
        time.sleep(1)


def main(arguments: list[str]) -> int:
    """Print the manifest of an example for the running cluster; return 1 with the reason if there is no cluster."""
    examples = [path.name for path in MANIFESTS]
    if not 1 <= len(arguments) <= 2 or arguments[0] not in examples:
        print(
            f"usage: python -m tests.cluster.jobs EXAMPLE [NAMESPACE]\nexamples: {', '.join(examples)}", file=sys.stderr
        )
        return 2
    try:
        job = example_job(attach(), (*arguments, "default")[1], arguments[0])
    except ClusterUnavailable as problem:
        print(problem, file=sys.stderr)
        return 1
    job["spec"]["executor"] = {**job["spec"].get("executor", {}), "cpu": "500m"}  # so that two cores have all its pods
    print(json.dumps(job))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
