"""CISPO (arXiv 2506.13585, eqs. 4 and 5): the clipped ratio is a constant weight, so each token keeps a gradient.

    A = (r - mean) / (std + 1e-6)
    J = token mean of the update of  sg( clip(ratio, 1 - clipLow, 1 + clipHigh) ) · A · log pi

sg: without a gradient. The source has no lower bound, which is clipLow 1, and does not publish clipHigh; ScaleRL
(arXiv 2510.13786) uses at most 4 to 8 for the ratio: 5 is clipHigh 4. Eq. 4 divides by the tokens of a prompt's group;
here it is by those of the update, as in TRL and verl. Others: TRL's `cispo` has epsilon_high as the largest ratio
itself (5.0 there is 4.0 here), and no lower bound; verl's has both bounds, 0.2 by default.
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
    """Return the log-probability, weighted by advantage and clipped ratio."""
    bounds, ratio = settings.objective, tokens.ratio.detach()
    weight = ratio.clamp(1 - bounds.clip_low, 1 + bounds.clip_high)
    return Terms(weight * tokens.advantages * tokens.logprobs, tokens.weights("TokenMean"), weight != ratio)
