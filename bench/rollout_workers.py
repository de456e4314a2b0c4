"""CPU per request and lag of one process, and of two rollout workers, at 1,000 concurrent trajectories each.

Everything is as in a job but the engine and the judge (`rollout_stub.py`): pool, scheduler, admission, agent loop,
scoring, and the judge's client.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import urllib.request
from array import array
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from bench.rollout_stub import PROMPT_TOKENS, stub_engine
from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.api.roles import AdmissionSpec, RolloutSpec
from rstar2_train.api.stages import Sampling
from rstar2_train.data.problems import Problem
from rstar2_train.inference.client import EngineClient
from rstar2_train.inference.engine_load import EngineLoad
from rstar2_train.inference.engine_protocols import EngineLimits
from rstar2_train.inference.pool import EnginePool
from rstar2_train.inference.weight_update import FolderUpdate
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.rollout.agent import Agent
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.collector import run_rollout
from rstar2_train.rollout.context import RolloutContext
from rstar2_train.rollout.workers.messages import WorkerSetup
from rstar2_train.rollout.workers.rollout_workers import RolloutWorkers
from rstar2_train.utils.event_loop import run_with_uvloop
from rstar2_train.utils.loop_lag import LoopLag

CONCURRENT = 1000
"""Trajectories per process."""
WARM_UP = 60.0
VERSION = "v1"


class StubClient(EngineClient):
    """The client of the stub, which has no weights and no figures."""

    async def limits(self) -> EngineLimits:
        """Return no limit."""
        return EngineLimits(2**20, 2**40, 16)

    async def load(self) -> EngineLoad | None:
        """Return no figures."""
        return None

    async def weight_version(self) -> str:
        """Return the only version."""
        return VERSION

    async def load_weights(self, folder: Path, version: str, *, seconds: float, keep_requests: bool = False) -> None:
        """Do nothing."""

    async def release(self) -> None:
        """Do nothing."""


def measure_workers(chat_format: ChatFormat, count: int, *, seconds: float) -> dict[str, Any]:
    """Return CPU per request and lag with `count` processes; 1: the orchestrator runs the trajectories."""
    with stub_engine(chat_format) as port:
        return run_with_uvloop(_measure(chat_format, f"http://127.0.0.1:{port}", count, seconds=seconds))


async def _measure(chat_format: ChatFormat, url: str, count: int, *, seconds: float) -> dict[str, Any]:
    agent = Agent(
        chat_format=chat_format,
        sampling=Sampling(max_response_tokens=12_288, max_turns=10),
        rollout=RolloutSpec(),
        limits=JudgeLimits(),
    )
    prompt = array("i", chat_format.encode("Find 12345 + 7 = x.\n" * PROMPT_TOKENS)[:PROMPT_TOKENS])
    numbers = itertools.count()
    admission = AdmissionSpec(max_in_flight=CONCURRENT * count)
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(EnginePool([url], token="", admission=admission, connect=StubClient))
        judge = await stack.enter_async_context(JudgeClient(url))
        lag = await stack.enter_async_context(LoopLag())
        workers = None
        if count > 1:
            setup = WorkerSetup(chat_format, "", url, None, judge_patience=60)
            workers = await stack.enter_async_context(RolloutWorkers(count, pool, setup))
        await pool.push(FolderUpdate.make(Path(), VERSION))
        context = RolloutContext(agent=agent, pool=pool, judge=judge, seed=(0,), workers=workers)
        run = partial(run_rollout, context) if workers is None else stack.enter_context(workers.serve(context))

        async def trajectories() -> None:
            while True:
                problem = Problem(id=str(next(numbers)), problem="", answer="1")
                trajectory = await run(problem, prompt, 0)
                assert not trajectory.failed, trajectory.error

        tasks = [asyncio.create_task(trajectories()) for _ in range(CONCURRENT * count)]
        await asyncio.sleep(WARM_UP)
        lag.take(1.0)
        if workers is not None:
            workers.drain_lag(1.0)
        pids = [process.pid for process in workers.processes if process.pid] if workers else []
        processes = [psutil.Process(), *map(psutil.Process, pids)]
        requests, before = await _requests(url), [_cpu(process) for process in processes]
        await asyncio.sleep(seconds)
        requests = await _requests(url) - requests
        used = [_cpu(process) - start for process, start in zip(processes, before, strict=True)]
        failed = [task for task in tasks if task.done()]
        if failed:
            raise RuntimeError(f"{len(failed)} trajectories failed") from failed[0].exception()
        lags = [lag.take(0.99), *([workers.drain_lag(0.99)] if workers else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    cpu = [round(1000 * each / requests, 3) for each in used]
    return {
        "workers": count,
        "trajectories": CONCURRENT * count,
        "requests_per_second": round(requests / seconds, 1),
        "driver_cpu_ms_per_request": cpu[0],
        "worker_cpu_ms_per_request": [round(each * count, 3) for each in cpu[1:]] or cpu,
        "lag_p99_ms": [round(1000 * each, 2) for each in lags],
    }


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def _requests(url: str) -> int:
    """Return the number of requests that the stub has received."""
    with await asyncio.to_thread(urllib.request.urlopen, f"{url}/requests") as reply:
        return int(json.loads(reply.read()))
