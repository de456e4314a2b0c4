"""Many pods without running them: kwok beside the real API server and scheduler, for tests of scale.

Pods that tolerate `kwok.x-k8s.io/node` and select `type: kwok` are Running as soon as they are bound to one of these
nodes, and nothing runs. The real node is left alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.kube_node import binaries
from tests.kube_node.cluster import Cluster
from tests.kube_node.components import kubeconfig

MARK = "kwok.x-k8s.io/node"
LABELS = {"type": "kwok"}
TOLERATION = {"key": MARK, "operator": "Exists"}
STAGES = ("node/fast", "node/heartbeat", "pod/fast")  # without them kwok ends with "no stages found"


def fake_node(name: str, resources: dict[str, str]) -> dict[str, Any]:
    capacity = {"cpu": "256", "memory": "1Ti", "pods": "1000", **resources}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "annotations": {MARK: "fake"}, "labels": {**LABELS, "kubernetes.io/hostname": name}},
        "spec": {"taints": [{"key": MARK, "value": "fake", "effect": "NoSchedule"}]},
        "status": {"allocatable": capacity, "capacity": capacity},
    }


def start(cluster: Cluster, nodes: int, **resources: str) -> None:
    """Let kwok keep so many nodes; `resources` are added to what each has (extended ones such as GPUs)."""
    kwok = Path(binaries.path_of("kwok"))
    files = [file for stage in STAGES for file in sorted((kwok.parent / "stage" / stage).glob("*.yaml"))]
    stages = [f"--config={file}" for file in files if file.name != "kustomization.yaml"]
    command = [str(kwok), f"--kubeconfig={kubeconfig('admin')}", "--manage-all-nodes=false", *stages]
    cluster.start(kwok=[*command, f"--manage-nodes-with-annotation-selector={MARK}=fake"])
    cluster.apply([fake_node(f"fake-{number}", resources) for number in range(nodes)])
