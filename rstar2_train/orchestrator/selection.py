"""From a step's rollouts to what the trainer learns from: Resample-on-Correct, then advantages. Pure.

Marks every trajectory with what became of it (kept or not, and why), so that the Parquet file of the step says all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rstar2_train.api.stages import GRPOSettings
from rstar2_train.data.problems import Problem
from rstar2_train.grpo_roc.advantage import group_advantages
from rstar2_train.grpo_roc.resample import RolloutStats, resample
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.trainer.types import TrainSequence


@dataclass(frozen=True)
class TrainingBatch:
    """What a step trains on."""

    groups: list[list[TrainSequence]]
    """The groups with variance, each with its kept rollouts."""
    lost: int
    """Rollouts that infrastructure lost."""


def select(groups: Sequence[Sequence[Trajectory]], *, settings: GRPOSettings, seed: int, step: int) -> TrainingBatch:
    """Mark the trajectories in place and return the training sequences. Paper §2.2.3, eq. 7."""
    trained = []
    for group in groups:
        stats = [_stats(trajectory) for trajectory in group]
        chosen = resample(
            stats,
            keep=settings.keep_per_prompt,
            mode=settings.resample.mode,
            min_per_class=settings.resample.min_per_class,
            seed=(seed, step, group[0].prompt_id),
        )
        for index, trajectory in enumerate(group):
            trajectory.kept = chosen.trainable and index in chosen.kept
            trajectory.kept_reason = chosen.reasons[index]
        if chosen.trainable:
            kept = [group[index] for index in chosen.kept]
            advantages = group_advantages([trajectory.reward for trajectory in kept])
            trained.append([_sequence(t, advantage) for t, advantage in zip(kept, advantages, strict=True)])
    return TrainingBatch(trained, sum(trajectory.failed for group in groups for trajectory in group))


def stored_groups(
    stored: Sequence[Trajectory], *, problems: Sequence[Problem], rollouts_per_prompt: int
) -> list[list[Trajectory]] | None:
    """The groups of a step that was sampled before, in the order of its problems.

    None when they are not this step's: written for other data, or with another number of rollouts.
    """
    by_prompt: dict[str, list[Trajectory]] = {problem.id: [] for problem in problems}
    for trajectory in stored:
        by_prompt.setdefault(trajectory.prompt_id, []).append(trajectory)
    groups = list(by_prompt.values())
    whole = len(groups) == len(problems) and all(len(group) == rollouts_per_prompt for group in groups)
    return groups if whole else None


def _stats(trajectory: Trajectory) -> RolloutStats:
    return RolloutStats(
        reward=trajectory.reward, penalty=trajectory.p_err + trajectory.p_format, failed=trajectory.failed
    )


def _sequence(trajectory: Trajectory, advantage: float) -> TrainSequence:
    ids, mask, logprobs = trajectory.response()
    return TrainSequence(
        prompt_ids=trajectory.prompt_ids,
        response_ids=ids,
        mask=mask,
        engine_logprobs=logprobs,
        advantage=advantage,
    )
