"""What Resample-on-Correct kept and dropped, counted, and why, in a sentence for the reader of a trajectory. Pure.

The word or two in `Trajectory.kept_reason` come from `grpo_roc.resample`; what they mean depends on the job's mode.
"""

from __future__ import annotations

from dataclasses import dataclass

from rstar2_train.grpo_roc.resample import DELTA, Mode
from rstar2_train.rollout.trajectory import Trajectory

_DRAWN: dict[Mode, str] = {
    "Paper": f"The right rollouts of a group are drawn with weight 1 / (p_total + {DELTA:g}), so that clean traces are "
    "kept more often than those with failed calls or a faulty format.",
    "Rank": "Of the right rollouts of a group, those with the lowest p_total are kept.",
    "Uniform": "This job draws uniformly (plain GRPO, without Resample-on-Correct): the trace played no part.",
}
_FAILURES = (
    "Wrong rollouts are drawn by chance alone, whatever their traces look like, so that the policy goes on seeing "
    "every way to fail."
)


@dataclass(slots=True)
class ReasonTally:
    """The rollouts that met with one fate."""

    rollouts: int = 0
    p_err: float = 0.0
    """Sum of their tool-error penalties (eq. 4)."""
    p_format: float = 0.0
    """Sum of their format penalties (eq. 5)."""

    def add(self, trajectory: Trajectory) -> None:
        """Count a rollout."""
        self.rollouts += 1
        self.p_err += trajectory.p_err
        self.p_format += trajectory.p_format

    def summary(self) -> dict[str, float]:
        """As JSON: how many, and their mean penalties."""
        return {
            "rollouts": self.rollouts,
            "p_err_mean": self.p_err / self.rollouts,
            "p_format_mean": self.p_format / self.rollouts,
        }


def sentences(mode: Mode) -> dict[str, str]:
    """For each `kept_reason`, what it means under a job's mode of resampling; `` is that of a trajectory in no update.

    Source: paper §2.2.3, and the reasons that `grpo_roc.resample.Selection` lists.
    """
    return {
        "": "Nothing was selected here: these rollouts measure or filter, they do not train.",
        "kept: positive": f"Right, and part of the update. {_DRAWN[mode]}",
        "kept: negative": f"Wrong, and part of the update. {_FAILURES}",
        "dropped: penalty": f"Right, but not drawn. {_DRAWN[mode]}",
        "dropped: negative": f"Wrong, and not drawn: the group's share of wrong rollouts was full. {_FAILURES}",
        "dropped: uniform": f"Not drawn. {_DRAWN[mode]}",
        "dropped: infrastructure": "Lost to a failure of the infrastructure: no member of the group, never scored 0.",
        "untrained: all correct": "All that were selected of its group are right, so none has an advantage: the group "
        "taught nothing and was left out of the update.",
        "untrained: all wrong": "All that were selected of its group are wrong, so none has an advantage: the group "
        "taught nothing and was left out of the update.",
        "untrained: alone": "The only one of its group that infrastructure spared: nothing to compare it with.",
    }
