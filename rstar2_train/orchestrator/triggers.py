"""Decides whether a GRPO stage finishes before its last step: advance triggers and collapse. Pure.

Paper §4.3: stage 1 was followed by stage 2 when the truncation ratio had settled at about 10 %; stage 2 by stage 3 when
over 70 % of the prompts of a batch were solved by every rollout; after the last stage the reward falls permanently.
Under staleness a record describes the weights that sampled the step's rollouts, at most maxStaleness steps before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from rstar2_train.api.stages import AdvanceTrigger, CollapseTrigger


@dataclass(frozen=True, slots=True)
class StepRecord:
    """The figures of one finished step that the triggers use."""

    step: int
    reward: float
    """Mean reward over the step's rollouts that are not lost, 0..1."""
    truncated: float
    """Share of rollouts that a limit stopped, 0..1."""
    all_correct: float
    """Share of prompts that every rollout solved, 0..1."""
    effective_sample_size: float | None = None
    """Effective sample size of the importance weights, as a share of the tokens; None without staleness or update."""


EndReason = Literal["TruncationSettled", "AllCorrect", "Collapsed", "OffPolicy"]

_SETTLED_SPREAD = 0.05
"""Truncation has settled if no step of the window differs from the window's mean by more than this."""


def end_reason(
    history: Sequence[StepRecord], *, advance: AdvanceTrigger, collapse: CollapseTrigger
) -> EndReason | None:
    """Return why the stage must finish now, or None. `history`: one record per finished step, in step order."""
    if has_collapsed(history, collapse):
        return "Collapsed"
    if is_off_policy(history, collapse):
        return "OffPolicy"
    window = history[-advance.window_steps :]
    if len(window) < advance.window_steps or len(history) < advance.min_steps:
        return None
    if advance.all_correct_above is not None and all(r.all_correct > advance.all_correct_above for r in window):
        return "AllCorrect"
    if advance.truncation_below is not None:
        mean = fmean(record.truncated for record in window)
        settled = all(abs(record.truncated - mean) <= _SETTLED_SPREAD for record in window)
        if settled and mean <= advance.truncation_below:
            return "TruncationSettled"
    return None


def is_off_policy(history: Sequence[StepRecord], settings: CollapseTrigger) -> bool:
    """Return whether the effective sample size was below its minimum in every step of the last window."""
    window = history[-settings.window_steps :]
    if not settings.enabled or len(window) < settings.window_steps:
        return False
    sizes = [record.effective_sample_size for record in window]
    return all(size is not None and size < settings.min_effective_sample_size for size in sizes)


def has_collapsed(history: Sequence[StepRecord], settings: CollapseTrigger) -> bool:
    """Return whether every step of the last window is more than `drop` (a share) below the best earlier window's mean.

    The mean is that of the rewards.
    """
    size = settings.window_steps
    if not settings.enabled or len(history) < 2 * size:
        return False
    rewards = [record.reward for record in history]
    earlier = rewards[:-size]
    best = max(fmean(earlier[i : i + size]) for i in range(len(earlier) - size + 1))
    return best > 0 and all(reward < best * (1 - settings.drop) for reward in rewards[-size:])
