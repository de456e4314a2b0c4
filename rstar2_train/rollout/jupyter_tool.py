"""The tool `jupyter_code`: one session of the judge for a trajectory, whose calls are its cells.

Between the agent loop, for which it is an `ToolExecutor` like any other, and the judge. Calls of one turn are cells one
after the other. A session that a cell of its own ended is begun anew, and the model is told; one that the judge lost
cannot be had again without running cells twice, so the trajectory is lost to infrastructure.
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

STARTED_AGAIN = "(the notebook was started again: what earlier cells defined is gone)\n"


class JupyterTool:
    """Runs a trajectory's calls in one session. Use as an async context manager."""

    def __init__(self, judge: JudgeClient) -> None:
        self._judge = judge
        self._session: JudgeSession | None = None
        self._held = AsyncExitStack()
        """What ends the session."""
        self._begun = False
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> JupyterTool:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._close()

    async def run(self, code: str, stdin: str = "", *, limits: JudgeLimits | None = None) -> CallResult:
        """Run a cell (it has no stdin). Raises JudgeUnavailable when the session is lost."""
        async with self._turn:
            note = ""
            if self._session is None:
                self._session = await self._held.enter_async_context(self._judge.session())
                note, self._begun = STARTED_AGAIN if self._begun else "", True
            result = await self._session.run(code, limits=limits)
            if result.status in ("session_lost", "internal"):
                raise JudgeUnavailable(f"the trajectory's session was lost: {result.stderr.strip()}")
            if not result.session_lives:
                await self._close()
            return replace(result, stdout=note + result.stdout)

    async def _close(self) -> None:
        self._session = None
        await self._held.aclose()
