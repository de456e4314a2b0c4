"""Means and ratios of metrics that may have no data."""

from __future__ import annotations

import math
from collections.abc import Sequence


def mean(values: Sequence[float]) -> float | None:
    """Return the mean of the values; None if there is none."""
    return math.fsum(values) / len(values) if values else None


def ratio(part: int, whole: int) -> float | None:
    """Return `part / whole`; None if `whole` is 0."""
    return part / whole if whole else None
