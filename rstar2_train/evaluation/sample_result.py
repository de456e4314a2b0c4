"""One sample as the figures see it: how it ended, without its tokens and text.

Made the moment a sample ends (`sampling.py`), so that a measurement holds small records however long the trajectories
are; those lie in the samples' file. What `statistics.py`, `result.py` and `difficulty.py` count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from rstar2_train.rewards.verdict import Verdict
from rstar2_train.rollout.trajectory import LostTo, Trajectory


@dataclass(frozen=True, slots=True)
class SampleResult:
    """How one sample of one problem ended."""

    prompt_id: str
    sample: int
    """Its number among the samples of the problem, from 0."""
    verdict: Verdict
    failed: bool = False
    """Lost to infrastructure: excluded, never scored 0."""
    truncated: bool = False
    """Stopped by a limit before it answered."""
    answer: str | None = None
    gold: str = ""
    """The known answer."""
    slice: str = ""
    hard: bool = False
    turns: int = 0
    calls: int = 0
    """Tool calls."""
    call_errors: int = 0
    """Those that failed."""
    response_tokens: int = 0
    """Tokens after the prompt, tool output included."""
    error: str = ""
    """What failed, when infrastructure lost it."""
    lost_to: LostTo | None = None
    """Service whose failure lost it; None if it is not lost."""

    @property
    def correct(self) -> bool:
        """Whether it is right (eq. 3)."""
        return self.verdict == "correct" and not self.failed

    @classmethod
    def of(cls, trajectory: Trajectory) -> Self:
        """The record of a trajectory that has ended."""
        return cls(
            prompt_id=trajectory.prompt_id,
            sample=trajectory.sample,
            verdict=trajectory.verdict,
            failed=trajectory.failed,
            truncated=trajectory.truncated,
            answer=trajectory.answer,
            gold=trajectory.gold,
            slice=trajectory.slice,
            hard=trajectory.hard,
            turns=trajectory.turns,
            calls=len(trajectory.calls),
            call_errors=trajectory.call_errors,
            response_tokens=trajectory.response_tokens,
            error=trajectory.error,
            lost_to=trajectory.lost_to,
        )
