"""The tool `jupyter_code`: one judge session per trajectory; each tool call is a cell of the session.

A `ToolExecutor` between the agent loop and the judge. The calls of one turn run one after another. If a cell ended its
own session (timeout, memory), the next call opens a new session and its output informs the model. If the judge lost the
session, the trajectory is lost to infrastructure: restoring the session would run cells twice.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.judge.client.session import JudgeSession
from rstar2_train.judge.types import CallResult, JudgeUnavailable

KERNEL_RESTARTED = "(The kernel restarted. Variables from earlier cells are lost.)\n"
"""Put before the output of the first cell of a new session."""


class JupyterTool:
    """Runs the calls of one trajectory in one session. Use as `async with`."""

    def __init__(self, judge: JudgeClient) -> None:
        self._judge = judge
        self._session: JudgeSession | None = None
        self._exit_stack = AsyncExitStack()
        """Closes the session."""
        self._had_session = False
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> JupyterTool:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._close()

    async def run(self, code: str, stdin: str = "", *, limits: JudgeLimits | None = None) -> CallResult:
        """Run a cell; `stdin` is ignored. Raises JudgeUnavailable when the judge has lost the session."""
        async with self._lock:
            note = ""
            if self._session is None:
                self._session = await self._exit_stack.enter_async_context(self._judge.session())
                note = KERNEL_RESTARTED if self._had_session else ""
                self._had_session = True
            result = await self._session.run(code, limits=limits)
            if result.status in ("session_lost", "internal"):
                raise JudgeUnavailable(f"the trajectory's session was lost: {result.stderr.strip()}")
            if not result.session_lives:
                await self._close()
            return replace(result, stdout=note + result.stdout)

    async def _close(self) -> None:
        self._session = None
        await self._exit_stack.aclose()
