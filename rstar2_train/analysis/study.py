"""The paper's entropy study (§5.4) as figures: the uncertainty of each kind of token. Pure.

`gather.py` adds annotated trajectories one by one. The result is part of `summary.json` and the tables of the report.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rstar2_train.analysis.tokens import REGIONS, AnnotatedTurn, Measure, mark_highest

TOP_WORDS = 24
MIN_OCCURRENCES = 5
"""Minimum occurrences of a word in the ranking; the mean of a rarer word is unreliable. Wang et al. (arXiv 2506.01939)
require 100 in a million tokens."""


@dataclass(slots=True)
class TokenTally:
    """The tokens of one kind."""

    tokens: int = 0
    total: float = 0.0
    """Sum of the values, in nats."""
    high: int = 0
    """Tokens in the top 20 % of their trajectory."""

    def add(self, value: float, *, high: bool) -> None:
        """Count a token."""
        self.tokens += 1
        self.total += value
        self.high += high

    @property
    def mean(self) -> float | None:
        """Mean value in nats; None without tokens."""
        return self.total / self.tokens if self.tokens else None


@dataclass(frozen=True, slots=True)
class WordValue:
    """A word (a token in lower case, without spaces) and its mean value in nats."""

    text: str
    occurrences: int
    mean: float


@dataclass(slots=True)
class Study:
    """The figures of some trajectories for one measure."""

    measure: Measure
    trajectories: int = 0
    kinds: dict[str, TokenTally] = field(
        default_factory=lambda: {name: TokenTally() for name in (*REGIONS, "forking", "all")}
    )
    """Region -> tokens. `forking` is across regions; `all` is all model tokens."""
    by_word: dict[str, TokenTally] = field(default_factory=lambda: defaultdict(TokenTally))

    def add(self, turns: Sequence[AnnotatedTurn]) -> None:
        """Add a trajectory. It counts only if it has values of the measure."""
        model_turns = [turn for turn in turns if turn.kind == "model" and turn.values(self.measure)]
        marks = iter(mark_highest([value for turn in model_turns for value in turn.values(self.measure)]))
        self.trajectories += bool(model_turns)
        for turn in model_turns:
            for text, value, region, is_forking in zip(
                turn.texts, turn.values(self.measure), turn.regions, turn.forking, strict=True
            ):
                high = next(marks)
                self.kinds["all"].add(value, high=high)
                self.kinds[region].add(value, high=high)
                if is_forking:
                    self.kinds["forking"].add(value, high=high)
                word = text.strip().lower()
                if region != "code" and len(word) > 1 and word.isalpha():
                    self.by_word[word].add(value, high=high)

    def summary(self) -> dict[str, Any]:
        """Return the figures for JSON: tokens, mean and high tokens of each kind, and the top words."""
        high = self.kinds["all"].high
        return {
            "measure": self.measure,
            "unit": "nats",
            "trajectories": self.trajectories,
            "kinds": {
                name: {
                    "tokens": tally.tokens,
                    "mean": tally.mean,
                    "high_share": tally.high / tally.tokens if tally.tokens else None,
                    "share_of_high": tally.high / high if high else None,
                }
                for name, tally in self.kinds.items()
            },
            "words": [asdict(word) for word in self.top_words()],
        }

    def top_words(self) -> list[WordValue]:
        """Return the frequent words outside of code with the highest mean."""
        ranked = [WordValue(text, tally.tokens, tally.total / tally.tokens) for text, tally in self.by_word.items()]
        frequent = [word for word in ranked if word.occurrences >= MIN_OCCURRENCES]
        return sorted(frequent, key=lambda word: (-word.mean, word.text))[:TOP_WORDS]
