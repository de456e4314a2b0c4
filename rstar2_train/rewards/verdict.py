"""The words for how an answer was judged. Standard library only, so that the trajectory record can use them."""

from typing import Literal

Verdict = Literal["correct", "wrong", "no_answer", "timeout", "internal"]
"""`timeout`: the verifier ran out of time or memory (reward 0). `internal`: infrastructure (excluded, never 0)."""
