"""Asks a model what is not kept yet, and keeps each sample as it ends: the core of `rstar2 eval`, `rstar2 filter` and
the stages Filter and Evaluate, which differ in what they make of the records that come back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from rstar2_train.data.problems import Problem
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.rollout.collector import MAX_LOST_FRACTION, RolloutContext, ask
from rstar2_train.rollout.trajectory import Trajectory


class SampleStore(Protocol):
    """Where samples are kept as they end: `samples.Samples`, or the slices of a Filter stage."""

    def finished(
        self, problems: Sequence[Problem], prompts: Mapping[str, Sequence[int]], *, samples: int
    ) -> dict[tuple[str, int], SampleResult]:
        """What is there of `samples` samples of each problem, by problem id and number."""
        ...

    def add(self, trajectory: Trajectory) -> SampleResult:
        """Keep a sample that has ended; returns its record."""
        ...


async def sample_missing(
    problems: Sequence[Problem],
    *,
    prompts: Mapping[str, list[int]],
    count: int,
    have: Mapping[tuple[str, int], SampleResult],
    samples: SampleStore,
    sampler: RolloutContext,
    on_done: Callable[[SampleResult], None],
) -> list[SampleResult]:
    """`count` samples of each problem, in the order of `problems` and of their numbers; those of `have` are not asked.

    `prompts`: token ids by problem id. `have`: what `samples.finished` returned for them. `on_done`: called with each
    new sample once it is kept. A trajectory is not held after its end. Raises as `rollout.collect.ask` does, and
    OSError when a sample cannot be kept.
    """
    rows = dict(have)
    wanted = [(problem, sample) for problem in problems for sample in range(count)]

    def keep(trajectory: Trajectory) -> None:
        rows[trajectory.prompt_id, trajectory.sample] = scored = samples.add(trajectory)
        on_done(scored)

    missing = [(problem, sample) for problem, sample in wanted if (problem.id, sample) not in have]
    await ask(missing, prompts=prompts, sampler=sampler, on_done=keep)
    return [rows[problem.id, sample] for problem, sample in wanted]


def too_many_lost(rows: Sequence[SampleResult] | Sequence[Trajectory]) -> str:
    """What to say when infrastructure lost so many samples that the rest says nothing; else empty. Pure."""
    lost = [row for row in rows if row.failed]
    if len(lost) <= MAX_LOST_FRACTION * len(rows):
        return ""
    return f"{len(lost)} of {len(rows)} samples were lost, the first to: {lost[0].error}"
