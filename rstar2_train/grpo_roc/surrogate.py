"""Objectives of a token that several types share: the clipped and the plain probability ratio times the advantage."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from rstar2_train.api.objectives import Objective


def clipped_surrogate(ratio: Tensor, advantages: Tensor, bounds: Objective) -> tuple[Tensor, Tensor]:
    """Return min(ratio A, clip(ratio, 1 - clipLow, 1 + clipHigh) A), and whether the clip removes the gradient."""
    clipped_ratio = ratio.clamp(1 - bounds.clip_low, 1 + bounds.clip_high)
    plain, clipped = ratio * advantages, clipped_ratio * advantages
    return plain.minimum(clipped), clipped.detach() < plain.detach()
