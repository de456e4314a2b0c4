"""Sockets of servers: both families, one family, and a node without IPv6."""

from __future__ import annotations

import asyncio
import socket
from urllib.request import urlopen

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from rstar2_train.utils import listening
from rstar2_train.utils.dns import join_address
from rstar2_train.utils.listening import EVERY_ADDRESS, bind, usable_host


def reaches(host: str, port: int) -> bool:
    """Return whether a server listens."""
    try:
        socket.create_connection((host, port)).close()
    except OSError:
        return False
    return True


HOSTS = ("127.0.0.1", "::1") if usable_host(EVERY_ADDRESS) == EVERY_ADDRESS else ("127.0.0.1",)
"""Addresses of this machine's loopback."""


def test_bind_every_address_serves_both_families() -> None:
    """The servers of pods answer on IPv4 and on IPv6."""
    with bind(EVERY_ADDRESS, 0) as listener:
        listener.listen()
        assert [host for host in HOSTS if not reaches(host, listener.getsockname()[1])] == []


def test_bind_one_address_serves_that_address_alone() -> None:
    """A server on loopback is not reachable on other addresses."""
    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        assert [reaches(host, listener.getsockname()[1]) for host in ("127.0.0.1", "127.0.0.2")] == [True, False]


def test_bind_without_ipv6_serves_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a node whose kernel has no IPv6, servers listen on IPv4."""
    monkeypatch.setattr(listening, "_has_ipv6", lambda: False)
    with bind(EVERY_ADDRESS, 0) as listener:
        listener.listen()
        assert listener.family == socket.AF_INET and reaches("127.0.0.1", listener.getsockname()[1])


def test_bind_used_port_is_named() -> None:
    """The error has the address; that of IPv6 has brackets."""
    with bind("127.0.0.1", 0) as used:
        used.listen()
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{used.getsockname()[1]}: Address already in"):
            bind("127.0.0.1", used.getsockname()[1])


async def test_bind_serves_http_on_both_families() -> None:
    """uvicorn answers on both families of a socket that it gets."""
    app = Starlette(routes=[Route("/", lambda _: PlainTextResponse("here"))])
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    with bind(EVERY_ADDRESS, 0) as listener:
        serving = asyncio.create_task(server.serve([listener]))
        while not server.started:
            await asyncio.sleep(0.01)
        for host in HOSTS:
            url = f"http://{join_address(host, listener.getsockname()[1])}"
            with await asyncio.to_thread(urlopen, url) as response:
                assert response.read() == b"here"
        server.should_exit = True
        await serving
