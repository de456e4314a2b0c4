"""The problems of the tiny task: chains of one to three named operations on small numbers.

`Let X be the gcd of 48 and 36. Let Y be the product of X and 17. Find Y.` is a problem of level 2. Every operation
has the same sentence, so that the second is not told from the first by its form.
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
"""Range of the numbers in a problem: two digits at most, one token each."""
LARGEST_RESULT = 99
"""No value on the way to a right answer is larger, or smaller than 1: each is one token to copy."""

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
"""Word -> (Python expression, what it computes)."""


@dataclass(frozen=True, slots=True)
class OperationChain:
    """A problem before it is put into words: each operation takes the last value and a new number."""

    first: int
    steps: tuple[tuple[str, int], ...]
    """(operation, second operand), in order."""

    @property
    def level(self) -> int:
        """How many operations are chained."""
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
        """The problem in words."""
        left = str(self.first)
        sentences = []
        for variable, (name, operand) in zip(VARIABLES, self.steps, strict=False):
            sentences.append(f"Let {variable} be the {name} of {left} and {operand}.")
            left = variable
        return " ".join([*sentences, f"Find {left}."])


def draw_chain(rng: random.Random, *, level: int, largest: int = LARGEST) -> OperationChain:
    """A chain of `level` operations on numbers up to `largest`, whose every value lies in 1..LARGEST_RESULT."""
    first = rng.randint(SMALLEST, largest)
    steps: list[tuple[str, int]] = []
    value = first
    while len(steps) < level:
        name = rng.choice(list(OPERATIONS))
        results = {other: OPERATIONS[name][1](value, other) for other in range(SMALLEST, largest + 1)}
        operands = [other for other, result in results.items() if 1 <= result <= LARGEST_RESULT]
        if operands:  # else another operation: no number suits this one
            steps.append((name, rng.choice(operands)))
            value = results[steps[-1][1]]
    return OperationChain(first=first, steps=tuple(steps))


def draw_chains(
    rng: random.Random, *, levels: Iterable[int], seen: set[str], largest: int = LARGEST
) -> list[OperationChain]:
    """One chain for each of `levels`, in that order, none with a text in `seen`, which grows by theirs.

    One `seen` for every set of a task keeps held-out problems out of all that is trained on.
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
    """The problem with its answer, reported under its level (`L1` .. `L3`)."""
    return Problem(
        id=identity,
        problem=chain.text,
        answer=str(chain.values[-1]),
        slice=f"L{chain.level}",
        hard=chain.level == HARD_LEVEL,
    )
