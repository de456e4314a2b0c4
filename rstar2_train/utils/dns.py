"""Finds the pods behind the name of a headless Service: engines by the driver, executors by the judge's workers.

Asked again every few seconds by whoever uses them, so that pods may come and go.
"""

from __future__ import annotations

import asyncio
import logging
import socket

log = logging.getLogger(__name__)

_NOBODY = {socket.EAI_NONAME, socket.EAI_NODATA}
"""No such name, or a name without addresses: a headless Service that has no ready pod."""


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT` or `[HOST]:PORT`. Raises ValueError."""
    host, separator, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isdigit():
        raise ValueError(f"{address!r}: give HOST:PORT, such as the name of a Service and its port")
    return host, int(port)


async def addresses(service: str) -> frozenset[str] | None:
    """`HOST:PORT` of every pod behind the name in `service`; None when the name service cannot be asked now."""
    host, port = split_address(service)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in _NOBODY:
            return frozenset()
        log.warning("%s cannot be looked up now: %s", host, error)
        return None
    return frozenset(join_address(str(address[0]), port) for *_, address in found)


def join_address(host: str, port: int) -> str:
    """Reverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
