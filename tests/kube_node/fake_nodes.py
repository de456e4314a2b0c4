"""Fake nodes by kwok, for tests with many pods that do not run.

A pod that tolerates `kwok.x-k8s.io/node` and selects `type: kwok` gets the phase Running when it is bound to a fake
node; no process starts. The real node is unaffected.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.kube_node import binaries
from tests.kube_node.cluster import Cluster
from tests.kube_node.components import kubeconfig

KEY = "kwok.x-k8s.io/node"
LABELS = {"type": "kwok"}
TOLERATION = {"key": KEY, "operator": "Exists"}
STAGES = ("node/fast", "node/heartbeat", "pod/fast")  # without them kwok fails with "no stages found"


def fake_node(name: str, resources: dict[str, str]) -> dict[str, Any]:
    capacity = {"cpu": "256", "memory": "1Ti", "pods": "1000", **resources}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "annotations": {KEY: "fake"}, "labels": {**LABELS, "kubernetes.io/hostname": name}},
        "spec": {"taints": [{"key": KEY, "value": "fake", "effect": "NoSchedule"}]},
        "status": {"allocatable": capacity, "capacity": capacity},
    }


def start(cluster: Cluster, nodes: int, **resources: str) -> None:
    """Start kwok with a number of nodes. `resources` are added to the capacity of each, such as GPUs."""
    kwok = Path(binaries.ensure_binary(binaries.KWOK))
    files = [file for stage in STAGES for file in sorted((kwok.parent / "stage" / stage).glob("*.yaml"))]
    stages = [f"--config={file}" for file in files if file.name != "kustomization.yaml"]
    command = [str(kwok), f"--kubeconfig={kubeconfig('admin')}", "--manage-all-nodes=false", *stages]
    cluster.start_services(kwok=[*command, f"--manage-nodes-with-annotation-selector={KEY}=fake"])
    cluster.apply([fake_node(f"fake-{number}", resources) for number in range(nodes)])
