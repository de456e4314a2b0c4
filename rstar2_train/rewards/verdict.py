"""The possible verdicts on an answer. Standard library only, so that the trajectory record can import it."""

from typing import Literal

Verdict = Literal["correct", "wrong", "no_answer", "timeout", "internal"]
"""`timeout`: the verifier exceeded its time or memory (reward 0). `internal`: an infrastructure failure (excluded)."""
