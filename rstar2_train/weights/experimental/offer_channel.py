"""Requests to rank 0 for collective transfers, on a connection of their own.

A call through Ray would wait until the update in progress ends. A request has a shared key, which only the orchestrator
has, and is JSON: nothing that arrives is unpickled.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from typing import Any

Answer = Callable[[dict[str, Any]], dict[str, Any]]
"""Returns the reply to a request."""


@dataclass(frozen=True, slots=True)
class ChannelAddress:
    """Where rank 0 waits for requests."""

    host: str
    port: int
    key: bytes


def serve(host: str, answer: Answer) -> ChannelAddress:
    """Answer requests in a thread of this process, until it exits; return the address."""
    key = secrets.token_bytes(32)
    listener = Listener((host, 0), family="AF_INET6" if ":" in host else "AF_INET", authkey=key)
    threading.Thread(target=_serve, args=(listener, answer), name="weights-offers", daemon=True).start()
    return ChannelAddress(host, int(listener.address[1]), key)


def _serve(listener: Listener, answer: Answer) -> None:
    while True:
        try:
            with listener.accept() as connection:
                connection.send_bytes(json.dumps(answer(json.loads(connection.recv_bytes()))).encode())
        except (OSError, EOFError, AuthenticationError, ValueError):
            continue  # the peer is not the orchestrator, or has gone


def request(address: ChannelAddress, message: dict[str, Any]) -> dict[str, Any]:
    """Send a request and return the reply. Raises OSError or EOFError if rank 0 has gone."""
    family = "AF_INET6" if ":" in address.host else "AF_INET"
    with Client((address.host, address.port), family=family, authkey=address.key) as connection:
        connection.send_bytes(json.dumps(message).encode())
        reply: dict[str, Any] = json.loads(connection.recv_bytes())
        return reply
