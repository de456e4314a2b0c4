"""The problems of the tiny task: chains of one to three named operations on small numbers.

`Let X be the gcd of 48 and 36. Let Y be the product of X and 17. Find Y.` is a problem of level 2. All operations have
the same sentence, so that the form of a sentence does not reveal its position.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rstar2_train.data.problems import Problem

LEVELS = (1, 2, 3)
HARD_LEVEL = 3
VARIABLES = "XYZ"
SMALLEST, LARGEST = 2, 99
"""Range of the numbers in a problem: at most two digits, one token each."""
LARGEST_RESULT = 99
"""Largest intermediate value and answer; the smallest is 1. Each is one token to copy."""

OPERATIONS: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "sum": ("{}+{}", lambda a, b: a + b),
    "difference": ("{}-{}", lambda a, b: a - b),
    "product": ("{}*{}", lambda a, b: a * b),
    "remainder": ("{}%{}", lambda a, b: a % b),
    "quotient": ("{}//{}", lambda a, b: a // b),
    "gcd": ("math.gcd({},{})", math.gcd),
    "lcm": ("math.lcm({},{})", math.lcm),
    "maximum": ("max({},{})", max),
    "minimum": ("min({},{})", min),
}
"""Name in a problem -> (Python expression, function)."""


@dataclass(frozen=True, slots=True)
class OperationChain:
    """A problem before its text: each operation takes the last value and a new number."""

    first: int
    steps: tuple[tuple[str, int], ...]
    """(operation, second operand), in order."""

    @property
    def level(self) -> int:
        """Number of operations."""
        return len(self.steps)

    @property
    def values(self) -> list[int]:
        """The value after each operation; the last is the answer."""
        values = [self.first]
        for name, operand in self.steps:
            values.append(OPERATIONS[name][1](values[-1], operand))
        return values[1:]

    @property
    def text(self) -> str:
        """Text of the problem."""
        left = str(self.first)
        sentences = []
        for variable, (name, operand) in zip(VARIABLES, self.steps, strict=False):
            sentences.append(f"Let {variable} be the {name} of {left} and {operand}.")
            left = variable
        return " ".join([*sentences, f"Find {left}."])


def draw_chain(rng: random.Random, *, level: int, largest: int = LARGEST) -> OperationChain:
    """Return a chain of `level` operations on numbers up to `largest`. All values are in 1..LARGEST_RESULT."""
    first = rng.randint(SMALLEST, largest)
    steps: list[tuple[str, int]] = []
    value = first
    while len(steps) < level:
        name = rng.choice(list(OPERATIONS))
        results = {other: OPERATIONS[name][1](value, other) for other in range(SMALLEST, largest + 1)}
        operands = [other for other, result in results.items() if 1 <= result <= LARGEST_RESULT]
        if operands:  # else try another operation, because this one has no valid operand
            steps.append((name, rng.choice(operands)))
            value = results[steps[-1][1]]
    return OperationChain(first=first, steps=tuple(steps))


def draw_chains(
    rng: random.Random, *, levels: Iterable[int], seen: set[str], largest: int = LARGEST
) -> list[OperationChain]:
    """Return one chain per level, in order. No chain has a text in `seen`; their texts are added to it.

    One `seen` for all files of a task excludes held-out problems from the training data.
    """
    chains = []
    for level in levels:
        chain = draw_chain(rng, level=level, largest=largest)
        while chain.text in seen:
            chain = draw_chain(rng, level=level, largest=largest)
        seen.add(chain.text)
        chains.append(chain)
    return chains


def to_problem(chain: OperationChain, *, identity: str) -> Problem:
    """Return the problem with its answer. Its slice is its level (`L1` .. `L3`)."""
    return Problem(
        id=identity,
        problem=chain.text,
        answer=str(chain.values[-1]),
        slice=f"L{chain.level}",
        hard=chain.level == HARD_LEVEL,
    )
