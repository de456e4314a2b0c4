"""Starts servers of tests."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rstar2_train.utils.ports import free_ports
from rstar2_train.utils.supervisor import die_with_parent

SUPPORT = Path(__file__).parent


@contextlib.contextmanager
def running(script: str, *arguments: object) -> Iterator[int]:
    """Run `tests/support/SCRIPT ARGUMENTS... PORT` until it listens on the port; yield the port, then kill it."""
    (port,) = free_ports(1)
    argv = [sys.executable, str(SUPPORT / script), *map(str, arguments), str(port)]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            assert process.poll() is None, f"{argv} exited with {process.returncode}"
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            time.sleep(0.1)
        yield port
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def component(command: Sequence[str], log: Path) -> Iterator[None]:
    """Run a component of a cluster, which must not end by itself, then kill it. `log`: file for its output."""
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
