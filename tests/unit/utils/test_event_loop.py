"""Processes with much network I/O run in uvloop."""

import asyncio

import uvloop

from rstar2_train.utils.event_loop import run_fast


def test_run_fast_uses_uvloop_and_returns_the_result() -> None:
    """The loop is closed at the end, as after `asyncio.run`."""

    async def main() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    loop = run_fast(main())
    assert isinstance(loop, uvloop.Loop)
    assert loop.is_closed()
