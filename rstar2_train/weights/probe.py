"""The probe: after each update an engine scores fixed tokens, and serves only if its log-probabilities are right.

They must agree with the trainer's own, and must differ from those of the version before unless the weights are equal.
So an update that was not applied, or that was applied to other weights, is found before the first rollout. With an
adapter they must also differ from those of the base, unless the adapter is zero. Pure.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

ROWS = 4
ROW_TOKENS = 32
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.05}
"""Largest mean absolute difference of a log-probability between engine and trainer, in nats, for the coarsest number
format of three: that of the versions, of the engines and of the ranks. An engine may compute with 16-bit weights and
activations, and the ranks with float32 ones."""

Scores = list[list[float]]
"""Log-probabilities [rows][tokens - 1] of each token after the first."""


def probe_rows(vocabulary: int) -> list[list[int]]:
    """Return the fixed token ids [ROWS][ROW_TOKENS] for a vocabulary of this size."""
    draw = random.Random(vocabulary)
    return [[draw.randrange(vocabulary) for _ in range(ROW_TOKENS)] for _ in range(ROWS)]


@dataclass(frozen=True, slots=True)
class Probe:
    """The check of one weight version."""

    rows: list[list[int]]
    expected: Scores | None
    """The trainer's values; None: the trainer has not loaded the model, so only the engine's own are recorded."""
    tolerance: float
    """Largest mean absolute difference, in nats."""
    expects_change: bool
    """Whether the weights differ from the version before."""
    has_adapter: bool = False
    """Whether the version is an adapter that is not zero: the engine's values must differ from those of its base."""

    def refusal(self, scores: Scores, *, before: Scores | None, base: Scores | None = None) -> str:
        """Return why an engine with these scores must not serve; empty if it may.

        Args:
            scores: the engine's values.
            before: its values at the version before; None if it had none.
            base: its values without the adapter, if `has_adapter`.
        """
        if [len(row) for row in scores] != [len(row) - 1 for row in self.rows]:
            returned, expected = sum(map(len, scores)), sum(len(row) - 1 for row in self.rows)
            return f"the engine returned {returned} log-probabilities for {expected} tokens of the probe"
        flat = [value for row in scores for value in row]
        if not all(value <= 0.0 for value in flat):  # also false for NaN
            return "the engine's log-probabilities are not numbers"
        if self.has_adapter and base == scores:
            return "the log-probabilities equal those of the base: the engine does not use the adapter"
        if self.expects_change and before == scores:
            return "the log-probabilities equal those of the version before: the update was not applied"
        if self.expected is None:
            return ""
        difference = mean_difference(scores, self.expected)
        if difference <= self.tolerance:
            return ""
        reason = f"mean difference {difference:.3g} nats to the trainer's log-probabilities, more than {self.tolerance}"
        causes = ", such as another base or another scale of the adapter" if self.has_adapter else ""
        return f"{reason}: the engine has other weights than the trainer{causes}"


def mean_difference(scores: Sequence[Sequence[float]], expected: Sequence[Sequence[float]]) -> float:
    """Return the mean absolute difference of two sets of log-probabilities."""
    return fmean(
        abs(a - b) for row, right in zip(scores, expected, strict=True) for a, b in zip(row, right, strict=True)
    )
