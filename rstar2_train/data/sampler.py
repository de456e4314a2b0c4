"""The order in which a stage draws its data: shuffled by seed, a function of the step number alone.

The sampler has no state, so a resumed stage draws the same items as an uninterrupted one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class PromptSampler:
    """Batches of distinct items over an unlimited number of epochs. Each epoch has its own shuffled order.

    An epoch omits the items that do not fill its last batch. Later epochs draw them.
    """

    size: int
    """Number of items."""
    batch: int
    """Items per batch. If there are fewer items, each batch contains all of them."""
    seed: int
    """Seed of the order, together with `name`."""
    name: str = ""
    """Name of the stage, so that two stages of one job draw in different orders."""

    def __post_init__(self) -> None:
        if self.size < 1 or self.batch < 1:
            raise ValueError(f"cannot draw batches of {self.batch} from {self.size} items: both must be at least 1")

    @property
    def batches_per_epoch(self) -> int:
        """Number of full batches in one pass over the items, at least 1."""
        return max(1, self.size // self.batch)

    def at(self, step: int) -> list[int]:
        """Return the indices of the items of batch `step`, from 0: distinct, in the order of use."""
        if step < 0:
            raise ValueError(f"step is {step}; it must be at least 0")
        epoch, position = divmod(step, self.batches_per_epoch)
        order = _shuffled(self.size, f"{self.seed}/{self.name}/{epoch}")
        return list(order[position * self.batch : (position + 1) * self.batch])


@lru_cache(maxsize=4)
def _shuffled(size: int, seed: str) -> tuple[int, ...]:
    """Return the order of an epoch; a step of 222,000 conversations would spend 0.1 s on it otherwise."""
    order = list(range(size))
    random.Random(seed).shuffle(order)
    return tuple(order)
