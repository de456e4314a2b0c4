"""Turns the rollouts of a group into training sequences: Resample-on-Correct, shaping, then advantages. Pure.

Marks each trajectory with its selection (kept or dropped, and the reason), so that the step's Parquet file is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rstar2_train.api.stages import GRPOSettings
from rstar2_train.data.problems import Problem
from rstar2_train.grpo_roc.advantage import shaped_reward
from rstar2_train.grpo_roc.objectives import functions_of
from rstar2_train.grpo_roc.resample import RolloutStats, resample
from rstar2_train.grpo_roc.tokens import GroupRewards
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.trainer.types import TokenSequence


def select_group(
    group: Sequence[Trajectory],
    *,
    settings: GRPOSettings,
    seed: tuple[int | str, ...],
    staleness: Callable[[str], int] | None = None,
) -> list[TokenSequence] | None:
    """Mark the trajectories of one group in place; return its training sequences (paper §2.2.3, eq. 7).

    `seed` names the step; with the problem's id it seeds the draw.
    `staleness`: returns the age of a weight version at the step, in steps; None: every token has age 0. Return None for
    a group whose kept rewards are equal before the shaping, unless the objective has a teacher: it has no advantage.
    Truncated rollouts that the objective masks, and those without a sampled token, count in the advantages of the
    others.
    """
    selection = resample(
        [_stats(trajectory) for trajectory in group],
        keep=settings.keep_per_prompt,
        mode=settings.resample.mode,
        min_per_class=settings.resample.min_per_class,
        equal_rewards_train=settings.objective.teacher is not None,
        seed=(*seed, group[0].prompt_id),
    )
    for index, trajectory in enumerate(group):
        trajectory.kept = selection.trainable and index in selection.kept
        trajectory.selection_reason = selection.reasons[index]
        if trajectory.kept and (reason := _untrained(trajectory, settings)):
            trajectory.kept, trajectory.selection_reason = False, reason
    if not selection.trainable:
        return None
    kept = [group[index] for index in selection.kept]
    rewards = GroupRewards(
        [_reward(trajectory, settings) for trajectory in kept], [trajectory.response_tokens for trajectory in kept]
    )
    advantages = functions_of(settings.objective).advantages(rewards, settings)
    sequences = [
        sequence
        for trajectory, advantage in zip(kept, advantages, strict=True)
        if trajectory.kept
        for sequence in trajectory.sequences(advantage=advantage, staleness=staleness)
    ]
    return sequences or None


def regroup_stored(
    stored: Sequence[Trajectory], *, problems: Sequence[Problem], rollouts_per_prompt: int
) -> list[list[Trajectory]] | None:
    """Return the stored rollouts of a step as groups, in the order of its problems.

    Return None if they belong to other data or to another number of rollouts per prompt.
    """
    by_prompt: dict[str, list[Trajectory]] = {problem.id: [] for problem in problems}
    for trajectory in stored:
        by_prompt.setdefault(trajectory.prompt_id, []).append(trajectory)
    groups = list(by_prompt.values())
    complete = len(groups) == len(problems) and all(len(group) == rollouts_per_prompt for group in groups)
    return groups if complete else None


def _reward(trajectory: Trajectory, settings: GRPOSettings) -> float:
    return shaped_reward(
        trajectory.reward,
        length=trajectory.response_tokens,
        most=settings.max_response_tokens,
        buffer_ratio=settings.objective.overlong_buffer_ratio,
        penalty=settings.objective.overlong_penalty,
    )


def _untrained(trajectory: Trajectory, settings: GRPOSettings) -> str:
    """Return why a selected rollout counts only in the advantages of its group; empty: it trains."""
    if not any(segment.kind == "model" and segment.token_ids for segment in trajectory.segments):
        return "untrained: no token"  # such as an environment whose first observation is too long
    masked = trajectory.truncated and settings.objective.truncated == "Mask"
    return "untrained: truncated" if masked else ""


def _stats(trajectory: Trajectory) -> RolloutStats:
    return RolloutStats(
        reward=trajectory.reward,
        correct=trajectory.correct,
        penalty=trajectory.p_err + trajectory.p_format,
        failed=trajectory.failed,
    )
