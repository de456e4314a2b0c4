"""GSPO (arXiv 2507.18071, eqs. 5 to 7): the probability ratio of a sequence, for a reward of a sequence.

    s = exp( mean over the sequence's trained tokens of (log pi - log pi_old) )
    A = (r - mean) / (std + 1e-6)
    J = mean over sequences of  min( s A, clip(s, 1 - clipLow, 1 + clipHigh) A )

The mean excludes tool output, and is that of the whole sequence, which is never split over micro-batches. The staleness
correction is that of the sequence too: min(cap, exp(mean of log p_old - log p_engine)). Others: TRL has it as
`importance_sampling_level: sequence`, with the mean of its loss type; the correction of TRL and verl is per token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rstar2_train.grpo_roc.advantage import standardised
from rstar2_train.grpo_roc.surrogate import clipped_surrogate
from rstar2_train.grpo_roc.tokens import GroupRewards, Terms, Tokens

if TYPE_CHECKING:
    from rstar2_train.api.stages import GRPOSettings


def advantages(group: GroupRewards, settings: GRPOSettings) -> list[float]:
    """Return the standardised rewards of a group."""
    return standardised(group.rewards)


def loss(tokens: Tokens, settings: GRPOSettings) -> Terms:
    """Return the clipped objective of each sequence, distributed over its tokens."""
    ratio = tokens.sequence_mean(tokens.log_ratio).exp()
    objective, clipped = clipped_surrogate(ratio, tokens.advantages, settings.objective)
    return Terms(objective, tokens.weights("SequenceMean"), clipped, ratio_of="sequence")
