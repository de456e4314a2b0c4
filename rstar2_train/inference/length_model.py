"""Lengths of this job's finished trajectories, from which `Graded` (`policies.py`) expects the others. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class LengthModel:
    """Lengths of finished trajectories, as the probability that one of a class continues beyond a length.

    A class holds prompts of similar mean length. Running trajectories count as survivors up to their present length
    (the estimator of Kaplan and Meier): without them, the short ones, which finish first, would bias the estimate. The
    weight of a trajectory falls with the arrivals after it, not with their ends, which come late if they are long.
    """

    BINS = 96
    CLASSES = (0.5, 0.85, 1.3)
    """Upper limits of the classes: mean length of the prompt / mean length of all."""
    UNKNOWN = len(CLASSES) + 1
    """Class of prompts of which little is known. Its lengths are those of all classes together."""
    LITTLE = 0.5
    """Tokens of a prompt, finished or running / mean length of all, below which little is known."""
    PRIOR = 4.0
    """Weight of the assumption that a trajectory uses its whole budget, in trajectories."""
    GROUP_PRIOR = 2.0
    """Weight of the mean length of all in the mean of one prompt, in trajectories."""
    MEMORY = 20_000
    """Arrivals after which a trajectory has lost 63 % of its weight."""

    def __init__(self) -> None:
        self.longest = 1
        """Largest budget so far, in tokens."""
        self._ended: Floats = np.zeros((self.UNKNOWN + 1, self.BINS))
        """Weight of the finished trajectories per class and length."""
        self._newest = 0
        """Largest order of a finished trajectory: its weight is 1."""
        self._groups: defaultdict[Hashable, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._count = self._sum = 0.0
        self._running: dict[Hashable, float] = {}
        """Tokens of the running trajectories of each prompt at the last update."""
        self._running_sum = 0.0
        self.survival: Floats = np.ones((self.UNKNOWN + 1, self.BINS + 1))
        """Probability per class and bin that a trajectory reaches the start of the bin."""

    def admit(self, budget: int) -> None:
        """Take note of a trajectory's budget; the bins cover the largest one."""
        if budget > self.longest:
            self.longest = budget
            self._ended[:] = 0

    def relative_length(self, group: Hashable) -> float:
        """Return the mean length of a prompt / the mean length of all; 1 if nothing is known.

        Tokens of running trajectories count, without an end: a prompt whose trajectories have been running for long has
        long ones, even if none of them has finished.
        """
        mean = self._mean
        if mean <= 0:
            return 1.0
        count, tokens = self._tokens(group)
        return (tokens + self.GROUP_PRIOR * mean) / ((count + self.GROUP_PRIOR) * mean)

    @property
    def _mean(self) -> float:
        return (self._sum + self._running_sum) / max(1.0, self._count)

    def _tokens(self, group: Hashable) -> tuple[float, float]:
        """Return the finished trajectories of a prompt, and the tokens of its finished and running ones."""
        count, tokens = self._groups.get(group, [0.0, 0.0])
        return count, tokens + self._running.get(group, 0.0)

    def known(self, group: Hashable) -> bool:
        """Return whether a trajectory of the prompt has finished."""
        return group in self._groups

    def class_of(self, group: Hashable) -> int:
        """Return the class of a prompt."""
        _, tokens = self._tokens(group)
        if not self.known(group) and tokens <= self.LITTLE * self._mean:
            return self.UNKNOWN
        return bisect_left(self.CLASSES, self.relative_length(group))

    def bin_of(self, length: float) -> int:
        """Return the bin of a length in tokens."""
        return min(self.BINS - 1, int(length * self.BINS / self.longest))

    def add(self, group: Hashable, length: int, *, length_class: int, order: int) -> None:
        """Add the tokens of a finished trajectory after its prompt.

        `length_class`: its class at its start; `order`: the number of its arrival.
        """
        if order > self._newest:
            self._ended /= self._weight(order)
            self._newest = order
        self._ended[length_class, self.bin_of(length)] += self._weight(order)
        self._count += 1
        self._sum += length
        known = self._groups[group]
        known[0] += 1
        known[1] += length

    def _weight(self, order: int) -> float:
        return math.exp((order - self._newest) / self.MEMORY)

    def update(self, running: Sequence[tuple[Hashable, int, float, int]]) -> None:
        """Compute `survival`. `running`: prompt, class, length so far and order of each running trajectory."""
        alive = np.zeros_like(self._ended)
        tokens: defaultdict[Hashable, float] = defaultdict(float)
        for group, row, length, order in running:
            alive[row, self.bin_of(length)] += self._weight(order)
            tokens[group] += length
        self._running, self._running_sum = tokens, sum(tokens.values())
        # A class with few trajectories borrows from all of them.
        ended = self._ended + self._ended.sum(axis=0) * (self.PRIOR / max(self.PRIOR, self._ended.sum()))
        ended[self.UNKNOWN], alive[self.UNKNOWN] = self._ended.sum(axis=0), alive.sum(axis=0)
        reached = (ended + alive)[:, ::-1].cumsum(axis=1)[:, ::-1] + self.PRIOR
        self.survival[:, 1:] = np.cumprod(1 - ended / reached, axis=1)
