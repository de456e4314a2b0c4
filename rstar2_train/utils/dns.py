"""Addresses of the pods behind a headless Service: engines for the orchestrator, executors for the judge's workers.

Callers resolve the name again every few seconds, because pods come and disappear.
"""

from __future__ import annotations

import asyncio
import logging
import socket

log = logging.getLogger(__name__)

_NO_ADDRESS = {socket.EAI_NONAME, socket.EAI_NODATA}
"""Errors for an unknown name, and for a name without addresses: a headless Service without ready pods."""


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT` or `[HOST]:PORT`. Raises ValueError."""
    host, separator, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isdigit():
        raise ValueError(f"{address!r} is not HOST:PORT, for example the name of a Service and its port")
    return host, int(port)


async def resolve_addresses(service: str) -> frozenset[str] | None:
    """Return `HOST:PORT` of every pod behind `service`; None if the name server is unreachable."""
    host, port = split_address(service)
    try:
        results = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in _NO_ADDRESS:
            return frozenset()
        log.warning("cannot resolve %s now: %s", host, error)
        return None
    return frozenset(join_address(str(address[0]), port) for *_, address in results)


def join_address(host: str, port: int) -> str:
    """Return `HOST:PORT`, or `[HOST]:PORT` for IPv6. Reverses `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
