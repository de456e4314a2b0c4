"""TCP ports: those of a job's pods, which the operator and the processes in the pods share, and free local ports."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path
from typing import Final

LOOPBACK: Final = "127.0.0.1"
RAY: Final = 6379
"""Head of a stage attempt's Ray cluster."""
AGENT: Final = 8090
"""Endpoint for an agent's programs in pods; it is in the orchestrator's pod."""


_CLIENT_PORTS: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST: Final = 20_000
"""Above the ports of Ray's workers."""


def free_ports(count: int) -> tuple[int, ...]:
    """Return different loopback ports that are free now.

    They are below the ports that the kernel gives to clients, so that no connection takes one before its server starts.
    """
    candidates = random.SystemRandom().sample(range(_FIRST, _first_client_port()), k=min(count + 1000, 10_000))
    ports: list[int] = []
    with contextlib.ExitStack() as stack:
        for candidate in candidates:
            if len(ports) == count:
                break
            probe = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind((LOOPBACK, candidate))
                ports.append(candidate)
    if len(ports) < count:
        raise OSError(f"fewer than {count} ports from {_FIRST} on are free: stop other servers")
    return tuple(ports)


def _first_client_port() -> int:
    """Return the first port that the kernel gives to clients, or a usual one where it is too low or unknown."""
    try:
        first = int(_CLIENT_PORTS.read_text().split()[0])
    except (OSError, ValueError):
        first = 0
    return first if first >= _FIRST + 10_000 else 32_768
