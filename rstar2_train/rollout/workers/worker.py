"""The program of a rollout worker: `python -m rstar2_train.rollout.workers.worker FD`.

`worker_process` starts it with one end of a socket pair. It runs the rollouts that the orchestrator sends, each as a
task, and returns them scored. It exits when the orchestrator closes the other end, or dies.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import socket
import sys
from array import array
from dataclasses import dataclass, field

from rstar2_train.data.problems import Problem
from rstar2_train.inference.engine_session import EngineSession
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.rollout.collector import run_rollout
from rstar2_train.rollout.context import RolloutContext
from rstar2_train.rollout.workers.link import WorkerLink
from rstar2_train.rollout.workers.messages import (
    LagMeasured,
    PromptAdded,
    RolloutFailed,
    RolloutFinished,
    RolloutStarted,
    SetClosed,
    SetOpened,
    WorkerSetup,
)
from rstar2_train.rollout.workers.remote_pool import RemotePool
from rstar2_train.utils.event_loop import run_with_uvloop
from rstar2_train.utils.loop_lag import LoopLag
from rstar2_train.utils.loop_watch import watch_loop
from rstar2_train.utils.open_files import raise_open_file_limit
from rstar2_train.utils.supervisor import die_with_parent

LAG_INTERVAL = 1.0
"""Seconds between two reports of the event loop's lag."""


@dataclass(slots=True)
class _RunningSet:
    context: RolloutContext
    prompts: dict[str, tuple[Problem, array[int]]] = field(default_factory=dict)
    """Problem and tokens of each prompt, by id."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class RolloutWorker:
    """Runs the rollouts of one link."""

    def __init__(self, link: WorkerLink, setup: WorkerSetup, pool: RemotePool, judge: JudgeClient) -> None:
        self._link = link
        self._setup = setup
        self._pool = pool
        self._judge = judge
        self._sets: dict[int, _RunningSet] = {}

    async def run(self) -> None:
        """Handle messages until the orchestrator closes the link, then stop the rollouts."""
        try:
            while (message := await self._link.receive()) is not None:
                match message:
                    case SetOpened(number, settings):
                        context = settings.context(self._setup.chat_format, pool=self._pool, judge=self._judge)
                        self._sets[number] = _RunningSet(context)
                    case SetClosed(number):
                        for task in self._sets.pop(number).tasks:
                            task.cancel()
                    case PromptAdded(number, problem, prompt_ids):
                        self._sets[number].prompts[problem.id] = (problem, prompt_ids)
                    case RolloutStarted():
                        self._start(message)
                    case _:
                        assert self._pool.handle(message), message
        finally:
            tasks = [task for rollouts in self._sets.values() for task in rollouts.tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, message: RolloutStarted) -> None:
        rollouts = self._sets[message.set]
        task = asyncio.create_task(self._run(message, rollouts))
        rollouts.tasks.add(task)
        task.add_done_callback(rollouts.tasks.discard)

    async def _run(self, message: RolloutStarted, rollouts: _RunningSet) -> None:
        problem, prompt_ids = rollouts.prompts[message.prompt_id]
        try:
            trajectory = await run_rollout(rollouts.context, problem, prompt_ids, message.sample)
        except Exception as error:
            self._link.send(RolloutFailed(message.number, _portable(error)))
            return
        trajectory.prompt_ids = array("i")  # the orchestrator has them
        self._link.send(RolloutFinished(message.number, trajectory))


def _portable(error: Exception) -> Exception:
    """Return an error that the orchestrator can read: one that pickle rejects becomes a RuntimeError with its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


async def serve(link: WorkerLink) -> None:
    """Run a worker until the orchestrator closes the link."""
    setup = await link.receive()
    if setup is None:
        return
    async with (
        EngineSession() as session,
        JudgeClient(setup.judge_url, token=setup.judge_token, patience_seconds=setup.judge_patience) as judge,
        LoopLag() as lag,
    ):
        pool = RemotePool(link.send, token=setup.engine_token, session=session, connect=setup.connect)
        reporting = asyncio.create_task(_report_lag(link, lag))
        try:
            with watch_loop():
                await RolloutWorker(link, setup, pool, judge).run()
        finally:
            reporting.cancel()
            link.close()


async def _report_lag(link: WorkerLink, lag: LoopLag) -> None:
    while True:
        link.send(LagMeasured(lag.take_samples()))
        await asyncio.sleep(LAG_INTERVAL)


def main() -> None:
    """Run the command line."""
    die_with_parent()
    raise_open_file_limit()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")

    async def run() -> None:
        await serve(await WorkerLink.open(socket.socket(fileno=int(sys.argv[1]))))

    run_with_uvloop(run())


if __name__ == "__main__":
    main()
