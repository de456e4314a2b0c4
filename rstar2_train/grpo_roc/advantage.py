"""Group-relative advantages over the kept rollouts of a prompt (paper eq. 7).

Computed after resampling, so that they are relative to what is trained on. Imports only the standard library.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

EPSILON = 1e-6
"""Keeps the division finite; a group without variance is dropped before it matters."""


def group_advantages(rewards: Sequence[float]) -> list[float]:
    """(r - mean) / (std + 1e-6) for each kept rollout of one prompt; std has N - 1 in its denominator (eq. 7).

    A rollout alone in its group has nothing to be compared with: its advantage is 0.
    """
    if len(rewards) < 2:
        return [0.0] * len(rewards)
    mean = statistics.fmean(rewards)
    spread = statistics.stdev(rewards) + EPSILON
    return [(reward - mean) / spread for reward in rewards]
