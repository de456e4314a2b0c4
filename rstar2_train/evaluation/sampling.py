"""Generates the missing samples of a measurement and saves each one as it finishes.

Shared by `rstar2 eval`, `rstar2 filter` and the stages Filter and Evaluate. They differ in the `SampleStore` that saves
the samples and in the use of the results.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rstar2_train.data.problems import Problem
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.rollout.collector import MAX_LOST_FRACTION, collect_trajectories
from rstar2_train.rollout.context import RolloutContext
from rstar2_train.rollout.trajectory import Trajectory

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


class SampleStore(Protocol):
    """Saves samples as they finish: `sample_cache.SampleCache`, or the slices of a Filter stage."""

    def load(self, request: SampleRequest) -> dict[SampleKey, SampleResult]:
        """Return the saved samples of the request."""
        ...

    def add(self, trajectory: Trajectory) -> SampleResult:
        """Save a finished sample and return its result."""
        ...


async def sample_missing(
    request: SampleRequest,
    *,
    saved: Mapping[SampleKey, SampleResult],
    store: SampleStore,
    context: RolloutContext,
    on_sample: Callable[[SampleResult], None],
) -> list[SampleResult]:
    """Sample the pairs of `request` that are not in `saved`, and return the results of all pairs in request order.

    `saved`: the return value of `store.load(request)`. `on_sample`: called with each new sample after `store` saved it.
    A trajectory is released as soon as it is saved. Raises as `collect_trajectories` does, and OSError when a sample
    cannot be saved.
    """
    results = dict(saved)

    def save(trajectory: Trajectory) -> None:
        results[trajectory.prompt_id, trajectory.sample] = result = store.add(trajectory)
        on_sample(result)

    missing = [(problem, sample) for problem, sample in request.pairs if (problem.id, sample) not in saved]
    await collect_trajectories(missing, prompts=request.prompts, context=context, on_done=save)
    return [results[problem.id, sample] for problem, sample in request.pairs]


def too_many_lost(rows: Sequence[SampleResult] | Sequence[Trajectory]) -> str:
    """Return an error message if more than `MAX_LOST_FRACTION` of the samples were lost, else "". Pure."""
    lost = [row for row in rows if row.failed]
    if len(lost) <= MAX_LOST_FRACTION * len(rows):
        return ""
    return f"{len(lost)} of {len(rows)} samples were lost to infrastructure failures; first error: {lost[0].error}"
