"""Counts the rollouts per selection reason of Resample-on-Correct, and explains each reason. Pure.

The reasons in `Trajectory.selection_reason` come from `grpo_roc.resample`. Their explanation depends on the resampling
mode.
"""

from __future__ import annotations

from dataclasses import dataclass

from rstar2_train.grpo_roc.resample import DELTA, Mode
from rstar2_train.rollout.trajectory import Trajectory

_CORRECT_DRAW: dict[Mode, str] = {
    "Paper": f"Correct rollouts of a group are drawn with weight 1 / (p_total + {DELTA:g}). Rollouts with failed tool "
    "calls or a faulty format are therefore kept less often.",
    "Rank": "The correct rollouts of a group with the lowest p_total are kept.",
    "Uniform": "This job draws uniformly (plain GRPO, without Resample-on-Correct), regardless of the penalties.",
}
_WRONG_DRAW = (
    "Wrong rollouts are drawn uniformly, regardless of their penalties, so that the policy is trained on all kinds of "
    "failures."
)


@dataclass(slots=True)
class ReasonTally:
    """The rollouts with one selection reason."""

    rollouts: int = 0
    p_err: float = 0.0
    """Sum of the tool-error penalties (eq. 4)."""
    p_format: float = 0.0
    """Sum of the format penalties (eq. 5)."""

    def add(self, trajectory: Trajectory) -> None:
        """Count a rollout."""
        self.rollouts += 1
        self.p_err += trajectory.p_err
        self.p_format += trajectory.p_format

    def summary(self) -> dict[str, float]:
        """Return the number of rollouts and the mean penalties, for JSON."""
        return {
            "rollouts": self.rollouts,
            "p_err_mean": self.p_err / self.rollouts,
            "p_format_mean": self.p_format / self.rollouts,
        }


def reason_texts(mode: Mode) -> dict[str, str]:
    """Return `selection_reason` -> explanation for a resampling mode. The empty reason: not for training.

    Source: paper §2.2.3 and the reasons of `grpo_roc.resample.Selection`.
    """
    return {
        "": "Rollouts of an evaluation or a filter are not part of any update.",
        "kept: positive": f"Correct and part of the update. {_CORRECT_DRAW[mode]}",
        "kept: negative": f"Wrong and part of the update. {_WRONG_DRAW}",
        "dropped: penalty": f"Correct but not drawn. {_CORRECT_DRAW[mode]}",
        "dropped: negative": f"Wrong and not drawn: the group's share of wrong rollouts was complete. {_WRONG_DRAW}",
        "dropped: uniform": f"Not drawn. {_CORRECT_DRAW[mode]}",
        "dropped: infrastructure": "Lost to an infrastructure failure: excluded from the group, never scored 0.",
        "untrained: all correct": "All selected rollouts of the group are correct, so no rollout has an advantage. The "
        "group is excluded from the update.",
        "untrained: all wrong": "All selected rollouts of the group are wrong, so no rollout has an advantage. The "
        "group is excluded from the update.",
        "untrained: truncated": "Selected, but a limit stopped it, and the objective masks truncated rollouts: it "
        "counts only in the baseline of its group.",
        "untrained: no token": "Selected, but the model sampled no token, because a limit stopped it before: it counts "
        "only in the baseline of its group.",
        "untrained: alone": "Infrastructure failures lost all other rollouts of the group, so there is no comparison.",
    }
