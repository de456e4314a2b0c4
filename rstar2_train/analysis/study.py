"""The paper's entropy study (§5.4) as figures: how uncertain the tokens of each kind are. Pure.

Fed with annotated trajectories one by one; its result goes into the JSON summary and the tables of the report.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rstar2_train.analysis.tokens import REGIONS, AnnotatedTurn, Measure, highest

WORDS_SHOWN = 24
LEAST_OCCURRENCES = 5
"""A word seen less often has a mean that says little (Wang et al., arXiv 2506.01939, want 100 in a million tokens)."""


@dataclass(slots=True)
class TokenTally:
    """The tokens of one kind."""

    tokens: int = 0
    total: float = 0.0
    """Sum of their values, in nats."""
    high: int = 0
    """Those among the top 20 % of their trajectory."""

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
    """A word (a token, stripped, in lower case) and its mean value in nats."""

    text: str
    occurrences: int
    mean: float


@dataclass(slots=True)
class Study:
    """Figures over some trajectories, for one measure."""

    measure: Measure
    trajectories: int = 0
    kinds: dict[str, TokenTally] = field(
        default_factory=lambda: {name: TokenTally() for name in (*REGIONS, "forking", "all")}
    )
    """By region; `forking` counts across regions; `all` is every model token."""
    words: dict[str, TokenTally] = field(default_factory=lambda: defaultdict(TokenTally))

    def add(self, turns: Sequence[AnnotatedTurn]) -> None:
        """Count a trajectory in; one without values of the measure is left out."""
        written = [turn for turn in turns if turn.kind == "model" and turn.values(self.measure)]
        marks = iter(highest([value for turn in written for value in turn.values(self.measure)]))
        self.trajectories += bool(written)
        for turn in written:
            for piece, value, region, forks in zip(
                turn.pieces, turn.values(self.measure), turn.regions, turn.forking, strict=True
            ):
                high = next(marks)
                self.kinds["all"].add(value, high=high)
                self.kinds[region].add(value, high=high)
                if forks:
                    self.kinds["forking"].add(value, high=high)
                word = piece.strip().lower()
                if region != "code" and len(word) > 1 and word.isalpha():
                    self.words[word].add(value, high=high)

    def summary(self) -> dict[str, Any]:
        """As JSON: for each kind its tokens, its mean, what share of it is high, and what share of the high it is."""
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
        """The words outside of code with the highest mean."""
        known = [WordValue(text, tally.tokens, tally.total / tally.tokens) for text, tally in self.words.items()]
        often = [word for word in known if word.occurrences >= LEAST_OCCURRENCES]
        return sorted(often, key=lambda word: (-word.mean, word.text))[:WORDS_SHOWN]
