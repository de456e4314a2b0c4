"""Rounds float32 parameters to the number format of a file: a value that it cannot hold is an error, not infinity."""

from __future__ import annotations

import torch
from torch import Tensor

from rstar2_train.capacity.model_support import UnsupportedModel


def rounded(value: Tensor, dtype: torch.dtype, *, name: str, device: str | None = None) -> Tensor:
    """Return a parameter in a number format, and on another device if one is given.

    Raises:
        UnsupportedModel: for a parameter that the format cannot hold: float16 has a smaller range than float32.
    """
    result = value.to(device=device or value.device, dtype=dtype)
    if dtype is torch.float16 and (fault := overflow(result, place=name)):
        raise UnsupportedModel(fault)
    return result


def overflow(result: Tensor, *, place: str) -> str:
    """Return that rounding made a value infinite, with the remedy; empty: it did not. `place`: of the tensor."""
    if result.isfinite().all():
        return ""
    return f"{place} has values that {result.dtype} cannot hold: convert the base to bfloat16"
