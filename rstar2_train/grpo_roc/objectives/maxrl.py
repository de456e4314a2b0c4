"""MaxRL (arXiv 2602.02710): the advantage approximates maximum likelihood, so that hard problems weigh more.

    A = (r - mean) / mean, 0 if mean <= 0
    J = token mean of the update of  ratio · A

With rewards 0 and 1 the gradient of a prompt is that of the mean log-likelihood of its correct rollouts, minus a
baseline. The mean is that of the kept rollouts: Resample-on-Correct changes it where it keeps other shares of the
classes. The source sums over the tokens of a sequence: the same direction of the update's gradient, up to one constant.
Others: prime-rl has it as an advantage for its own loss.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from rstar2_train.grpo_roc.tokens import GroupRewards, Terms, Tokens

if TYPE_CHECKING:
    from rstar2_train.api.stages import GRPOSettings


def advantages(group: GroupRewards, settings: GRPOSettings) -> list[float]:
    """Return the rewards minus their mean, as a share of the mean."""
    mean = statistics.fmean(group.rewards)
    return [(reward - mean) / mean if mean > 0 else 0.0 for reward in group.rewards]


def loss(tokens: Tokens, settings: GRPOSettings) -> Terms:
    """Return ratio times advantage."""
    return Terms(tokens.ratio * tokens.advantages, tokens.weights("TokenMean"))
