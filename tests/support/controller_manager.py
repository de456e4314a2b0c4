"""The real kube-controller-manager on loopback, next to a `KubeApiserver`, with some of its controllers."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from tests.kube_node import binaries
from tests.support.kube_apiserver import KubeApiserver
from tests.support.servers import component


def controller_manager(api: KubeApiserver, folder: Path, *controllers: str) -> AbstractContextManager[None]:
    """Run these controllers, the autoscaler with a round per second. `folder`: for the log."""
    command = [
        binaries.ensure_binary(binaries.find_binary("kube-controller-manager")),
        f"--kubeconfig={api.kubeconfig}",
        f"--controllers={','.join(controllers)}",
        "--leader-elect=false",
        "--secure-port=0",
        "--horizontal-pod-autoscaler-sync-period=1s",
    ]
    return component(command, folder / "controller-manager.log")
