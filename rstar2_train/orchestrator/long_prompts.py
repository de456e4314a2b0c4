"""Prompts of a measurement that leave no space for the response: they count as wrong, and do not end the job."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.evaluation.sampling import SampleKey, SampleRequest
from rstar2_train.rollout.collector import fits_engines, truncated_trajectory
from rstar2_train.rollout.context import RolloutContext
from rstar2_train.rollout.trajectory import Trajectory

log = logging.getLogger(__name__)

NAMED = 20
"""Prompts that the log names."""


def truncate_long(
    request: SampleRequest,
    saved: Mapping[SampleKey, SampleResult],
    save: Callable[[Trajectory], SampleResult],
    context: RolloutContext,
) -> dict[SampleKey, SampleResult]:
    """Save the samples of the prompts that leave no space for the response, and name the prompts in the log."""
    long = {problem.id for problem in request.problems if not fits_engines(len(request.prompts[problem.id]), context)}
    if long:
        named = ", ".join(sorted(long)[:NAMED])
        log.warning(
            "%d of %d prompts plus maxResponseTokens exceed the engines' max-model-len; they count as wrong: %s",
            len(long), len(request.problems), named,
        )  # fmt: skip
    return {
        (problem.id, sample): save(truncated_trajectory(problem, request.prompts[problem.id], sample))
        for problem, sample in request.pairs
        if problem.id in long and (problem.id, sample) not in saved
    }
