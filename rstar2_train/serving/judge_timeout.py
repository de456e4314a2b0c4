"""A time limit for tool calls whose judge is unreachable, so that a user gets an error instead of no answer.

Between the agent loop and the judge's client. The client alone waits as long as the queue takes, which suits training.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.types import CallResult, JudgeUnavailable
from rstar2_train.rollout.agent import ToolExecutor

POLL_SECONDS = 2.0
"""Interval of status requests while a call is pending."""


class JudgeWithTimeout:
    """A tool executor that fails a call when its judge was not ready for `patience_seconds`."""

    def __init__(
        self, executor: ToolExecutor, *, status: Callable[[], Awaitable[dict[str, Any]]], patience_seconds: float
    ) -> None:
        """`status`: returns the judge's status; raises JudgeUnavailable if the judge is unreachable."""
        self._executor = executor
        self._status = status
        self._patience = patience_seconds

    async def run(self, code: str, stdin: str = "", *, limits: JudgeLimits | None = None) -> CallResult:
        """Run a call. Raises JudgeUnavailable. Time in the queue of a ready judge does not count."""
        call = asyncio.ensure_future(self._executor.run(code, stdin, limits=limits))
        try:
            last_ready = time.monotonic()
            while not (await asyncio.wait({call}, timeout=min(POLL_SECONDS, self._patience)))[0]:
                if await self._ready():
                    last_ready = time.monotonic()
                elif time.monotonic() - last_ready > self._patience:
                    raise JudgeUnavailable(f"no sandbox was ready for {self._patience:g} s")
            return call.result()
        finally:
            call.cancel()

    async def _ready(self) -> bool:
        try:
            return bool((await self._status()).get("ready"))
        except JudgeUnavailable:
            return False
