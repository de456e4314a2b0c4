"""The sampling side of a stage: engines brought to the step's weights, the judge, and groups of scored trajectories.

Shared by the GRPO, Filter and Evaluate drivers. A trajectory that infrastructure lost is marked so, never scored 0;
when too many of a batch are lost, the attempt ends as retryable rather than train on what is left.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from rstar2_train.curriculum.context import Context, Suspend
from rstar2_train.data.problems import Problem
from rstar2_train.job.contracts import Reason, StageFailed
from rstar2_train.job.service import addresses, split_address
from rstar2_train.job.stages import Sampling
from rstar2_train.judge.client import JudgeClient
from rstar2_train.rollout.collect import collect
from rstar2_train.rollout.engine import EngineRejected, EngineUnavailable
from rstar2_train.rollout.protocol import Protocol
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.rollout.weights import EnginePool
from rstar2_train.train.group import TrainerGroup

MOST_LOST = 0.25
"""Share of a batch's rollouts that infrastructure may lose; beyond it the attempt fails, to be retried."""
KEPT_VERSIONS = 2
"""Weight folders kept: the engines' present one, and the one before."""


class Rollouts:
    """Engines and judge of one stage attempt."""

    def __init__(self, ctx: Context, protocol: Protocol) -> None:
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
        """Make the engines serve the model in `folder` as `version`; at least one has confirmed it on return."""
        try:
            await self._pool.update_weights(folder, version)
        except EngineUnavailable as error:
            raise StageFailed("EngineUnavailable", str(error), retryable=True) from error
        except EngineRejected as error:
            raise StageFailed("BadConfiguration", str(error), retryable=False) from error

    async def sample(
        self, problems: Sequence[Problem], *, samples: int, sampling: Sampling, seed: tuple[int | str, ...]
    ) -> list[list[Trajectory]]:
        """`samples` scored trajectories of each problem, in the problems' order. Raises Suspend when asked to stop."""
        ctx = self._ctx
        done = 0

        def count(_: Trajectory) -> None:
            nonlocal done
            done += 1
            if done % max(1, samples) == 0:
                ctx.rollouts_done(done, len(problems) * samples)

        work = asyncio.create_task(
            collect(
                problems,
                samples=samples,
                sampling=sampling,
                pool=self._pool,
                judge=self._judge,
                protocol=self._protocol,
                rollout=ctx.job.spec.rollout,
                limits=ctx.job.spec.judge.limits,
                seed=seed,
                on_done=count,
            )
        )
        stop = asyncio.create_task(ctx.stopping.wait())
        await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not work.done():
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            raise Suspend
        groups = work.result()
        self._check_lost(groups)
        return groups

    def _check_lost(self, groups: list[list[Trajectory]]) -> None:
        rows = [trajectory for group in groups for trajectory in group]
        lost = [trajectory for trajectory in rows if trajectory.failed]
        if len(lost) > MOST_LOST * len(rows):
            why = f"{len(lost)} of {len(rows)} rollouts were lost, the first to: {lost[0].error}"
            reason: Reason = "JudgeUnavailable" if "judge" in lost[0].error.lower() else "EngineUnavailable"
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
