"""The rollout side of a stage attempt: the engines at the step's weight version, the judge, and scored trajectories.

Shared by the GRPO, Filter and Evaluate stages. A rollout that infrastructure lost is marked as lost, never scored 0. If
too many rollouts of a batch are lost, the attempt fails as retryable instead of training on the rest.
"""

from __future__ import annotations

import asyncio
import logging
import os
from array import array
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from rstar2_train.api.contracts import ENGINE_START_SECONDS, Reason, StageFailed
from rstar2_train.api.stages import Sampling
from rstar2_train.capacity.adapter_slots import adapter_slots
from rstar2_train.capacity.rollout_processes import most_concurrent, process_count
from rstar2_train.data.problems import Problem
from rstar2_train.evaluation.sample_cache import SampleCache
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.evaluation.sampling import SampleRequest, sample_missing, too_many_lost
from rstar2_train.inference.client import EngineClient
from rstar2_train.inference.openai_client import OpenAIClient
from rstar2_train.inference.pool import Connect, EnginePool, PoolTimes
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.judge.types import JudgeUnavailable
from rstar2_train.orchestrator.context import StageContext, SuspendRequested
from rstar2_train.orchestrator.engine_length import wait_for_lengths
from rstar2_train.orchestrator.engine_weights import EngineWeights
from rstar2_train.orchestrator.judge_watch import JudgeWatch
from rstar2_train.orchestrator.long_prompts import truncate_long
from rstar2_train.orchestrator.problem_files import stage_prompts
from rstar2_train.rewards.task_rewards import TaskRewards
from rstar2_train.rollout.agent import Agent
from rstar2_train.rollout.agent_program.pods import AgentPods
from rstar2_train.rollout.agent_program.programs import AgentPrograms
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.collector import PromptTooLong, collect_groups
from rstar2_train.rollout.context import RolloutContext
from rstar2_train.rollout.sandbox_check import check_imports
from rstar2_train.rollout.trajectory import LostTo, Trajectory
from rstar2_train.rollout.workers.messages import WorkerSetup
from rstar2_train.rollout.workers.rollout_workers import RolloutWorkers
from rstar2_train.rollout.workers.worker_process import WorkerLost
from rstar2_train.simulation.makespan import makespan_bound
from rstar2_train.tools.sandbox_program import SourceError
from rstar2_train.utils.auth import AGENT_TOKEN, ENGINE_TOKEN, JUDGE_TOKEN, read_secret
from rstar2_train.utils.dns import resolve_addresses, split_address
from rstar2_train.utils.loop_lag import LoopLag

log = logging.getLogger(__name__)

Result = TypeVar("Result")
PATIENCE_SECONDS = 180.0
"""Longest time without an answer of the judge, or of an engine of another project."""


class SampleSink(Protocol):
    """Takes the result of a sample of a measurement."""

    def __call__(self, result: SampleResult, *, saved: bool) -> None:
        """`saved`: whether an earlier attempt finished the sample."""


_FAILURE_REASONS: dict[LostTo | None, Reason] = {
    "judge": "JudgeUnavailable",
    "engine": "EngineUnavailable",
    "checker": "BadConfiguration",
    "server": "ServerUnavailable",
}


