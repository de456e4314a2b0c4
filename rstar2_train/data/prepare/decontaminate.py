"""Finds problems that share eight consecutive words with a benchmark (paper §5.1).

`pipeline.py` checks every row. The word sequences are stored as text, not as hashes, so there are no false matches.
Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

GRAM = 8
"""Length of the word sequences that a problem must not share with a benchmark (paper §5.1)."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """A word sequence that a text shares with a benchmark."""

    gram: str
    benchmark: str
    """File and line of the benchmark's problem."""


@dataclass(slots=True)
class Benchmarks:
    """All sequences of `GRAM` words in the benchmarks. Memory: about 150 bytes per benchmark word."""

    _grams: dict[str, str] = field(default_factory=dict)
    _short: dict[str, str] = field(default_factory=dict)

    def add(self, words: list[str], name: str) -> None:
        """Add a problem of a benchmark. `name`: the value of `Overlap.benchmark` for this problem."""
        if len(words) < GRAM:
            self._short.setdefault(" ".join(words), name)
        for gram in _grams(words):
            self._grams.setdefault(gram, name)

    def overlap(self, words: list[str]) -> Overlap | None:
        """Return the first shared sequence, or None. A benchmark problem of fewer than `GRAM` words must match exactly.

        Time: proportional to the number of words, independent of the size of the benchmarks.
        """
        if len(words) < GRAM:
            text = " ".join(words)
            return Overlap(text, self._short[text]) if text in self._short else None
        for gram in _grams(words):
            if gram in self._grams:
                return Overlap(gram, self._grams[gram])
        return None


def _grams(words: list[str]) -> list[str]:
    return [" ".join(words[start : start + GRAM]) for start in range(len(words) - GRAM + 1)]
