"""Calls of a conversation whose judge may be away: an error in good time instead of an answer that never comes.

Between the agent loop and the judge's client, which waits as long as a queue takes: right for training, where nobody
sits in front of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.types import CallResult, JudgeUnavailable
from rstar2_train.rollout.agent import ToolExecutor

LOOK_SECONDS = 2.0
"""Between two looks at a judge that has not answered yet."""


class JudgeWithTimeout:
    """An executor that gives up a call once its judge has not been ready for so long."""

    def __init__(
        self, executor: ToolExecutor, *, status: Callable[[], Awaitable[dict[str, Any]]], patience_seconds: float
    ) -> None:
        """`status`: the judge's own; JudgeUnavailable when it does not answer."""
        self._executor = executor
        self._status = status
        self._patience = patience_seconds

    async def run(self, code: str, stdin: str = "", *, limits: JudgeLimits | None = None) -> CallResult:
        """Run it. Raises JudgeUnavailable; waiting in the queue of a judge that is well does not count."""
        call = asyncio.ensure_future(self._executor.run(code, stdin, limits=limits))
        try:
            well = time.monotonic()
            while not (await asyncio.wait({call}, timeout=min(LOOK_SECONDS, self._patience)))[0]:
                if await self._ready():
                    well = time.monotonic()
                elif time.monotonic() - well > self._patience:
                    raise JudgeUnavailable(f"no sandbox has been ready for {self._patience:g} s")
            return call.result()
        finally:
            call.cancel()

    async def _ready(self) -> bool:
        try:
            return bool((await self._status()).get("ready"))
        except JudgeUnavailable:
            return False
