"""The operator as a process of this machine, on the API server of a kubeconfig."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Self

from rstar2_train.utils.ports import free_ports
from rstar2_train.utils.supervisor import die_with_parent

STOP_SECONDS = 180.0


class OperatorProcess:
    """One replica. A context manager, which kills it at the end."""

    def __init__(
        self, kubeconfig: Path, *, identity: str = "operator", log: Path | None = None, **settings: str
    ) -> None:
        """Start it. `settings`: further environment variables; `log`: a file for its output."""
        self.port = free_ports(1)[0]
        environment = {
            "KUBECONFIG": str(kubeconfig),
            "RSTAR2_PROBE_PORT": str(self.port),
            "RSTAR2_IDENTITY": identity,
            "RSTAR2_LEASE_SECONDS": "60",  # on a busy machine an API server may not answer for some seconds
        }
        self._environment, self._log = {**os.environ, **environment, **settings}, log
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        output = None if self._log is None else self._log.open("ab")
        return subprocess.Popen(
            [sys.executable, "-m", "rstar2_operator"],
            env=self._environment,
            stdout=output,
            stderr=output,
            preexec_fn=die_with_parent,
        )

    def restart_if_ended(self) -> None:
        """Start it again if it has ended, as a kubelet does."""
        if self.process.poll() is not None:
            self.process = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill it and wait until it is gone."""
        self.process.kill()
        self.process.wait(STOP_SECONDS)

    def terminate(self) -> int:
        """Stop it and return its exit code."""
        self.process.terminate()
        return self.process.wait(STOP_SECONDS)

    def page(self, path: str) -> str:
        """Return a page of its HTTP server; empty if it does not serve."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as response:
                return str(response.read().decode()).strip()
        except OSError:
            return ""