class RolloutSession:
    """Engines and judge of one stage attempt. Use as `async with`."""

    def __init__(self, ctx: StageContext, chat_format: ChatFormat) -> None:
        spec, service = ctx.job.spec, ctx.endpoints.engine_service
        if service:
            split_address(service)
        self._ctx = ctx
        self._chat_format = chat_format
        served = ctx.endpoints.served_model
        engine = partial(EngineClient, has_adapters=adapter_slots(ctx.job) is not None)
        self._connect: Connect = partial(OpenAIClient, model=served) if served else engine
        self._pool = EnginePool(
            ctx.endpoints.engines,
            token=read_secret(ENGINE_TOKEN) or "",
            find=partial(_find_engines, service) if service else None,
            admission=spec.rollout.admission,
            connect=self._connect,
            times=PoolTimes(
                patience=PATIENCE_SECONDS if served else ENGINE_START_SECONDS, load=spec.rollout.weight_timeout_seconds
            ),
        )
        try:
            self._rewards = TaskRewards(spec.rewards)
        except SourceError as error:
            raise StageFailed("BadConfiguration", str(error), retryable=False) from error
        self._checked = False
        """Whether the sandbox has imported the job's functions."""
        self._lag = LoopLag()
        self._workers = self._make_workers()
        self.weights = EngineWeights(ctx, self._pool)
        pods = None
        if port := ctx.endpoints.agent_port:
            pods = AgentPods(token=read_secret(AGENT_TOKEN) or "", port=port)
        self._programs = AgentPrograms(spec.agent, pods) if spec.agent else None
        self._judge = JudgeClient(
            ctx.endpoints.judge,
            token=read_secret(JUDGE_TOKEN),
            patience_seconds=PATIENCE_SECONDS,
        )
        self._judge_watch = None
        if spec.needs_judge:
            self._judge_watch = JudgeWatch(self._judge, partial(ctx.report_unreachable, "judge"))

    async def __aenter__(self) -> Self:
        await self._lag.__aenter__()
        await self._pool.__aenter__()
        await self._judge.__aenter__()
        if self._judge_watch is not None:
            await self._judge_watch.__aenter__()
        if self._programs is not None:
            await self._programs.__aenter__()
        if self._workers is not None:
            await self._workers.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._workers is not None:
            await self._workers.__aexit__(kind, error, trace)
        if self._programs is not None:
            await self._programs.__aexit__(kind, error, trace)
        if self._judge_watch is not None:
            await self._judge_watch.__aexit__(kind, error, trace)
        await self._judge.__aexit__(kind, error, trace)
        await self._pool.__aexit__(kind, error, trace)
        if not isinstance(error, SuspendRequested):  # the checkpoint does not wait for a running upload
            await self.weights.close()
        await self._lag.__aexit__(kind, error, trace)

    def _make_workers(self) -> RolloutWorkers | None:
        """Return the rollout workers of the stage; None if this process runs the rollouts."""
        spec = self._ctx.job.spec
        if spec.agent is not None or spec.environments:  # one process counts their episodes
            return None
        most = most_concurrent(self._ctx.job, self._ctx.stage)
        count = process_count(spec.rollout.workers, trajectories=most, cpus=len(os.sched_getaffinity(0)))
        if count == 1:
            return None
        setup = WorkerSetup(
            chat_format=self._chat_format,
            engine_token=read_secret(ENGINE_TOKEN) or "",
            judge_url=self._ctx.endpoints.judge,
            judge_token=read_secret(JUDGE_TOKEN),
            judge_patience=PATIENCE_SECONDS,
            connect=self._connect,
        )
        return RolloutWorkers(count, self._pool, setup)

    async def sample_groups(
        self,
        problems: Sequence[Problem],
        *,
        samples: int,
        prompts: Mapping[str, array[int]],
        sampling: Sampling,
        seed: tuple[int | str, ...],
        on_group: Callable[[list[Trajectory]], None],
        later_versions: bool = False,
        records_experts: bool = False,
    ) -> None:
        """Sample and score `samples` trajectories per problem; pass each group to `on_group` (`collect_groups`).

        `later_versions`: whether weights that are loaded meanwhile may sample as well. `records_experts`: let the
        engines report the experts of a mixture for each token. Raises SuspendRequested on a stop request, StageFailed
        when too many rollouts are lost, and any error of `on_group`.
        """
        count = self._progress_counter(0, len(problems) * samples, every=samples)
        context = self._rollout_context(sampling, seed, later_versions=later_versions, records_experts=records_experts)
        sampled: list[Trajectory] = []

        def on_done(trajectory: Trajectory) -> None:
            sampled.append(trajectory)
            count()

        await self._ctx.device.to_engines()
        await self._check_sandbox()
        await self._wait_for_lengths()
        await self._unless_stopped(
            collect_groups(
                problems, samples=samples, prompts=prompts, context=context, on_group=on_group, on_done=on_done
            )
        )
        _check_lost(sampled)

    def drain_metrics(self, groups: Sequence[Sequence[Trajectory]], *, seconds: float | None) -> dict[str, float]:
        """Return the metrics of the engines and of the event loops since the last call.

        `groups`: sampled in `seconds`, compared with their lower bound; None if other groups were sampled meanwhile.
        """
        statistics = self._pool.statistics
        lags = [self._lag.take(0.99), self._workers.drain_lag(0.99) if self._workers else 0.0]
        metrics = {"rollout/loop_lag_p99_seconds": max(lags)} | statistics.take()
        if seconds is not None:
            trajectories = [trajectory for group in groups for trajectory in group if not trajectory.failed]
            bound = makespan_bound(trajectories, statistics.decode_samples, self._pool.kv_tokens)
            # A step below its bound shows that the measured speed was not that of the step: other work used the cores.
            if bound and seconds >= bound:
                metrics["rollout/makespan_over_bound"] = seconds / bound
        return metrics

    async def measure(
        self,
        problems: Sequence[Problem],
        *,
        samples: int,
        sampling: Sampling,
        seed: tuple[int | str, ...],
        cache: SampleCache,
        on_sample: SampleSink,
    ) -> list[SampleResult]:
        """Return `samples` samples per problem, in order. Samples that `cache` lacks are generated and saved there.

        A prompt that leaves no space for the response is wrong: its samples are truncated before their first turn.
        `on_sample`: called with each result, also those that `cache` has (`saved`). Raises SuspendRequested on a stop
        request, StageFailed when too many samples are lost, and OSError when the disk is full; finished samples stay
        saved.
        """
        prompts = await stage_prompts(problems, self._chat_format)
        request = SampleRequest(problems=problems, prompts=prompts, samples=samples)
        context = self._rollout_context(sampling, seed)
        saved = await asyncio.to_thread(cache.load, request)
        await self._wait_for_lengths()
        saved |= truncate_long(request, saved, cache.add, context)
        for result in saved.values():
            on_sample(result, saved=True)
        self._ctx.report_rollouts(len(saved), len(request.pairs))
        count = self._progress_counter(len(saved), len(request.pairs), every=samples)

        def on_new_sample(result: SampleResult) -> None:
            self._ctx.check_current()
            on_sample(result, saved=False)
            count()

        await self._ctx.device.to_engines()
        await self._check_sandbox()
        results = await self._unless_stopped(
            sample_missing(request, saved=saved, save=cache.add, context=context, on_sample=on_new_sample)
        )
        _check_lost(results)
        return results

    async def _check_sandbox(self) -> None:
        """Before the first rollout, raise StageFailed if the sandbox cannot import a function of the job."""
        if self._checked or not self._ctx.job.spec.needs_judge:
            return
        try:
            packages = self._ctx.job.spec.judge.packages
            check = check_imports(self._chat_format.tools, self._rewards, packages=packages, judge=self._judge)
            await self._unless_stopped(check)
        except SourceError as error:
            raise StageFailed("BadConfiguration", str(error), retryable=False) from error
        except JudgeUnavailable as error:
            raise StageFailed("JudgeUnavailable", str(error), retryable=True) from error
        self._checked = True

    def _rollout_context(
        self,
        sampling: Sampling,
        seed: tuple[int | str, ...],
        *,
        later_versions: bool = False,
        records_experts: bool = False,
    ) -> RolloutContext:
        spec = self._ctx.job.spec
        agent = Agent.from_spec(spec, self._chat_format, sampling)
        return RolloutContext(
            agent=agent,
            pool=self._pool,
            judge=self._judge,
            rewards=self._rewards,
            programs=self._programs,
            workers=self._workers,
            seed=seed,
            later_versions=later_versions,
            records_experts=records_experts,
        )

    def _progress_counter(self, done: int, total: int, *, every: int) -> Callable[[], None]:
        """Return a function that counts one finished rollout, and reports the progress after each `every` rollouts."""

        def count() -> None:
            nonlocal done
            done += 1
            if done % max(1, every) == 0:
                self._ctx.report_rollouts(done, total)

        return count

    async def _wait_for_lengths(self) -> None:
        """Wait until the job's own engines take its sequences."""
        if not self._ctx.endpoints.served_model:
            await self._unless_stopped(wait_for_lengths(self._ctx.job, self._pool))

    async def _unless_stopped(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of `work`. A stop request cancels `work` and raises SuspendRequested.

        Raises StageFailed for a prompt that is too long (another attempt would fail as well), and for a rollout worker
        that keeps dying.
        """
        try:
            return await self._ctx.unless_stopped(work)
        except PromptTooLong as error:
            raise StageFailed("BadData", str(error), retryable=False) from error
        except WorkerLost as error:
            raise StageFailed("Crashed", str(error), retryable=True) from error


def _check_lost(rollouts: Sequence[Trajectory] | Sequence[SampleResult]) -> None:
    """Raise StageFailed when too many rollouts were lost; the cause of most of them decides the reason."""
    if loss := too_many_lost(rollouts):
        lost_to, message = loss
        reason = _FAILURE_REASONS.get(lost_to, "EngineUnavailable")
        raise StageFailed(reason, message, retryable=lost_to != "checker")


async def _find_engines(service: str) -> frozenset[str] | None:
    """Return the base URLs of the engines behind a service; None if the lookup failed."""
    hosts = await resolve_addresses(service)
    return None if hosts is None else frozenset(f"http://{host}" for host in hosts)
