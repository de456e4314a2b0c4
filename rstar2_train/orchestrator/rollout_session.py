"""The sampling side of a stage: engines brought to the step's weights, the judge, and groups of scored trajectories.

Shared by the GRPO, Filter and Evaluate drivers. A trajectory that infrastructure lost is marked so, never scored 0;
when too many of a batch are lost, the attempt ends as retryable rather than train on what is left.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from rstar2_train.api.contracts import Reason, StageFailed
from rstar2_train.api.stages import Sampling
from rstar2_train.data.problems import Problem
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.evaluation.sampling import SampleRequest, SampleStore, sample_missing, too_many_lost
from rstar2_train.inference.client import EngineRejected, EngineUnavailable
from rstar2_train.inference.pool import EnginePool
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.orchestrator.context import StageContext, SuspendRequested
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.collector import PromptTooLong, RolloutContext, collect
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.trainer.trainer_group import TrainerGroup
from rstar2_train.utils.dns import addresses, split_address

Result = TypeVar("Result")
KEPT_VERSIONS = 2
"""Weight folders kept: the engines' present one, and the one before."""


class RolloutSession:
    """Engines and judge of one stage attempt."""

    def __init__(self, ctx: StageContext, protocol: ChatFormat) -> None:
        spec, service = ctx.job.spec, ctx.endpoints.engine_service
        if service:
            split_address(service)
        self._ctx = ctx
        self._protocol = protocol
        self._pool = EnginePool(
            ctx.endpoints.engines,
            token=os.environ.get("RSTAR2_ENGINE_TOKEN", ""),
            find=partial(_find_engines, service) if service else None,
            admission=spec.rollout.admission,
        )
        self._judge = JudgeClient(
            ctx.endpoints.judge,
            token=os.environ.get("RSTAR2_JUDGE_TOKEN"),
            patience_seconds=self._pool.times.patience,
        )

    async def __aenter__(self) -> Self:
        await self._pool.__aenter__()
        await self._judge.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._judge.__aexit__(kind, error, trace)
        await self._pool.__aexit__(kind, error, trace)

    async def push(self, group: TrainerGroup, version: str) -> None:
        """Export the trainer's weights and make the engines serve them as `version`."""
        folder = self._ctx.state.weights / version
        await asyncio.to_thread(group.export, folder, durable=False)
        await self.push_folder(folder, version)
        await asyncio.to_thread(_prune, self._ctx.state.weights, keep=folder)

    async def push_folder(self, folder: Path, version: str) -> None:
        """Make the engines serve the model in `folder` as `version`; at least one has confirmed it on return.

        Raises Suspend when asked to stop: where no engine comes up, that may be the reason.
        """
        try:
            await self._until_stopped(self._pool.update_weights(folder, version))
        except EngineUnavailable as error:
            raise StageFailed("EngineUnavailable", str(error), retryable=True) from error
        except EngineRejected as error:
            raise StageFailed("BadConfiguration", str(error), retryable=False) from error

    async def sample(
        self, problems: Sequence[Problem], *, samples: int, sampling: Sampling, seed: tuple[int | str, ...]
    ) -> list[list[Trajectory]]:
        """`samples` scored trajectories of each problem, in the problems' order. Raises Suspend when asked to stop."""
        count = self._counter(0, len(problems) * samples, every=samples)
        sampler = self._sampler(sampling, seed)
        groups = await self._until_stopped(
            collect(problems, samples=samples, sampler=sampler, on_done=lambda _: count())
        )
        _check_lost([trajectory for group in groups for trajectory in group])
        return groups

    async def measure(
        self,
        problems: Sequence[Problem],
        *,
        samples: int,
        sampling: Sampling,
        seed: tuple[int | str, ...],
        store: SampleStore,
    ) -> list[SampleResult]:
        """Return `samples` samples of each problem, in order. Samples that `store` lacks are generated and saved there.

        Raises SuspendRequested on a stop request, and OSError when the disk is full; finished samples stay saved.
        """
        prompts = {problem.id: self._protocol.prompt_ids(problem.problem, as_is=problem.as_is) for problem in problems}
        request = SampleRequest(problems=problems, prompts=prompts, samples=samples)
        saved = await asyncio.to_thread(store.load, request)
        count = self._counter(len(saved), len(problems) * samples, every=samples)

        def on_sample(_: SampleResult) -> None:
            self._ctx.check_current()
            count()

        context = self._sampler(sampling, seed)
        rows = await self._until_stopped(
            sample_missing(request, saved=saved, store=store, context=context, on_sample=on_sample)
        )
        _check_lost(rows)
        return rows

    def _sampler(self, sampling: Sampling, seed: tuple[int | str, ...]) -> RolloutContext:
        spec = self._ctx.job.spec
        return RolloutContext(
            pool=self._pool,
            judge=self._judge,
            protocol=self._protocol,
            sampling=sampling,
            rollout=spec.rollout,
            limits=spec.judge.limits,
            seed=seed,
        )

    def _counter(self, done: int, total: int, *, every: int) -> Callable[[], None]:
        """What to call when a rollout has ended: shows how many have, after each `every`."""

        def count() -> None:
            nonlocal done
            done += 1
            if done % max(1, every) == 0:
                self._ctx.rollouts_done(done, total)

        return count

    async def _until_stopped(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of `work`, unless the driver is asked to stop before: then it is cancelled, and Suspend raised.

        Raises StageFailed for a prompt that is too long: another attempt would find it as long.
        """
        working = asyncio.create_task(work)
        stop = asyncio.create_task(self._ctx.stopping.wait())
        await asyncio.wait({working, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not working.done():
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            raise SuspendRequested
        try:
            return working.result()
        except PromptTooLong as error:
            raise StageFailed("BadData", str(error), retryable=False) from error


def _check_lost(rows: Sequence[Trajectory] | Sequence[SampleResult]) -> None:
    why = too_many_lost(rows)
    if why:
        reason: Reason = "JudgeUnavailable" if "judge" in why.lower() else "EngineUnavailable"
        raise StageFailed(reason, why, retryable=True)


async def _find_engines(service: str) -> frozenset[str] | None:
    found = await addresses(service)
    return None if found is None else frozenset(f"http://{address}" for address in found)


def _prune(weights: Path, *, keep: Path) -> None:
    """Delete all but the newest weight folders."""
    folders = sorted((path for path in weights.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
    for folder in folders[:-KEPT_VERSIONS]:
        if folder != keep:
            shutil.rmtree(folder, ignore_errors=True)
