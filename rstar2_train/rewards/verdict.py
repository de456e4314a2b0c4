"""The possible verdicts on an answer. Standard library only, so that the trajectory record can import it."""

from typing import Literal

Verdict = Literal["correct", "wrong", "no_answer", "undecided", "internal"]
"""Excluded, never scored 0: `undecided` (the check exceeded its limits) and `internal` (an infrastructure failure)."""

EXCLUDED: tuple[Verdict, ...] = ("undecided", "internal")
"""The verdicts without a reward."""
