"""Group-relative advantages (paper eq. 7), and the weight of a token in an update (the denominators of eq. 6).

Computed after resampling: both are relative to the rollouts that train the policy. Imports only the standard library.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

EPSILON = 1e-6
"""Keeps the division finite; groups without variance are dropped earlier."""


def group_advantages(rewards: Sequence[float]) -> list[float]:
    """Return (r - mean) / (std + 1e-6) for each kept rollout of one prompt; std divides by N - 1 (eq. 7).

    The advantage of a single rollout is 0.
    """
    if len(rewards) < 2:
        return [0.0] * len(rewards)
    mean = statistics.fmean(rewards)
    spread = statistics.stdev(rewards) + EPSILON
    return [(reward - mean) / spread for reward in rewards]


def group_token_weights(group_tokens: Sequence[int]) -> list[float]:
    """Return the weight of one token per group: a token mean inside the group, then a mean over groups (eq. 6).

    Args:
        group_tokens: trained tokens of each group in one update, over all ranks: the exact denominators.

    Raises:
        ValueError: if a group has no trained token.
    """
    if any(tokens <= 0 for tokens in group_tokens):
        raise ValueError(f"a group has no trained token: {list(group_tokens)}")
    return [1.0 / (tokens * len(group_tokens)) for tokens in group_tokens]


def kept_group_weights(kept_tokens: Sequence[int]) -> list[float]:
    """Return the weight of one token per group if dropped rollouts leave both denominators of eq. 6.

    Args:
        kept_tokens: trained tokens of the kept rollouts of each group, over all ranks. A group without any leaves the
            mean over groups; its weight is 0.
    """
    weights = iter(group_token_weights([tokens for tokens in kept_tokens if tokens]))
    return [next(weights) if tokens else 0.0 for tokens in kept_tokens]
