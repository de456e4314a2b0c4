"""A mutating admission webhook that adds a container to pods, as meshes and agents do; it ignores every opt-out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.kube_node.cluster import Cluster
from tests.support.mutating_webhook import NAME, Mutation, mutating_webhook

CONTAINER = "aaa-proxy"
"""Sorts before every container of the project: kubelets sort the statuses of containers by name."""


def container(image: str) -> dict[str, Any]:
    """Return a container that never ends by itself, and ignores SIGTERM."""
    return {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


@contextlib.contextmanager
def injected(cluster: Cluster, namespace: str, folder: Path, *, image: str) -> Iterator[None]:
    """Inject the container into each new pod of the jobs of a namespace."""
    patch = [{"op": "add", "path": "/spec/containers/-", "value": container(image)}]
    of_jobs = {"matchExpressions": [{"key": "rstar2.dev/job", "operator": "Exists"}]}
    injector = {"injector": Mutation("pods", patch, of_jobs)}
    address = cluster.node_layout().host_address
    with mutating_webhook(folder, address, injector, namespace=namespace) as configuration:
        try:
            cluster.apply([configuration])
            yield
        finally:
            cluster.kubectl("delete", "mutatingwebhookconfiguration", NAME, "--ignore-not-found")
