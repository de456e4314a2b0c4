"""Starts servers of tests on free ports."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rstar2_train.utils.ports import free_ports

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
