"""RLOO (arXiv 2402.14740): REINFORCE with the mean of the other rollouts as the baseline.

    A = r - mean of the others = (r - mean) · n / (n - 1)
    J = token mean of the update of  ratio · A

On policy the gradient of the ratio is that of log pi; with several updates per step it corrects for the change since
the start of the step, unclipped. The source sums over the tokens of a sequence: the same direction of the update's
gradient, up to one constant. Others: TRL's RLOOTrainer clips the ratio of the sequence; verl combines the advantage
with its clipped loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rstar2_train.grpo_roc.advantage import centred
from rstar2_train.grpo_roc.tokens import GroupRewards, Terms, Tokens

if TYPE_CHECKING:
    from rstar2_train.api.stages import GRPOSettings


def advantages(group: GroupRewards, settings: GRPOSettings) -> list[float]:
    """Return each reward minus the mean of the others; 0 for a single rollout."""
    size = len(group.rewards)
    return [value * size / max(1, size - 1) for value in centred(group.rewards)]


def loss(tokens: Tokens, settings: GRPOSettings) -> Terms:
    """Return ratio times advantage."""
    return Terms(tokens.ratio * tokens.advantages, tokens.weights("TokenMean"))
