"""SAPO (arXiv 2511.20347, eqs. 5 and 6): a smooth gate in place of the clip.

    A = (r - mean) / (std + 1e-6)
    J = mean over sequences of the token mean of  4 / tau · sigmoid( tau (ratio - 1) ) · A
    tau = positiveTemperature if A > 0, else negativeTemperature

On policy the gradient is that of GRPO. Others: TRL and verl have the same term; TRL's mean is that of a micro-batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rstar2_train.grpo_roc.advantage import standardised
from rstar2_train.grpo_roc.tokens import GroupRewards, Terms, Tokens

if TYPE_CHECKING:
    from rstar2_train.api.stages import GRPOSettings


def advantages(group: GroupRewards, settings: GRPOSettings) -> list[float]:
    """Return the standardised rewards of a group."""
    return standardised(group.rewards)


def loss(tokens: Tokens, settings: GRPOSettings) -> Terms:
    """Return the gated objective."""
    positive = tokens.advantages > 0
    temperature = tokens.advantages.new_full((), settings.objective.negative_temperature).where(
        ~positive, settings.objective.positive_temperature
    )
    distance = temperature * (tokens.ratio - 1)
    # The derivative sigmoid(x) sigmoid(-x) has the digits of the smaller factor if that one is computed.
    gate = (1 - (-distance).sigmoid()).where(distance > 0, distance.sigmoid())
    return Terms(4 / temperature * gate * tokens.advantages, tokens.weights("SequenceMean"))
