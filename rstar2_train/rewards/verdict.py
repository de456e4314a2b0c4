"""The possible verdicts on an answer, and the grade of a response. Imports the standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["correct", "wrong", "no_answer", "undecided", "internal"]
"""Excluded, never scored 0: `undecided` (the check exceeded its limits) and `internal` (an infrastructure failure)."""

EXCLUDED: tuple[Verdict, ...] = ("undecided", "internal")
"""The verdicts without a reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """The verdict on a response, and its score."""

    verdict: Verdict
    answer: str | None
    """The extracted answer; None without an answer."""
    score: float
    """Score in [0, 1]; 0 for a response without an answer. Undefined for the verdicts in EXCLUDED."""
    correct_from: float = 1.0
    """Lowest score of a correct response."""
    reason: str = ""
    """Reason of the score, or the fault of the checker."""

    @classmethod
    def exact(cls, verdict: Verdict, answer: str | None) -> Grade:
        """Return the grade of a comparison: 1 if correct, else 0 (eq. 3)."""
        return cls(verdict=verdict, answer=answer, score=float(verdict == "correct"))
