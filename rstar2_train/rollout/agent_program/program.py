"""Plays rollouts by the program of an agent: one process per rollout, which talks to the endpoint.

    rollout.collector --> AgentPrograms.play --> process (the user's program)
                                            '--> AgentEndpoint --> AgentEpisode

The program gets its row on standard input, and the endpoint and its key in the environment. It posts the reward. A
program that exits without a reward, or exceeds its time, loses the rollout: it is run again, then excluded. Only if a
limit of the stage stopped the model first, the rollout is truncated, as that of any other agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, Self

from rstar2_train.api.tasks import AgentSpec
from rstar2_train.data.problems import Problem
from rstar2_train.rollout.agent_program.conversation import Conversations
from rstar2_train.rollout.agent_program.endpoint import AgentEndpoint
from rstar2_train.rollout.agent_program.episode import AgentEpisode, AgentFailed
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.tools.mcp_session import ServerLost
from rstar2_train.utils.supervisor import describe_exit

_PR_SET_PDEATHSIG = 1
EXIT_SECONDS = 5.0
"""Time of a program to exit after its reward."""
STDERR_BYTES = 2000
"""Last bytes of standard error that the message of a lost rollout has."""

_LAUNCHER = f"""
import ctypes, os, sys
ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {int(signal.SIGKILL)})
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Program that becomes the agent's, and dies with this process. A `preexec_fn` is unsafe next to the threads of Ray."""


class AgentPrograms:
    """The programs of a set of rollouts, and their endpoint. Use as `async with`."""

    def __init__(self, spec: AgentSpec) -> None:
        self.spec = spec
        self._endpoint = AgentEndpoint()
        self._free = asyncio.Semaphore(spec.episodes)

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
        async with self._endpoint.serve(episode) as key:
            row = _row(problem, sample=trajectory.sample, seed=seed)
            async with _running(self.spec, self._variables(key), row) as program:
                await _wait(episode, program)
                if episode.failure.done() and not isinstance(episode.failure.exception(), AgentFailed):
                    episode.failure.result()
                truncated = program.exited and episode.limit and episode.conversations.tree.turns
                if episode.reward is None and not truncated:
                    raise ServerLost(f"agent program: {program.event(episode)}")
        model_text = _record(episode.conversations, trajectory)
        trajectory.stop = episode.limit if episode.reward is None and episode.limit else "done"
        trajectory.reason = episode.reason
        return model_text

    def _variables(self, key: str) -> dict[str, str]:
        """Return the environment of a program: no variable of this process, which holds the tokens of the engines."""
        url = f"{self._endpoint.url}/v1"
        path = os.environ.get("PATH", os.defpath)
        return {"PATH": path, "HOME": "/tmp", "OPENAI_BASE_URL": url, "OPENAI_API_KEY": key}


@dataclass
class _Program:
    process: asyncio.subprocess.Process
    stderr: bytearray

    @property
    def exited(self) -> bool:
        return self.process.returncode is not None

    def event(self, episode: AgentEpisode) -> str:
        """Return why the episode has no reward."""
        status = self.process.returncode
        if episode.failure.done():
            event = str(episode.failure.exception())
        elif status is not None:
            event = f"{describe_exit(status)} before it posted a reward"
        else:
            event = "posted no reward within spec.agent.seconds"
        tail = bytes(self.stderr[-STDERR_BYTES:]).decode(errors="replace").strip()
        return f"{event}: {tail}" if tail else event


@contextlib.asynccontextmanager
async def _running(spec: AgentSpec, variables: dict[str, str], row: dict[str, Any]) -> AsyncIterator[_Program]:
    """Run a program in a process group of its own, which is killed at the end. Raises ServerLost."""
    if shutil.which(spec.command[0]) is None:
        raise ServerLost(f"agent program: spec.agent.command: no such program: {spec.command[0]}")
    # No pipe of asyncio's: its `wait` returns only when a process that the program left behind closes them too.
    with tempfile.TemporaryFile() as stdin, _pipe() as (stderr, write_end):
        stdin.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        stdin.seek(0)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-ISc", _LAUNCHER, str(os.getpid())),
            *spec.command,
            stdin=stdin,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=write_end,
            env=variables,
            start_new_session=True,
        )
        write_end.close()
        program = _Program(process, bytearray())
        reading = asyncio.create_task(_keep_tail(stderr, program.stderr))
        try:
            yield program
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Yield the read end and the write end of a pipe."""
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb", 0) as reader, os.fdopen(write_end, "wb", 0) as writer:
        yield reader, writer


async def _keep_tail(pipe: IO[bytes], tail: bytearray) -> None:
    """Keep the end of the program's output until it is closed."""
    stream = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(stream)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
    try:
        while data := await stream.read(1 << 16):
            tail += data
            del tail[:-STDERR_BYTES]
    finally:
        transport.close()


async def _wait(episode: AgentEpisode, program: _Program) -> None:
    """Wait until the program exits or exceeds its time, or the episode has its reward or fails."""
    exited = asyncio.create_task(program.process.wait())
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


def _row(problem: Problem, *, sample: int, seed: int) -> dict[str, Any]:
    """Return what the program reads on standard input."""
    return {
        "id": problem.id,
        "problem": problem.problem,
        "answer": problem.answer,
        "data": json.loads(problem.data) if problem.data else None,
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
