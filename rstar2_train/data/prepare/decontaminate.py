"""Finds problems that share eight words in a row with a benchmark (paper §5.1).

Between reading and writing: pipeline.py asks for every row. The benchmarks' word sequences are kept whole, not as
hashes, so that a match is a match. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

GRAM = 8
"""Words in a row that must not be shared (paper §5.1)."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """What a text shares with a benchmark."""

    gram: str
    benchmark: str
    """Name of the benchmark's problem."""


@dataclass(slots=True)
class Benchmarks:
    """Every sequence of `GRAM` words in the benchmarks. Memory: about 150 bytes a benchmark word."""

    _grams: dict[str, str] = field(default_factory=dict)
    _short: dict[str, str] = field(default_factory=dict)

    def add(self, words: list[str], name: str) -> None:
        """Take in one problem of a benchmark; `name` is what an overlap with it will say."""
        if len(words) < GRAM:
            self._short.setdefault(" ".join(words), name)
        for gram in _grams(words):
            self._grams.setdefault(gram, name)

    def overlap(self, words: list[str]) -> Overlap | None:
        """The first shared sequence, or None. A benchmark's problem of fewer words overlaps with the same words only.

        Time: proportional to the number of words, whatever the size of the benchmarks.
        """
        if len(words) < GRAM:
            whole = " ".join(words)
            return Overlap(whole, self._short[whole]) if whole in self._short else None
        for gram in _grams(words):
            if gram in self._grams:
                return Overlap(gram, self._grams[gram])
        return None


def _grams(words: list[str]) -> list[str]:
    return [" ".join(words[start : start + GRAM]) for start in range(len(words) - GRAM + 1)]
