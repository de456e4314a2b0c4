"""Advantages of the rollouts of one prompt, which several objectives share (paper eq. 7).

Computed after resampling: relative to the rollouts that train the policy. Imports only the standard library.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

EPSILON = 1e-6
"""Keeps the division finite; groups without variance are dropped earlier."""


def standardised(rewards: Sequence[float]) -> list[float]:
    """Return (r - mean) / (std + 1e-6) for each kept rollout of one prompt; std divides by N - 1 (eq. 7).

    The advantage of a single rollout is 0.
    """
    if len(rewards) < 2:
        return [0.0] * len(rewards)
    mean = statistics.fmean(rewards)
    spread = statistics.stdev(rewards) + EPSILON
    return [(reward - mean) / spread for reward in rewards]


def centred(rewards: Sequence[float]) -> list[float]:
    """Return r - mean for each kept rollout of one prompt."""
    mean = statistics.fmean(rewards)
    return [reward - mean for reward in rewards]


def shaped_reward(reward: float, *, length: int, most: int, buffer_ratio: float, penalty: float) -> float:
    """Return the reward minus the overlong penalty of DAPO (arXiv 2503.14476, eq. 13).

    The penalty grows linearly from 0 to `penalty` over the last `buffer_ratio` of `most` tokens.
    """
    buffer = buffer_ratio * most
    excess = length - (most - buffer)
    return reward - penalty * min(1.0, excess / buffer) if buffer and excess > 0 else reward
