"""Spreads synchronous work over the iterations of an event loop.

A thousand tasks that become ready together run in one iteration of the loop, with nothing between them. If each needs
a millisecond, timers and replies wait for a second. With a pacer, one task runs per iteration.
"""

from __future__ import annotations

import asyncio


class Pacer:
    """Lets one waiting task continue per iteration of the loop, in order of arrival."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def wait(self) -> None:
        """Wait until no other task has continued in this iteration."""
        await self._lock.acquire()
        asyncio.get_running_loop().call_soon(self._lock.release)
