"""Plays rollouts by the program of an agent: one run of the program per rollout, which talks to the endpoint.

    rollout.collector --> AgentPrograms.play --> start_process (`program.py`), or AgentPods.start (`pods.py`)
                                            '--> AgentEndpoint --> AgentEpisode

The program posts the reward. A program that exits without one, or exceeds its time, loses the rollout: it is run again,
then excluded. Only if a limit of the stage stopped the model first, the rollout is truncated, as that of any other
agent.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self

from rstar2_train.api.tasks import AgentSpec
from rstar2_train.data.problems import Problem
from rstar2_train.rollout.agent_program.conversation import Conversations
from rstar2_train.rollout.agent_program.endpoint import AgentEndpoint
from rstar2_train.rollout.agent_program.episode import AgentEpisode, AgentFailed
from rstar2_train.rollout.agent_program.pods import AgentPods
from rstar2_train.rollout.agent_program.program import Program, start_process
from rstar2_train.rollout.row_data import read_data
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.tools.mcp_session import ServerLost

EXIT_SECONDS = 5.0
"""Time of a program to exit after its reward."""


class AgentPrograms:
    """The programs of a set of rollouts, and their endpoint. Use as `async with`."""

    def __init__(self, spec: AgentSpec, pods: AgentPods | None = None) -> None:
        """`pods`: the pods that run the programs; None: this machine."""
        self.spec = spec
        self._pods = pods
        self._endpoint = AgentEndpoint(pods)
        self._free = asyncio.Semaphore(spec.max_concurrent_episodes * (1 if pods is None else spec.replicas))

    async def __aenter__(self) -> Self:
        await self._endpoint.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._endpoint.__aexit__(kind, error, trace)

    def turn(self) -> asyncio.Semaphore:
        """Return the limit of concurrent programs, for `async with`."""
        return self._free

    async def play(self, trajectory: Trajectory, problem: Problem, episode: AgentEpisode, *, seed: int) -> str:
        """Run the program until the episode ends; fill in `trajectory`. Return the text that the model wrote.

        `seed`: the same for all rollouts of a group. The reward, if there is one, is `episode.reward`.

        Raises ServerLost for an episode without a reward, and the failure of an engine.
        """
        row = await _row(problem, sample=trajectory.sample, seed=seed)
        async with self._endpoint.serve(episode) as key, self._start(key, row) as program:
            await _wait(episode, program)
            if episode.failure.done() and not isinstance(episode.failure.exception(), AgentFailed):
                episode.failure.result()
            truncated = program.exited and episode.limit and episode.conversations.tree.turns
            if episode.reward is None and not truncated:
                raise ServerLost(f"agent program: {_event(episode, program)}")
        model_text = _record(episode.conversations, trajectory)
        trajectory.stop = episode.limit if episode.reward is None and episode.limit else "done"
        trajectory.reason = episode.reason
        return model_text

    def _start(self, key: str, row: dict[str, Any]) -> AbstractAsyncContextManager[Program]:
        if self._pods is not None:
            return self._pods.start(key, row)
        variables = {"OPENAI_BASE_URL": f"{self._endpoint.url}/v1", "OPENAI_API_KEY": key}
        return start_process(self.spec.command, variables, row)


def _event(episode: AgentEpisode, program: Program) -> str:
    """Return why the episode has no reward."""
    if episode.failure.done():
        event = str(episode.failure.exception())
    elif (end := program.end()) is not None:
        event = f"{end} before it posted a reward"
    else:
        event = "posted no reward within spec.agent.timeoutSeconds"
    tail = program.stderr.decode(errors="replace").strip()
    return f"{event}: {tail}" if tail else event


async def _wait(episode: AgentEpisode, program: Program) -> None:
    """Wait until the program exits or exceeds its time, or the episode has its reward or fails."""
    exited = asyncio.create_task(program.wait())
    ends = [asyncio.create_task(episode.expire()), asyncio.create_task(episode.rewarded.wait())]
    try:
        pending: list[asyncio.Future[Any]] = [exited, episode.failure, *ends]
        await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        if episode.reward is not None:
            await asyncio.wait({exited}, timeout=EXIT_SECONDS)
    finally:
        for task in (exited, *ends):
            task.cancel()
        await asyncio.gather(exited, *ends, return_exceptions=True)


async def _row(problem: Problem, *, sample: int, seed: int) -> dict[str, Any]:
    """Return what the program reads on standard input."""
    return {
        "id": problem.id,
        "problem": problem.problem,
        "answer": problem.answer,
        "data": await read_data(problem),
        "files": dict(problem.files),
        "sample": sample,
        "seed": seed,
    }


def _record(conversations: Conversations, trajectory: Trajectory) -> str:
    """Fill in the tokens of a trajectory; return the text that the model wrote."""
    segments, calls = conversations.tree.segments()
    chat_format = conversations.chat_format
    trajectory.segments, trajectory.calls = segments, calls
    trajectory.turns = len(conversations.tree.turns)
    trajectory.text = "".join(chat_format.decode(part.token_ids) for part in segments if part.kind != "prompt")
    return "\n".join(chat_format.model_text(part.token_ids) for part in segments if part.kind == "model")
