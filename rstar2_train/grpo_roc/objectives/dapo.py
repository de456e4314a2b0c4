"""DAPO (arXiv 2503.14476, eqs. 8 to 13): token mean of the update, clip-higher, overlong reward shaping.

    R = r - overlongPenalty · min(1, (L - (Lmax - B)) / B)  if L > Lmax - B,   B = overlongBufferRatio · Lmax
    A = (R - mean) / (std + 1e-6)
    J = token mean of the update of  min( ratio A, clip(ratio, 1 - clipLow, 1 + clipHigh) A )

The paper's B is 4096 of 20480 tokens: 0.2. Its rewards are -1 and 1, those of this project 0 and 1: for the paper's
proportion set overlongPenalty to 0.5. Dynamic sampling is `grpo.dynamicSampling`, and `truncated: Mask` the filter of
overlong rollouts, which the paper replaced by the shaping. A group is dropped if its rewards are equal before the
shaping, as in the paper. Eq. 8 divides by the tokens of a prompt's group, which is GRPO with GroupMean; the code of the
authors divides by those of the batch, and so does this type. Others: TRL's `dapo` and verl's `token-mean` divide by the
tokens of the global batch too; verl's loss has a dual clip.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rstar2_train.grpo_roc.advantage import standardised
from rstar2_train.grpo_roc.surrogate import clipped_surrogate
from rstar2_train.grpo_roc.tokens import GroupRewards, Terms, Tokens

if TYPE_CHECKING:
    from rstar2_train.api.stages import GRPOSettings


def advantages(group: GroupRewards, settings: GRPOSettings) -> list[float]:
    """Return the standardised rewards of a group, which are shaped already."""
    return standardised(group.rewards)


def loss(tokens: Tokens, settings: GRPOSettings) -> Terms:
    """Return the clipped objective as a token mean."""
    objective, clipped = clipped_surrogate(tokens.ratio, tokens.advantages, settings.objective)
    return Terms(objective, tokens.weights("TokenMean"), clipped)
