"""The HTTP connections of a judge client: keep-alive, timeouts and request bodies."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Mapping
from typing import Any

import aiohttp

from rstar2_train.judge.types import SILENT_SECONDS

CONNECT_SECONDS = 10.0
KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(SILENT_SECONDS * 1000)),
)
"""Socket options that detect the failure of a node, also while a request is being written (aiohttp has no timeout for
that). The response to a cell has no keep-alive lines, because its HTTP status is known only at its end."""


def open_http(headers: Mapping[str, str], *, connections: int, silent_seconds: float) -> aiohttp.ClientSession:
    """Return a session with TCP keep-alive. `silent_seconds`: default limit of time without data. Needs a running loop.

    A request has no limit on its total time, and proxy settings of the environment are ignored.
    """
    connector = aiohttp.TCPConnector(limit=connections, socket_factory=_open_socket)
    return aiohttp.ClientSession(connector=connector, headers=headers, timeout=silence_timeout(silent_seconds))


def silence_timeout(seconds: float) -> aiohttp.ClientTimeout:
    """Return a timeout that limits the time to connect and the time without data."""
    return aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=seconds)


def json_body(value: Any) -> aiohttp.BytesIOPayload:
    """Return a request body. aiohttp's own JSON body warns when it is larger than 1 MiB."""
    return aiohttp.BytesIOPayload(io.BytesIO(json.dumps(value).encode()), content_type="application/json")


def _open_socket(address: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol, *_ = address
    opened = socket.socket(family, kind, protocol)
    for level, option, value in KEEPALIVE:
        opened.setsockopt(level, option, value)
    return opened
