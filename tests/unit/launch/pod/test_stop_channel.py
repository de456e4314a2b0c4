"""The stop request from one pod of an attempt to index 0."""

from __future__ import annotations

import asyncio

import pytest

from rstar2_train.launch.pod import stop_channel
from rstar2_train.launch.pod.stop_channel import answer_stops, request_stop, token
from rstar2_train.utils.ports import LOOPBACK, free_ports


async def test_request_stop_reaches_a_late_index_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is repeated until index 0 listens. Requests with another token, or without an end, change nothing."""
    monkeypatch.setattr(stop_channel, "RETRY_SECONDS", 0.05)
    (port,) = free_ports(1)
    stopped = asyncio.Event()
    request = asyncio.create_task(request_stop(LOOPBACK, port, token("secret")))
    await asyncio.sleep(0.1)
    assert not request.done()
    stranger = asyncio.create_task(request_stop(LOOPBACK, port, token("other")))
    server = asyncio.create_task(answer_stops(LOOPBACK, port, token("secret"), stopped.set))
    async with asyncio.timeout(120):
        await request
    assert stopped.is_set()
    stopped.clear()
    await asyncio.sleep(0.2)
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(b"x" * 1000)
    assert await reader.read() == b""
    writer.close()
    assert not stranger.done() and not stopped.is_set() and not server.done()
    stranger.cancel()
    server.cancel()
    await asyncio.gather(stranger, server, return_exceptions=True)
