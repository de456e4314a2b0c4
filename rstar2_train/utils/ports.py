"""TCP ports: those of a job's pods, which the operator and the processes in the pods share, and free local ports."""

from __future__ import annotations

import contextlib
import socket
from typing import Final

LOOPBACK: Final = "127.0.0.1"
RAY: Final = 6379
"""Head of a stage attempt's Ray cluster."""


def free_ports(count: int) -> tuple[int, ...]:
    """Return different loopback ports that are free now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for candidate in sockets:
            candidate.bind((LOOPBACK, 0))
        return tuple(candidate.getsockname()[1] for candidate in sockets)
