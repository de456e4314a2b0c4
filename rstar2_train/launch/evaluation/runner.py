"""Execute a SamplingPlan: generate the missing samples with the engine, judge and Redis that they need.

These are child processes as in `rstar2 run`, unless --endpoint or --judge names a service that runs already. They are
stopped at the end in every case. Each sample is saved when it is done (`evaluation/sample_cache.py`).

    evaluate.py, filter.py -> run_plan -> _SamplingRun -> Supervisor (engine, judge) -> evaluation.sampling
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rstar2_train.api.contracts import write_model
from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.evaluation.sample_cache import SampleCache
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.evaluation.sampling import SampleKey, SampleRequest, sample_missing, too_many_lost
from rstar2_train.inference.openai_client import OpenAIClient
from rstar2_train.inference.pool import Connect, EnginePool
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.launch.evaluation.plan import SamplingPlan
from rstar2_train.launch.external import check_judge
from rstar2_train.launch.local import preflight
from rstar2_train.launch.local.services import Services
from rstar2_train.rewards.task_rewards import TaskRewards
from rstar2_train.rollout.agent import Agent
from rstar2_train.rollout.agent_program.programs import AgentPrograms
from rstar2_train.rollout.context import RolloutContext
from rstar2_train.rollout.sandbox_check import check_imports
from rstar2_train.tools.sandbox_program import SourceError
from rstar2_train.utils.supervisor import Supervisor, gather_or_cancel, stop_leftovers

VERSION = "asked"
"""Weight version of the engines that are started here."""

SavedSamples = Mapping[SampleKey, SampleResult]


class TooManyLost(Exception):
    """Infrastructure failures lost too many samples for a representative result."""


@dataclass(frozen=True)
class ProgressSink:
    """Callbacks that show the progress to the user."""

    notify: Callable[[str], None]
    """Prints a message."""
    start: Callable[[int, int], None]
    """Called once with the number of samples that are done and the number of all."""
    advance: Callable[[SampleResult], None]
    """Called with each new sample."""


@dataclass(frozen=True)
class PlanSamples:
    """All samples of a plan."""

    rows: list[SampleResult]
    """In the order of problems and sample numbers, lost samples included."""
    seconds: float
    """Sampling time of this run."""
    samples: SampleCache
    """Holds the trajectories."""


@contextmanager
def run_plan(plan: SamplingPlan, progress: ProgressSink, *, with_trajectories: bool) -> Iterator[PlanSamples]:
    """Generate the missing samples, and lock the folder of the samples while the caller uses them.

    `with_trajectories`: save the trajectories. Raises PreflightError, ChildFailed, EngineUnavailable, EngineRejected,
    JudgeUnavailable, StopRequested or TooManyLost, and OSError for a full disk. Finished samples stay saved.
    """
    with (
        preflight.locked(plan.state),
        SampleCache(plan.state.root / "samples.jsonl", with_trajectories=with_trajectories) as samples,
    ):
        stop_leftovers(plan.state.children_file)
        request = SampleRequest(problems=plan.problems, prompts=plan.prompts, samples=plan.samples)
        saved = samples.load(request)
        progress.start(len(saved), len(request.pairs))
        if len(saved) == len(request.pairs):
            rows, seconds = [saved[problem.id, sample] for problem, sample in request.pairs], 0.0
        else:
            rows, seconds = asyncio.run(_SamplingRun(plan, progress, samples).main(request, saved))
        message = too_many_lost(rows)
        if message:
            raise TooManyLost(message)
        yield PlanSamples(rows, seconds, samples)


class _SamplingRun:
    """One execution of a plan, with its child processes."""

    def __init__(self, plan: SamplingPlan, progress: ProgressSink, samples: SampleCache) -> None:
        self._plan = plan
        self._progress = progress
        self._samples = samples

    async def main(self, request: SampleRequest, saved: SavedSamples) -> tuple[list[SampleResult], float]:
        """Return the results of all samples, saved ones included, and the seconds of sampling.

        The child processes are always stopped.
        """
        logs, register = self._plan.state.logs, self._plan.state.children_file
        async with Supervisor(logs=logs, register=register, notify=self._progress.notify) as supervisor:
            return await supervisor.run_until_stopped(self._sample(supervisor, request, saved))

    async def _sample(
        self, supervisor: Supervisor, request: SampleRequest, saved: SavedSamples
    ) -> tuple[list[SampleResult], float]:
        async with sampling_context(self._plan, supervisor, notify=self._progress.notify) as context:
            started = time.monotonic()
            rows = await sample_missing(
                request, saved=saved, store=self._samples, context=context, on_sample=self._progress.advance
            )
            return rows, time.monotonic() - started


@asynccontextmanager
async def sampling_context(
    plan: SamplingPlan, supervisor: Supervisor, *, notify: Callable[[str], None], connect: Connect | None = None
) -> AsyncIterator[RolloutContext]:
    """Start the services of a plan that do not run already; yield the rollout context with engine and judge.

    `connect`: creates the client of an external engine; default: that of a vLLM server. Raises PreflightError for a
    missing tool, an unusable external service, or a function that the sandbox cannot import.
    """
    external, spec = plan.external, plan.job.spec
    devices = None if external.engine else preflight.assign_devices(plan.job, trains=False)
    engines = 0 if external.engine else spec.rollout.replicas
    packages = preflight.prepare_packages(spec.judge, plan.state) if _starts_judge(plan) else None
    services = Services.create(spec.executor, plan.state, engines=engines, devices=devices, packages=packages)
    await _start(plan, services, supervisor, notify=notify)
    urls, token = services.engine_urls, services.engine_token
    if plan.folder is None:
        urls, token = [external.engine], external.engine_token
        connect = connect or partial(OpenAIClient, model=plan.model)
    judge_url, judge_token = services.judge.url, services.judge_token
    if external.judge:
        judge_url, judge_token = external.judge, external.judge_token
    async with (
        EnginePool(urls, token=token, admission=spec.rollout.admission, connect=connect) as pool,
        JudgeClient(judge_url, token=judge_token or None, patience_seconds=pool.times.patience) as judge,
        AgentPrograms(spec.agent) if spec.agent else nullcontext() as programs,
    ):
        rewards = TaskRewards(spec.rewards)
        try:
            if spec.needs_judge:
                await check_imports(plan.chat_format.tools, rewards, packages=spec.judge.packages, judge=judge)
        except SourceError as error:
            raise preflight.PreflightError(str(error)) from error
        await pool.update_weights(plan.folder or Path(), VERSION if plan.folder else plan.model)
        agent = Agent(
            chat_format=plan.chat_format,
            sampling=plan.sampling,
            rollout=spec.rollout,
            limits=JudgeLimits.from_spec(spec.judge.limits),
        )
        yield RolloutContext(agent=agent, pool=pool, judge=judge, rewards=rewards, programs=programs, seed=plan.seed)


def _starts_judge(plan: SamplingPlan) -> bool:
    """Whether the rollouts need a judge, and none runs already."""
    return plan.job.spec.needs_judge and not plan.external.judge


async def _start(
    plan: SamplingPlan, services: Services, supervisor: Supervisor, *, notify: Callable[[str], None]
) -> None:
    """Start the services that do not run already, and check those that do."""
    external = plan.external
    if external.judge:
        await check_judge(external.judge, token=external.judge_token)
    else:
        preflight.check_machine(plan.job.spec.executor if _starts_judge(plan) else None, plan.state)
    write_model(plan.state.job_file, plan.job)
    starts = {}
    if plan.folder is not None:
        starts["engine"] = services.start_engines(supervisor, plan.folder)
    if _starts_judge(plan):
        starts["judge"] = services.judge.start(supervisor)
    if starts:
        notify(f"Starting {' and '.join(starts)} (logs: {plan.state.logs})")
    await gather_or_cancel(*starts.values())
