"""Generates the missing samples of a measurement and saves each one as it finishes.

Shared by the stages Filter and Evaluate and by validation runs.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rstar2_train.data.problems import Problem
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.rollout.collector import MAX_LOST_FRACTION, collect_trajectories
from rstar2_train.rollout.context import RolloutContext
from rstar2_train.rollout.trajectory import LostTo, Trajectory

SampleKey = tuple[str, int]
"""Problem id and sample number, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """The samples of one measurement: `samples` samples of each problem."""

    problems: Sequence[Problem]
    """Problems with distinct ids."""
    prompts: Mapping[str, array[int]]
    """Token ids of the prompt, by problem id."""
    samples: int
    """Samples per problem."""

    @property
    def pairs(self) -> list[tuple[Problem, int]]:
        """Every problem with each of its sample numbers, in the order of `problems`."""
        return [(problem, sample) for problem in self.problems for sample in range(self.samples)]


async def sample_missing(
    request: SampleRequest,
    *,
    saved: Mapping[SampleKey, SampleResult],
    save: Callable[[Trajectory], SampleResult],
    context: RolloutContext,
    on_sample: Callable[[SampleResult], None],
) -> list[SampleResult]:
    """Sample the pairs of `request` that are not in `saved`, and return the results of all pairs in request order.

    `saved`: the samples that exist. `save`: saves a finished trajectory and returns its result (`SampleCache.add`).
    `on_sample`: called with each new sample after it is saved.
    A trajectory is released as soon as it is saved. Raises as `collect_trajectories` does, and OSError when a sample
    cannot be saved.
    """
    results = dict(saved)

    def on_done(trajectory: Trajectory) -> None:
        results[trajectory.prompt_id, trajectory.sample] = result = save(trajectory)
        on_sample(result)

    missing = [(problem, sample) for problem, sample in request.pairs if (problem.id, sample) not in saved]
    await collect_trajectories(missing, prompts=request.prompts, context=context, on_done=on_done)
    return [results[problem.id, sample] for problem, sample in request.pairs]


def too_many_lost(rows: Sequence[SampleResult] | Sequence[Trajectory]) -> tuple[LostTo | None, str] | None:
    """Return the main cause and an error message if more than `MAX_LOST_FRACTION` of the samples were lost. Pure.

    The main cause is that of the most lost samples, and the earlier one of two equal ones.
    """
    lost = [row for row in rows if row.failed]
    if len(lost) <= MAX_LOST_FRACTION * len(rows):
        return None
    ((cause, count),) = Counter(row.lost_to for row in lost).most_common(1)
    error = next(row.error for row in lost if row.lost_to == cause)
    return cause, f"{len(lost)} of {len(rows)} samples were lost, {count} to the {cause}; first error: {error}"
