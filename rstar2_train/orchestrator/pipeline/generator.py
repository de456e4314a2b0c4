"""The generator: samples the batches of a GRPO stage, and streams each complete group to the disk.

Batch s (from 0) is trained on by version s. It starts when the engines serve version s - maxStaleness. Engines never
return to an older version, so each of its tokens is at most `maxStaleness` versions old when it is trained on. No
rollout is discarded for its age.

A complete group is scored, selected and appended to the log of its batch. When the last group finishes, the log becomes
the Parquet file of the step. A restarted attempt uses the stored groups and samples only the missing ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from rstar2_train.api.stages import GRPOSettings
from rstar2_train.data.problems import Problem
from rstar2_train.data.sampler import PromptSampler
from rstar2_train.orchestrator.context import StageContext
from rstar2_train.orchestrator.initial_policy import version_step
from rstar2_train.orchestrator.pipeline.group_log import LOG_SUFFIX, GroupLog
from rstar2_train.orchestrator.pipeline.remote_teacher import RemoteTeacher
from rstar2_train.orchestrator.pipeline.served_version import ServedVersion
from rstar2_train.orchestrator.rollout_session import RolloutSession
from rstar2_train.orchestrator.selection import regroup_stored, select_group
from rstar2_train.rollout import trajectory_store
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.rollout.trajectory_store import TrajectoryStoreError
from rstar2_train.trainer.types import TokenSequence
from rstar2_train.utils.files import write_atomically
from rstar2_train.weights.route_format import RouteFormat

log = logging.getLogger(__name__)

Group = list[Trajectory]
MOST_DRAWS = 4
"""With dynamic sampling, the largest number of problems of a step, in multiples of `promptsPerStep`."""


@dataclass(frozen=True)
class Batch:
    """The rollouts of one step; stored on disk."""

    step: int
    """Number of the step, from 0."""
    groups: list[Group]
    """All rollouts, one list per prompt, in the order of the step's prompts."""
    trained: list[list[TokenSequence]]
    """The kept rollouts of the groups whose rewards differ."""
    seconds: float
    """Seconds from the start of the batch to its last group."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the engines and of the event loop while it was sampled."""


BatchQueue = asyncio.Queue[asyncio.Future[Batch]]
"""Batches in step order; each becomes complete in the queue, or has its error."""


