"""The rollout workers of a stage, and the assignment of problems to them.

All samples of a problem run in one worker, so that its prompt is sent once. A problem goes to the worker with the
fewest unfinished rollouts.
"""

from __future__ import annotations

import asyncio
import itertools
from array import array
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from types import TracebackType
from typing import Self

from rstar2_train.data.problems import Problem
from rstar2_train.inference.pool import EnginePool
from rstar2_train.rollout.context import RolloutContext, RunRollout
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.rollout.workers.messages import SetOpened, WorkerSetup
from rstar2_train.rollout.workers.worker_process import WorkerProcess


class RolloutWorkers:
    """Processes that run rollouts. Use as `async with`."""

    def __init__(self, count: int, pool: EnginePool, setup: WorkerSetup) -> None:
        """`pool`: the engines of all workers; it must be entered."""
        self.processes = [WorkerProcess(f"{number + 1}/{count}", pool, setup) for number in range(count)]
        self._pool = pool
        self._sets = itertools.count()
        self._exit_stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for process in self.processes:
            await self._exit_stack.enter_async_context(process)
        self._pool.before_push.append(self._announce)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.before_push.remove(self._announce)
        await self._exit_stack.__aexit__(kind, error, trace)

    async def _announce(self, version: str, number: int) -> None:
        await asyncio.gather(*(process.announce(version, number) for process in self.processes))

    def drain_lag(self, fraction: float) -> float:
        """Return the largest quantile of the workers' lag since the last call, in seconds."""
        return max(process.lag.take(fraction) for process in self.processes)

    @contextmanager
    def serve(self, context: RolloutContext) -> Iterator[RunRollout]:
        """Return the function that runs the rollouts of a set; on exit those that are unfinished stop."""
        opened = SetOpened(next(self._sets), context.settings)
        homes: dict[str, WorkerProcess] = {}

        async def run(problem: Problem, prompt_ids: array[int], sample: int) -> Trajectory:
            if problem.id not in homes:
                homes[problem.id] = min(self.processes, key=lambda process: process.unfinished)
            return await homes[problem.id].run(opened.number, problem, prompt_ids, sample)

        for process in self.processes:
            process.open_set(opened)
        try:
            yield run
        finally:
            for process in self.processes:
                process.close_set(opened.number)
