"""The real kube-controller-manager on loopback, next to a `KubeApiserver`, with some of its controllers."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from rstar2_train.utils.supervisor import die_with_parent
from tests.kube_node import binaries
from tests.support.kube_apiserver import KubeApiserver


@contextlib.contextmanager
def controller_manager(api: KubeApiserver, folder: Path, *controllers: str) -> Iterator[None]:
    """Run these controllers, the autoscaler with a round per second. `folder`: for the log."""
    log = folder / "controller-manager.log"
    command = [
        binaries.ensure_binary(binaries.find_binary("kube-controller-manager")),
        f"--kubeconfig={api.kubeconfig}",
        f"--controllers={','.join(controllers)}",
        "--leader-elect=false",
        "--secure-port=0",
        "--horizontal-pod-autoscaler-sync-period=1s",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env={"PATH": os.environ["PATH"]}, preexec_fn=die_with_parent
        )
    try:
        yield
        assert process.poll() is None, log.read_text()[-2000:]
    finally:
        process.kill()
        process.wait()
