"""DPPO with total variation (arXiv 2602.04879): masks a token by the change of its probability, not by its ratio.

    A = r - mean
    J = token mean of the update of  m · sg( min(ratio, maxRatio) ) · A · log pi
    m = 0 if A > 0 and pi - pi_old > maxDivergence,  or A < 0 and pi - pi_old < -maxDivergence;  else 1

A ratio punishes rare tokens: from 1e-5 to 2e-5 it is 2, and the policy is the same. The source leaves the advantage
open; r - mean, the token mean and maxDivergence 0.2 are those of prime-rl. The example of the authors in verl has 0.15,
and the constant denominator of DrGRPO. Others: verl's `dppo_tv` compares with the rollout's probabilities if it
bypasses pi_old; here pi_old is the trainer's own, and the staleness correction has the engine's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rstar2_train.grpo_roc.advantage import centred
from rstar2_train.grpo_roc.tokens import GroupRewards, Terms, Tokens

if TYPE_CHECKING:
    from rstar2_train.api.stages import GRPOSettings


def advantages(group: GroupRewards, settings: GRPOSettings) -> list[float]:
    """Return the rewards minus their mean."""
    return centred(group.rewards)


def loss(tokens: Tokens, settings: GRPOSettings) -> Terms:
    """Return the log-probability, weighted by advantage and capped ratio, of tokens that are not masked."""
    change = tokens.logprobs.detach().exp() - tokens.old_logprobs.where(tokens.trained, 0.0).exp()
    # By sign: a change against the advantage returns to pi_old, and is never masked.
    masked = (change * tokens.advantages.sign() > settings.objective.max_divergence) & tokens.trained
    weight = tokens.ratio.detach().clamp(max=settings.objective.max_ratio).where(~masked, 0.0)
    return Terms(weight * tokens.advantages * tokens.logprobs, tokens.weights("TokenMean"), masked)
