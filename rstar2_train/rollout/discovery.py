"""Finds the engines of a job in a cluster: every address behind the name of their headless Service.

Asked again every few seconds by the pool (`weights.py`), so that engines may come and go while trajectories run.
"""

from __future__ import annotations

import asyncio
import logging
import socket

log = logging.getLogger(__name__)

_NOBODY = {socket.EAI_NONAME, socket.EAI_NODATA}
"""No such name, or a name without addresses: a headless Service that has no ready pod."""


def split_service(service: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`. Raises ValueError."""
    host, separator, port = service.rpartition(":")
    if not separator or not host or not port.isdigit():
        raise ValueError(f"{service!r}: engines are found by HOST:PORT, such as the name and port of their Service")
    return host, int(port)


async def find_engines(service: str) -> frozenset[str] | None:
    """Base URLs of the engines behind `HOST:PORT`; None when the name service cannot be asked now."""
    host, port = split_service(service)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in _NOBODY:
            return frozenset()
        log.warning("%s cannot be looked up now: %s", host, error)
        return None
    return frozenset(_url(str(address[0]), port) for *_, address in found)


def _url(address: str, port: int) -> str:
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
