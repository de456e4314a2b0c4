"""Group-relative advantages (paper eq. 7), and the weight of a token in an update (the denominators of eq. 6).

Computed after resampling, so that both are relative to what is trained on. Imports only the standard library.
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


def group_token_weights(group_tokens: Sequence[int]) -> list[float]:
    """The weight of one token of each group: a token mean inside the group, then a mean over groups (eq. 6).

    Args:
        group_tokens: trained tokens of each group in one update, over all ranks: the true denominators.

    Raises:
        ValueError: when a group has no token to train on.
    """
    if any(tokens <= 0 for tokens in group_tokens):
        raise ValueError(f"a group has no trained token: {list(group_tokens)}")
    return [1.0 / (tokens * len(group_tokens)) for tokens in group_tokens]
