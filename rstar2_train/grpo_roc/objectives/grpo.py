"""GRPO as in the rStar2 paper (arXiv 2508.20722, eqs. 6 and 7; clip-higher of DAPO): the default.

    A = (r - mean) / (std + 1e-6)                                       of the group's kept rollouts
    J = mean over groups of the token mean of  min( ratio A, clip(ratio, 1 - clipLow, 1 + clipHigh) A )

`aggregation` replaces the mean: SequenceMean is that of DeepSeekMath (arXiv 2402.03300, eq. 3, without its KL term);
TokenMean that of DAPO. Others: TRL's `grpo` is SequenceMean and its `bnpo` TokenMean, of a micro-batch, so that unequal
micro-batches change the mean; here denominators are those of the update. verl's `vanilla` has a dual clip too: no
gradient for ratios above 3 if A < 0. Both have clipHigh 0.2; TRL adds 1e-4 to std.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rstar2_train.grpo_roc.advantage import standardised
from rstar2_train.grpo_roc.surrogate import clipped_surrogate
from rstar2_train.grpo_roc.tokens import GroupRewards, Terms, Tokens

if TYPE_CHECKING:
    from rstar2_train.api.stages import GRPOSettings


def advantages(group: GroupRewards, settings: GRPOSettings) -> list[float]:
    """Return the standardised rewards of a group (eq. 7)."""
    return standardised(group.rewards)


def loss(tokens: Tokens, settings: GRPOSettings) -> Terms:
    """Return the clipped objective (eq. 6)."""
    objective, clipped = clipped_surrogate(tokens.ratio, tokens.advantages, settings.objective)
    return Terms(objective, tokens.weights(settings.objective.aggregation), clipped)
