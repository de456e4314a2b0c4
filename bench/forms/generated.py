r"""Classes of answers with generated gold answers, equal answers in other notations, and near misses.

A class draws a gold answer from a seeded generator and writes it in other ways (`same`), and changes it slightly
(`other`). Nothing here uses the measured parser: each pair is equal or different by construction. For bench/verify.py,
next to the rewritings of the gold answers of benchmark files (`form`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

SEED = 16
"""Seed of all classes, so that two runs measure the same pairs."""


class Pairs(NamedTuple):
    """A gold answer, equal answers, and near misses."""

    gold: str
    same: Sequence[str]
    other: Sequence[str]


Draw = Callable[[random.Random], Pairs]
CLASSES: dict[str, Draw] = {}
"""Name of the class -> function that draws one gold answer with its pairs. The modules of classes fill it."""


def answer_class(name: str) -> Callable[[Draw], Draw]:
    """Register the decorated function as a class."""

    def register(draw: Draw) -> Draw:
        assert name not in CLASSES, name
        CLASSES[name] = draw
        return draw

    return register


def generated(name: str, golds: int) -> Iterator[Pairs]:
    """Yield the pairs of `golds` different gold answers of a class, without a text that is in both lists."""
    rng = random.Random(f"{SEED}/{name}")
    drawn: set[str] = set()
    for _ in range(golds * 20):
        pairs = CLASSES[name](rng)
        if pairs.gold in drawn:
            continue
        drawn.add(pairs.gold)
        same = [text for text in dict.fromkeys(pairs.same) if text != pairs.gold]
        other = [text for text in dict.fromkeys(pairs.other) if text not in same and text != pairs.gold]
        yield Pairs(pairs.gold, same, other)
        if len(drawn) == golds:
            return


def signed(rng: random.Random, low: int, high: int) -> int:
    """Return an integer from [low, high], with a random sign."""
    return rng.choice([-1, 1]) * rng.randint(low, high)


def term(coefficient: int, rest: str, *, first: bool = False) -> str:
    """Return `+ 3x`, with a sign unless it is the first term of a sum; `rest` may be empty."""
    if coefficient == 0:
        return ""
    sign = "-" if coefficient < 0 else "" if first else "+"
    size = "" if abs(coefficient) == 1 and rest else str(abs(coefficient))
    return f"{sign}{size}{rest}"


def total(*terms: tuple[int, str]) -> str:
    """Return a sum of (coefficient, rest) terms without zeros."""
    text = ""
    for coefficient, rest in terms:
        text += term(coefficient, rest, first=not text)
    return text or "0"
