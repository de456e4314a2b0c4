"""Dr. GRPO (arXiv 2503.20783, eq. 4): GRPO without the two divisions that depend on the data.

    A = r - mean
    J = 1 / (sequences x maxResponseTokens) · sum over all tokens of  min( ratio A, clip(ratio, ...) A )

The constant keeps the gradient of a sequence independent of its length. `sequences` are those of the update that have a
trained token. Others: TRL's `dr_grpo` divides by the sequences of the micro-batch, and its mean over unequal
micro-batches differs; verl's `seq-mean-token-sum-norm` divides by the padded width unless `loss_scale_factor` is set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rstar2_train.grpo_roc.advantage import centred
from rstar2_train.grpo_roc.surrogate import clipped_surrogate
from rstar2_train.grpo_roc.tokens import GroupRewards, Terms, Tokens

if TYPE_CHECKING:
    from rstar2_train.api.stages import GRPOSettings


def advantages(group: GroupRewards, settings: GRPOSettings) -> list[float]:
    """Return the rewards minus their mean."""
    return centred(group.rewards)


def loss(tokens: Tokens, settings: GRPOSettings) -> Terms:
    """Return the clipped objective over a constant denominator."""
    objective, clipped = clipped_surrogate(tokens.ratio, tokens.advantages, settings.objective)
    weights = tokens.constant_weights(tokens.counts.sequences * settings.max_response_tokens)
    return Terms(objective, weights, clipped)
