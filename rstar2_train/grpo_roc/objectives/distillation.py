"""On-policy distillation: the student samples, and the teacher's log-probabilities of its tokens give the advantage.

    A_t = teacherWeight · (log pi_teacher - log pi) + rewardWeight · (r - mean) / (std + 1e-6)
    J   = token mean of the update of  ratio · sg(A_t)

Sources: generalised knowledge distillation with the reverse divergence (arXiv 2306.13649), MiniLLM (arXiv 2306.08543).
With rewardWeight 0 the gradient is, on average over the student's tokens, that of minus KL(pi || pi_teacher) of the
next token in the states that the student visits; the effect of a token on later states is left out. log pi is that of
the present update, without a gradient; the difference is within +-20. Rollouts with equal rewards train too. Others:
verl clips the ratio as PPO does, the difference to +-10, and adds the loss of the reward as a term of its own; prime-rl
masks tokens whose probability fell by 0.2 since the rollout, and adds 1e-3 · log(ratio)^2; TRL's DistillationTrainer
computes the divergence over the vocabulary, or its largest entries, instead of a sampled token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rstar2_train.grpo_roc.advantage import standardised
from rstar2_train.grpo_roc.tokens import GroupRewards, Terms, Tokens

if TYPE_CHECKING:
    from rstar2_train.api.stages import GRPOSettings


def advantages(group: GroupRewards, settings: GRPOSettings) -> list[float]:
    """Return the standardised rewards of a group, times their weight; 0 for equal rewards."""
    weight = settings.objective.reward_weight
    return [weight * value for value in standardised(group.rewards)]


def loss(tokens: Tokens, settings: GRPOSettings) -> Terms:
    """Return the ratio times the advantage of the reward and of the teacher."""
    teacher = tokens.reference_difference.detach() * settings.objective.teacher_weight
    return Terms(tokens.ratio * (tokens.advantages - teacher), tokens.weights("TokenMean"))
