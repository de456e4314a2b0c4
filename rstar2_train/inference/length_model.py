"""Lengths of this job's finished trajectories, from which `Graded` (`policies.py`) expects the others. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class LengthModel:
    """Lengths of finished trajectories, as the probability that one of a class continues beyond a length.

    A class holds prompts of similar mean length. Running trajectories count as survivors up to their present length
    (the estimator of Kaplan and Meier): without them, the short ones, which finish first, would bias the estimate.
    """

    BINS = 96
    CLASSES = (0.5, 0.85, 1.3)
    """Upper limits of the classes: mean length of the prompt / mean length of all."""
    PRIOR = 4.0
    """Weight of the assumption that a trajectory uses its whole budget, in trajectories."""
    GROUP_PRIOR = 2.0
    """Weight of the mean length of all in the mean of one prompt, in trajectories."""
    MEMORY = 20_000
    """Trajectories after which a finished one has lost 63 % of its weight."""

    def __init__(self) -> None:
        self.longest = 1
        """Largest budget so far, in tokens."""
        self._ended: Floats = np.zeros((len(self.CLASSES) + 1, self.BINS))
        self._groups: defaultdict[Hashable, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._count = self._sum = 0.0
        self.survival: Floats = np.ones((len(self.CLASSES) + 1, self.BINS + 1))
        """Probability per class and bin that a trajectory reaches the start of the bin."""

    def admit(self, budget: int) -> None:
        """Take note of a trajectory's budget; the bins cover the largest one."""
        if budget > self.longest:
            self.longest = budget
            self._ended[:] = 0

    def relative_length(self, group: Hashable) -> float:
        """Return the mean length of a prompt / the mean length of all; 1 if nothing is known."""
        if not self._count:
            return 1.0
        mean = self._sum / self._count
        known = self._groups.get(group)
        if known is None or mean <= 0:
            return 1.0
        return (known[1] + self.GROUP_PRIOR * mean) / ((known[0] + self.GROUP_PRIOR) * mean)

    def known(self, group: Hashable) -> bool:
        """Return whether a trajectory of the prompt has finished."""
        return group in self._groups

    def class_of(self, group: Hashable) -> int:
        """Return the class of a prompt."""
        return bisect_left(self.CLASSES, self.relative_length(group))

    def bin_of(self, length: float) -> int:
        """Return the bin of a length in tokens."""
        return min(self.BINS - 1, int(length * self.BINS / self.longest))

    def add(self, group: Hashable, length: int, *, length_class: int) -> None:
        """Add the tokens of a finished trajectory after its prompt; `length_class`: its class at its start."""
        self._ended *= 1 - 1 / self.MEMORY
        self._ended[length_class, self.bin_of(length)] += 1
        self._count += 1
        self._sum += length
        known = self._groups[group]
        known[0] += 1
        known[1] += length

    def update(self, running: Sequence[tuple[int, int]]) -> None:
        """Compute `survival`. `running`: (class, bin) of each running trajectory."""
        alive = np.zeros_like(self._ended)
        for row, column in running:
            alive[row, column] += 1
        # A class with few trajectories borrows from all of them.
        ended = self._ended + self._ended.sum(axis=0) * (self.PRIOR / max(self.PRIOR, self._ended.sum()))
        reached = (ended + alive)[:, ::-1].cumsum(axis=1)[:, ::-1] + self.PRIOR
        self.survival[:, 1:] = np.cumprod(1 - ended / reached, axis=1)
