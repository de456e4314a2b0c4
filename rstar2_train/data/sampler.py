"""The order in which a stage draws its data: shuffled, seeded, and known from the step number alone.

Nothing is remembered between steps, so a resumed run draws exactly what the first run would have drawn.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PromptSampler:
    """Batches of distinct items over endless epochs, each epoch in its own shuffled order.

    The items that do not fill a last batch of an epoch are left out of that epoch; the next shuffle brings them back.
    """

    size: int
    """Items there are."""
    batch: int
    """Items a batch; where there are fewer items, every batch holds them all."""
    seed: int
    """Together with `name` fixes the order."""
    name: str = ""
    """What is drawn, such as the stage's name: two stages of one job draw in different orders."""

    def __post_init__(self) -> None:
        if self.size < 1 or self.batch < 1:
            raise ValueError(f"cannot draw batches of {self.batch} from {self.size} items: both must be at least 1")

    @property
    def batches_per_epoch(self) -> int:
        """Whole batches in one pass over the items; at least 1."""
        return max(1, self.size // self.batch)

    def at(self, step: int) -> list[int]:
        """Indices of the items of batch `step` (0 the first): distinct, in the order in which they are used."""
        if step < 0:
            raise ValueError(f"step {step} is before the first batch")
        epoch, position = divmod(step, self.batches_per_epoch)
        order = list(range(self.size))
        random.Random(f"{self.seed}/{self.name}/{epoch}").shuffle(order)
        return order[position * self.batch : (position + 1) * self.batch]
