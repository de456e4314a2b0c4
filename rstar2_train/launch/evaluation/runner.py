"""Carries out a plan: asks what is not there yet, with the engine, judge and Redis that it takes.

They are child processes as in `rstar2 run`, unless a model or judge elsewhere is given, and are stopped at the end,
however that comes. Each sample is kept the moment it ends (`evaluation/sample_cache.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rstar2_train.api.contracts import write_model
from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.evaluation.sample_cache import SampleCache
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.evaluation.sampling import SampleKey, SampleRequest, sample_missing, too_many_lost
from rstar2_train.inference.openai_client import OpenAIClient
from rstar2_train.inference.pool import EnginePool
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.launch.evaluation.plan import SamplingPlan
from rstar2_train.launch.local import preflight
from rstar2_train.launch.local.services import Ports, Services, start_engines, start_judge
from rstar2_train.rollout.agent import Agent
from rstar2_train.rollout.context import RolloutContext
from rstar2_train.utils.supervisor import Supervisor, end_leftovers
from rstar2_train.utils.terminal import ending_signals

VERSION = "asked"
"""What our own engines call the weights."""

SavedSamples = Mapping[SampleKey, SampleResult]


class StopRequested(Exception):
    """Asked to stop; what was sampled is kept."""


class TooManyLost(Exception):
    """Infrastructure lost so many samples that the rest says nothing."""


@dataclass(frozen=True)
class ExternalJudge:
    """A judge that is there already, and the tokens of what is."""

    judge: str = ""
    """Its URL; empty: one is started here."""
    judge_token: str = ""
    engine_token: str = ""
    """Of the plan's endpoint."""


@dataclass(frozen=True)
class ProgressSink:
    """What a person is told while it goes on."""

    say: Callable[[str], None]
    begin: Callable[[int, int], None]
    """Samples that are there already, and all that are wanted."""
    done: Callable[[SampleResult], None]
    """A sample has ended."""


@dataclass(frozen=True)
class PlanSamples:
    """All samples of a plan."""

    rows: list[SampleResult]
    """In the order of problems and numbers; lost ones included."""
    seconds: float
    """For how long was sampled now."""
    samples: SampleCache
    """Where the trajectories are."""


@contextmanager
def run_plan(
    plan: SamplingPlan, elsewhere: ExternalJudge, shown: ProgressSink, *, whole: bool
) -> Iterator[PlanSamples]:
    """Ask what is missing, and hold the folder of the samples while the caller makes something of them.

    `whole`: keep the trajectories. Raises PreflightError, ChildFailed, EngineUnavailable, EngineRejected,
    JudgeUnavailable, Stopped or Lost, and OSError when the disk is full. What was sampled is kept in every case.
    """
    with preflight.locked(plan.state), SampleCache(plan.state.root / "samples.jsonl", whole=whole) as samples:
        end_leftovers(plan.state.children_file)
        request = SampleRequest(problems=plan.problems, prompts=plan.prompts, samples=plan.samples)
        saved = samples.load(request)
        shown.begin(len(saved), len(request.pairs))
        if len(saved) == len(request.pairs):
            rows, seconds = [saved[problem.id, sample] for problem, sample in request.pairs], 0.0
        else:
            rows, seconds = asyncio.run(_SamplingRun(plan, elsewhere, shown, samples).main(request, saved))
        why = too_many_lost(rows)
        if why:
            raise TooManyLost(why)
        yield PlanSamples(rows, seconds, samples)


class _SamplingRun:
    """One run of the sampling, with the children that it needs."""

    def __init__(self, plan: SamplingPlan, elsewhere: ExternalJudge, shown: ProgressSink, samples: SampleCache) -> None:
        self._plan = plan
        self._elsewhere = elsewhere
        self._shown = shown
        self._samples = samples

    async def main(self, request: SampleRequest, saved: SavedSamples) -> tuple[list[SampleResult], float]:
        """Return the results of all samples, saved ones included, and the seconds of sampling.

        The child processes are always stopped.
        """
        plan = self._plan
        supervisor = Supervisor(logs=plan.state.logs, register=plan.state.children_file, say=self._shown.say)
        stop = asyncio.Event()
        for signum in ending_signals():
            asyncio.get_running_loop().add_signal_handler(signum, stop.set)
        asking = asyncio.create_task(self._ask(supervisor, request, saved))
        stopping = asyncio.create_task(stop.wait())
        try:
            ends: set[asyncio.Future[Any]] = {asking, stopping, supervisor.given_up}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if supervisor.given_up.done():
                raise supervisor.given_up.result()
            if not asking.done():
                raise StopRequested
            return asking.result()
        finally:
            stopping.cancel()
            asking.cancel()
            await asyncio.gather(asking, stopping, return_exceptions=True)
            await supervisor.stop()

    async def _ask(
        self, supervisor: Supervisor, request: SampleRequest, saved: SavedSamples
    ) -> tuple[list[SampleResult], float]:
        plan, elsewhere, spec = self._plan, self._elsewhere, self._plan.job.spec
        ports = Ports.choose(engines=0 if plan.endpoint else spec.rollout.replicas)
        services = Services(spec.executor, plan.state, ports)
        await self._start(services, supervisor)
        urls, token, connect = services.engine_urls, services.engine_token, None
        if plan.folder is None:
            urls, token, connect = [plan.endpoint], elsewhere.engine_token, partial(OpenAIClient, model=plan.model)
        judge_url, judge_token = elsewhere.judge, elsewhere.judge_token
        if not judge_url:
            judge_url, judge_token = services.judge_url, services.judge_token
        async with (
            EnginePool(urls, token=token, admission=spec.rollout.admission, connect=connect) as pool,
            JudgeClient(judge_url, token=judge_token or None, patience_seconds=pool.times.patience) as judge,
        ):
            await pool.update_weights(plan.folder or Path(), VERSION if plan.folder else plan.model)
            started = time.monotonic()
            agent = Agent(
                chat_format=plan.protocol,
                sampling=plan.sampling,
                rollout=spec.rollout,
                limits=JudgeLimits.from_spec(spec.judge.limits),
            )
            context = RolloutContext(agent=agent, pool=pool, judge=judge, seed=plan.seed)
            rows = await sample_missing(
                request, saved=saved, store=self._samples, context=context, on_sample=self._shown.done
            )
            return rows, time.monotonic() - started

    async def _start(self, services: Services, supervisor: Supervisor) -> None:
        """Start what is not elsewhere, and see that what is elsewhere answers."""
        plan, elsewhere = self._plan, self._elsewhere
        if elsewhere.judge:
            async with JudgeClient(elsewhere.judge, token=elsewhere.judge_token or None) as client:
                status = await client.status()
            if not status.get("ready"):
                raise preflight.PreflightError(f"--judge {elsewhere.judge} is not ready: {status}")
        else:
            preflight.check_machine(plan.job.spec.executor, plan.state)
        write_model(plan.state.job_file, plan.job)
        starts = {}
        if plan.folder is not None:
            starts["engine"] = start_engines(services, supervisor, plan.folder)
        if not elsewhere.judge:
            starts["judge"] = start_judge(services, supervisor)
        if starts:
            self._shown.say(f"starting {' and '.join(starts)} (logs: {plan.state.logs})")
        await asyncio.gather(*starts.values())
