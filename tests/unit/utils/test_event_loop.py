"""Processes with much network I/O run in uvloop."""

import asyncio

import uvloop

from rstar2_train.utils.event_loop import run_with_uvloop


def test_run_with_uvloop_uses_uvloop_and_returns_the_result() -> None:
    """The loop is closed at the end, as after `asyncio.run`."""

    async def main() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    loop = run_with_uvloop(main())
    assert isinstance(loop, uvloop.Loop)
    assert loop.is_closed()
