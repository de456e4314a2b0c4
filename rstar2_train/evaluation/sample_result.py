"""The result of one sample, without its tokens and text: the input of all figures.

`sampling.py` creates it when a sample finishes, so that a measurement has only small records in memory. The
trajectories are in the file of the samples. `statistics.py`, `result.py` and `difficulty.py` count these records.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

from rstar2_train.rewards.verdict import Verdict
from rstar2_train.rollout.trajectory import LostTo, Trajectory


@dataclass(frozen=True, slots=True)
class SampleResult:
    """The result of one sample of one problem: the attributes of its `Trajectory` with the same names."""

    prompt_id: str
    sample: int
    """Number of the sample within its problem, from 0."""
    verdict: Verdict
    failed: bool = False
    """Whether an infrastructure failure lost the sample: excluded, never scored 0."""
    truncated: bool = False
    """Whether a limit stopped the sample before the answer."""
    answer: str | None = None
    gold: str = ""
    """Known answer."""
    slice: str = ""
    hard: bool = False
    turns: int = 0
    calls: int = 0
    """Tool calls."""
    call_errors: int = 0
    """Failed tool calls."""
    response_tokens: int = 0
    """Tokens after the prompt, with tool output."""
    error: str = ""
    """Error message of a lost sample."""
    lost_to: LostTo | None = None
    """Service whose failure lost the sample; None if it is not lost."""

    @property
    def correct(self) -> bool:
        """Whether the answer is correct (eq. 3)."""
        return self.verdict == "correct"

    @classmethod
    def from_trajectory(cls, trajectory: Trajectory) -> Self:
        """Return the result of a finished trajectory."""
        shared = {field.name: getattr(trajectory, field.name) for field in fields(cls) if field.name != "calls"}
        return cls(**shared, calls=len(trajectory.calls))
