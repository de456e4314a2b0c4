"""The product of an adapter, and its sum with a stored weight, in float32. Pure."""

from __future__ import annotations

from torch import Tensor


def low_rank(a: Tensor, b: Tensor, *, scale: float) -> Tensor:
    """Return scale * B A [out, in], in float32."""
    return (b @ a).mul_(scale)


def merged(stored: Tensor, product: Tensor) -> Tensor:
    """Return a stored weight plus the product of an adapter, in float32: the caller rounds it once."""
    return product + stored.float()