class Generator:
    """Fills the queue with the batches of a stage, from a first step to the last."""

    def __init__(
        self,
        ctx: StageContext,
        settings: GRPOSettings,
        rollouts: RolloutSession,
        problems: Sequence[Problem],
        prompts: Mapping[str, array[int]],
        served: ServedVersion,
        *,
        routes: RouteFormat | None = None,
        teacher: RemoteTeacher | None = None,
    ) -> None:
        """`prompts`: the tokens of each problem's prompt, by id. `routes`: of a mixture whose experts are replayed.

        `teacher`: rates the tokens of each batch; None: the ranks do, or the objective has no teacher.
        """
        self._ctx = ctx
        self._settings = settings
        self._rollouts = rollouts
        self._problems = problems
        self._prompts = prompts
        self._served = served
        self._routes = routes
        self._teacher = teacher
        self._order = PromptSampler(len(problems), settings.prompts_per_step, ctx.seed, ctx.stage.name)

    @contextlib.asynccontextmanager
    async def batches(self, first: int) -> AsyncIterator[BatchQueue]:
        """Sample the batches from step `first` in the background; on exit stop the rollouts of those not yet used."""
        queue: BatchQueue = asyncio.Queue(maxsize=max(1, self._settings.max_staleness))
        started: set[asyncio.Future[Batch]] = set()
        filling = asyncio.create_task(self._fill(queue, started, first))
        try:
            yield queue
        finally:
            tasks: list[asyncio.Future[Any]] = [filling, *started]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _fill(self, queue: BatchQueue, started: set[asyncio.Future[Batch]], first: int) -> None:
        """Start each batch when its version is served. An error ends the queue as its last entry."""
        try:
            for step in range(first, self._settings.steps):
                await self._served.wait_for(step - self._settings.max_staleness)
                await queue.put(self._start(step, started))
        except Exception as error:
            failed: asyncio.Future[Batch] = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            started.add(failed)  # `batches` reads its error if the stage ends before it takes this entry
            await queue.put(failed)

    def _start(self, step: int, started: set[asyncio.Future[Batch]]) -> asyncio.Future[Batch]:
        """Start a batch. A complete one has gigabytes: only the queue and its consumer hold it."""

        def release(task: asyncio.Future[Batch]) -> None:
            if not task.cancelled() and task.exception() is None:  # `batches` reads the error of any other
                started.discard(task)

        task = asyncio.create_task(self._batch(step))
        started.add(task)
        task.add_done_callback(release)
        return task

    async def _batch(self, step: int) -> Batch:
        """Return the batch, rated by the teacher if it is behind an endpoint."""
        batch = await self._sampled(step)
        if self._teacher is None:
            return batch
        started = time.monotonic()
        trained = await self._ctx.unless_stopped(self._teacher.rate(batch.trained))
        metrics = batch.metrics | {"time/teacher_seconds": time.monotonic() - started}
        return replace(batch, trained=trained, metrics=metrics)

    async def _sampled(self, step: int) -> Batch:
        """Read the batch if an earlier attempt stored it; otherwise sample its missing groups and store them.

        After a change of the settings another selection may train: the file gets it.
        """
        started = time.monotonic()
        problems = self._candidates(step)
        groups = await self._stored(step, problems)
        if groups is None:
            return await self._sample(step, problems, started)
        before = list(map(_marks, groups))
        selected = [self._select(group, step) for group in groups]
        if before != list(map(_marks, groups)):
            self._ctx.check_current()
            file = trajectory_store.step_path(self._ctx.folder.trajectories, step + 1)
            await asyncio.to_thread(trajectory_store.write, file, itertools.chain.from_iterable(groups))
        return Batch(step, groups, [group for group in selected if group], time.monotonic() - started)

    def _candidates(self, step: int) -> list[Problem]:
        """Return the distinct problems that the step may draw, in the order of use.

        Without dynamic sampling it draws all of them. A function of the step number alone, so that a restart draws the
        same problems.
        """
        if not self._settings.dynamic_sampling:
            return [self._problems[index] for index in self._order.at(step)]
        draws = (self._order.at(step * MOST_DRAWS + draw) for draw in range(MOST_DRAWS))
        return [self._problems[index] for index in dict.fromkeys(index for draw in draws for index in draw)]

    async def _stored(self, step: int, problems: Sequence[Problem]) -> list[Group] | None:
        """Return the groups of a complete stored batch, or None."""
        file = trajectory_store.step_path(self._ctx.folder.trajectories, step + 1)
        if not file.exists():
            return None
        try:
            stored = await asyncio.to_thread(trajectory_store.read, file)
        except TrajectoryStoreError as error:
            log.warning("step %d: sampling again: %s", step + 1, error)
            return None
        if self._settings.dynamic_sampling:
            drawn = {trajectory.prompt_id for trajectory in stored}
            problems = [problem for problem in problems if problem.id in drawn]
        groups = regroup_stored(stored, problems=problems, rollouts_per_prompt=self._settings.rollouts_per_prompt)
        if groups is None:
            log.warning("step %d: the stored rollouts have other settings or data; sampling again", step + 1)
        elif not all(map(self._has_experts, groups)):
            log.warning("step %d: the stored rollouts lack the engines' experts; sampling again", step + 1)
            groups = None
        elif not all(self._recent(group, step) for group in groups):
            log.warning("step %d: the stored rollouts exceed maxStaleness; sampling again", step + 1)
            groups = None
        else:
            log.info("step %d: using the stored rollouts; repeating only the update", step + 1)
        return groups

    async def _sample(self, step: int, problems: Sequence[Problem], started: float) -> Batch:
        """Sample and store the groups that the log of the batch lacks."""
        ctx, settings = self._ctx, self._settings
        group_log = GroupLog(trajectory_store.step_path(ctx.folder.trajectories, step + 1))
        groups: dict[str, Group] = {}
        selected: dict[str, list[TokenSequence] | None] = {}
        writes: list[asyncio.Future[None]] = []
        writing = asyncio.Lock()  # first come, first served: the log has the order in which the groups finished

        def add(group: Group) -> None:
            groups[group[0].prompt_id] = group
            selected[group[0].prompt_id] = self._select(group, step)

        async def append(group: Group) -> None:
            async with writing:
                await asyncio.to_thread(group_log.append, group)

        def accept(group: Group) -> None:
            ctx.check_current()
            add(group)
            writes.append(asyncio.create_task(append(group)))

        for group in await asyncio.to_thread(group_log.read):
            if self._usable(group, problems) and self._has_experts(group) and self._recent(group, step):
                before = _marks(group)
                add(group)
                if _marks(group) != before:
                    await append(group)
        stored = set(groups)
        if groups:
            log.info("step %d: %d groups are stored; sampling the others", step + 1, len(groups))
        try:
            while missing := self._next_draw(problems, selected):
                await self._rollouts.sample_groups(
                    missing,
                    samples=settings.rollouts_per_prompt,
                    prompts=self._prompts,
                    sampling=settings.sampling,
                    seed=ctx.step_seed(step),
                    on_group=accept,
                    later_versions=settings.max_staleness > 0,
                    records_experts=self._routes is not None,
                )
        finally:
            await asyncio.gather(*writes)
        seconds = time.monotonic() - started
        sampled = [group for prompt_id, group in groups.items() if prompt_id not in stored]
        metrics = self._rollouts.drain_metrics(sampled, seconds=None if settings.max_staleness else seconds)
        ctx.check_current()
        drawn = [problem.id for problem in problems if problem.id in groups]
        sealing = asyncio.create_task(asyncio.to_thread(group_log.seal, drawn))
        try:
            await asyncio.shield(sealing)
        finally:
            await asyncio.wait({sealing})  # the thread of a cancelled batch still writes its file
        trained = [sequences for prompt_id in drawn if (sequences := selected[prompt_id])]
        return Batch(step, [groups[prompt_id] for prompt_id in drawn], trained, seconds, metrics)

    def _next_draw(
        self, problems: Sequence[Problem], selected: Mapping[str, list[TokenSequence] | None]
    ) -> list[Problem]:
        """Return the problems to sample next, given the selected groups; none when the batch is complete.

        Dynamic sampling draws as many problems as groups are missing, so that no group is left over.
        """
        missing = [problem for problem in problems if problem.id not in selected]
        if not self._settings.dynamic_sampling:
            return missing
        trainable = sum(sequences is not None for sequences in selected.values())
        return missing[: max(0, self._settings.prompts_per_step - trainable)]

    def _select(self, group: Group, step: int) -> list[TokenSequence] | None:
        settings = self._settings
        staleness = partial(self._staleness, step) if settings.max_staleness else None
        selected = select_group(group, settings=settings, seed=self._ctx.step_seed(step), staleness=staleness)
        if selected is None or self._routes is not None:
            return selected
        return [replace(sequence, routes=None) for sequence in selected]

    def _staleness(self, step: int, version: str) -> int:
        """Return how many steps older than those of `step` the weights of a version are; 0 for an unknown version."""
        sampled = version_step(self._ctx.stage, version)
        return 0 if sampled is None else step - sampled

    def _has_experts(self, group: Group) -> bool:
        """Return whether a stored group has the experts of its sampled tokens, if they are replayed."""
        if self._routes is None:
            return True
        sampled = [segment for trajectory in group for segment in trajectory.segments if segment.versions]
        return all(segment.routes for segment in sampled)

    def _recent(self, group: Group, step: int) -> bool:
        """Return whether every token of a stored group is within maxStaleness at `step`."""
        versions = {
            version for trajectory in group for segment in trajectory.segments for version, _ in segment.version_spans()
        }
        return all(0 <= self._staleness(step, version) <= self._settings.max_staleness for version in versions)

    def discard_other_sampling(self, step: int) -> None:
        """Delete the stored rollouts of the steps after `step` if temperature or limits are others by now.

        The update would compare their probabilities with those of another temperature.
        """
        file, present = self._ctx.folder.sampling_file, self._settings.sampling.model_dump_json()
        if file.exists() and file.read_text(encoding="utf-8") != present:
            log.warning("the stored rollouts have other sampling settings; sampling again after step %d", step)
            self.discard_unused(step)
        write_atomically(file, present)

    def discard_unused(self, step: int) -> None:
        """Delete the stored rollouts of the steps after `step`: the stage finished before it trained on them.

        Delete all logs of batches too: a kill between the file of a step and the deletion of its log leaves the log.
        """
        for path in self._ctx.folder.trajectories.glob("step-*.*"):
            number = path.stem.removeprefix("step-")
            if number.isdigit() and (int(number) > step or path.suffix == LOG_SUFFIX):
                path.unlink()

    def _usable(self, group: Group, problems: Sequence[Problem]) -> bool:
        """Return whether a stored group belongs to the batch. One with a lost rollout is sampled again."""
        return (
            any(problem.id == group[0].prompt_id for problem in problems)
            and len(group) == self._settings.rollouts_per_prompt
            and not any(trajectory.failed for trajectory in group)
        )


def _marks(group: Group) -> list[tuple[bool, str]]:
    """Return the selection of each rollout of a group."""
    return [(trajectory.kept, trajectory.selection_reason) for trajectory in group]
