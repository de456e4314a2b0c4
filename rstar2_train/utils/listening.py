"""Sockets of servers, on IPv4, IPv6 and both.

Servers get a bound socket from here, because asyncio and uvicorn listen on IPv6 alone if their host is `::`.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Final

from rstar2_train.utils.dns import join_address
from rstar2_train.utils.text import reason

EVERY_ADDRESS: Final = "::"
"""Host of the servers in pods: all addresses, of IPv4 and IPv6; where the node has no IPv6, those of IPv4."""
_EVERY_IPV4: Final = "0.0.0.0"


def bind(host: str, port: int) -> socket.socket:
    """Return a bound stream socket. Raises OSError with the address if another server has it."""
    host = usable_host(host)
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if host == EVERY_ADDRESS:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise OSError(f"cannot listen on {join_address(host, port)}: {reason(error)}") from error
    return bound


def usable_host(host: str) -> str:
    """Return `host`; instead of `::` the address of IPv4 where the node has no IPv6."""
    return _EVERY_IPV4 if host == EVERY_ADDRESS and not _has_ipv6() else host


def _has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
        probe.bind((EVERY_ADDRESS, 0))
        return True
    return False
