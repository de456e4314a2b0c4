"""The tools of one rollout that run in servers: one MCP session per server, and the episode of an environment.

The first call of a server opens its session.

    collector, serving.completion --> RemoteTools <-- agent (calls)
                                          '--> tools.mcp_session, episode

`ServerLost` leaves the rollout: the collector repeats it with new sessions, then excludes it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.api.tasks import MCPServerSpec
from rstar2_train.judge.types import CallResult
from rstar2_train.rollout.environment_episode import EnvironmentEpisode
from rstar2_train.tools.mcp_session import McpSession
from rstar2_train.tools.toolset import ENVIRONMENT, Tool


class RemoteTools:
    """Sessions and episode of one rollout. Use as `async with`; entering it starts the episode."""

    def __init__(self, servers: Sequence[MCPServerSpec], episode: EnvironmentEpisode | None = None) -> None:
        self._specs = {server.name: server for server in servers}
        self.episode = episode
        self._episode_lock = asyncio.Lock()
        self._sessions: dict[str, McpSession] = {}
        self._locks = {server.name: asyncio.Lock() for server in servers}
        self._exit_stack = AsyncExitStack()
        """Closes the sessions."""

    async def __aenter__(self) -> Self:
        if self.episode is not None:
            await self._exit_stack.enter_async_context(self.episode)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exit_stack.__aexit__(kind, error, trace)

    @property
    def opening(self) -> str:
        """Text of the environment before the first turn; empty: none."""
        return "" if self.episode is None else self.episode.opening

    @property
    def done(self) -> bool:
        """Whether the environment has ended the episode."""
        return self.episode is not None and self.episode.done

    async def call(self, tool: Tool, arguments: str, *, limits: JudgeLimits) -> CallResult:
        """Return the result of a call with checked arguments (JSON). Raises ServerLost, also after `wall_seconds`.

        The calls of one server run one after another, in the order of the turn.
        """
        if tool.server == ENVIRONMENT:
            return await self._step(tool, arguments, limits)
        async with self._locks[tool.server]:
            session = self._sessions.get(tool.server)
            if session is None:
                session = await self._exit_stack.enter_async_context(McpSession(self._specs[tool.server]))
                self._sessions[tool.server] = session
            started = time.monotonic()
            answer = await session.call(tool.name, json.loads(arguments), seconds=limits.wall_seconds)
        return remote_result(answer.text, is_error=answer.is_error, limits=limits, seconds=time.monotonic() - started)

    async def _step(self, tool: Tool, arguments: str, limits: JudgeLimits) -> CallResult:
        assert self.episode is not None
        async with self._episode_lock:
            if self.episode.done:
                return CallResult(status="invalid", stderr="the episode has ended")
            started = time.monotonic()
            text, is_error = await self.episode.step(tool.name, arguments)
        return remote_result(text, is_error=is_error, limits=limits, seconds=time.monotonic() - started)


def remote_result(text: str, *, is_error: bool, limits: JudgeLimits, seconds: float) -> CallResult:
    """Return the text of a server as the judge would return the output of a program."""
    if len(text.encode(errors="surrogatepass")) > limits.output_bytes:
        return CallResult(status="output_limit", run_seconds=seconds)
    if is_error:
        return CallResult(status="error", stderr=text, run_seconds=seconds)
    return CallResult(status="ok", stdout=text, run_seconds=seconds)
