"""When a GRPO stage ends before its last step: advance triggers and collapse. Pure: step history in, decision out.

Paper §4.3: stage 1 gave way to 2 when the truncation ratio had settled at about 10 %; stage 2 to 3 when over 70 % of
the prompts of a batch were solved by every rollout; past the last stage the reward falls and does not come back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from rstar2_train.api.stages import AdvanceTrigger, CollapseTrigger


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What the triggers look at, of one finished step."""

    step: int
    reward: float
    """Mean reward over all rollouts of the step that infrastructure spared, 0..1."""
    truncated: float
    """Share of rollouts that a limit stopped, 0..1."""
    all_correct: float
    """Share of prompts that every rollout solved, 0..1."""


Decision = Literal["TruncationSettled", "AllCorrect", "Collapsed"]

_SETTLED_SPREAD = 0.05
"""Truncation has settled when, over the window, no step is further than this from the window's mean."""


def decide(history: Sequence[StepRecord], *, advance: AdvanceTrigger, collapse: CollapseTrigger) -> Decision | None:
    """Why the stage should end now, or None. `history` is in step order, one record a finished step."""
    if collapsed(history, collapse):
        return "Collapsed"
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


def collapsed(history: Sequence[StepRecord], settings: CollapseTrigger) -> bool:
    """Whether every step of the last window lies more than `drop` (a share) below the best earlier window's mean."""
    size = settings.window_steps
    if not settings.enabled or len(history) < 2 * size:
        return False
    rewards = [record.reward for record in history]
    earlier = rewards[:-size]
    best = max(fmean(earlier[i : i + size]) for i in range(len(earlier) - size + 1))
    return best > 0 and all(reward < best * (1 - settings.drop) for reward in rewards[-size:])
