"""The GRPO-RoC objective (paper eq. 6): clipped probability ratios, no KL term, no entropy term.

The trainer calls `grpo_loss` for every micro-batch. Each token has its weight in the whole update, so that the sum over
micro-batches and ranks is exactly eq. 6 for any distribution of the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Bound of log ratios before exp: an overflow would change a masked token's 0 to NaN."""


@dataclass(frozen=True, slots=True)
class LossParts:
    """The share of one micro-batch in the loss and in its metrics."""

    loss: Tensor
    """Scalar with a gradient: minus the micro-batch's share of eq. 6."""
    sums: dict[str, Tensor]
    """Scalars to sum: tokens, clipped, ratio, kl; with engine log-probabilities also mismatch and correction."""
    maxima: dict[str, Tensor]
    """Scalars to maximise: ratio_max, mismatch_max."""


def grpo_loss(
    *,
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    clip_low: float,
    clip_high: float,
    engine_logprobs: Tensor | None = None,
    correction_cap: float | None = None,
) -> LossParts:
    """Return minus the clipped objective of eq. 6 for some tokens. All tensors have one shape, or broadcast to it.

    Args:
        logprobs: log-probability of each token under the trained policy, with gradient.
        old_logprobs: the same under the trainer's policy at the start of the step.
        advantages: eq. 7, the value of the token's rollout.
        weights: the token's weight in the update (`advantage.group_token_weights`); 0 masks it: tool output, padding.
        clip_low: the lower bound of the ratio is 1 - clip_low.
        clip_high: the upper bound of the ratio is 1 + clip_high (clip-higher).
        engine_logprobs: log-probabilities that the engine reported, for the mismatch metrics.
        correction_cap: weight each token by min(cap, p_old / p_engine): truncated importance sampling. None: off.

    Raises:
        ValueError: for a correction without the engine's log-probabilities.
    """
    if correction_cap is not None and engine_logprobs is None:
        raise ValueError("importance correction needs the engine's log-probabilities")
    trained = weights > 0
    log_ratio = torch.where(trained, logprobs - old_logprobs, 0.0).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio = log_ratio.exp()
    clipped_ratio = ratio.clamp(1 - clip_low, 1 + clip_high)
    objective = torch.minimum(ratio * advantages, clipped_ratio * advantages)

    with torch.no_grad():
        count = trained.to(logprobs.dtype)
        clipped = (clipped_ratio * advantages < ratio * advantages).to(logprobs.dtype)
        sums = {
            "tokens": count.sum(),
            "clipped": (clipped * count).sum(),
            "ratio": (ratio * count).sum(),
            # k3 estimate of KL(old || new): never negative, low variance.
            "kl": ((ratio - 1 - log_ratio) * count).sum(),
        }
        maxima = {"ratio_max": torch.where(trained, ratio, 0.0).max()}
        correction = torch.ones_like(ratio)
        if engine_logprobs is not None:
            gap = torch.where(trained, old_logprobs - engine_logprobs, 0.0)
            sums["mismatch"] = gap.abs().sum()
            maxima["mismatch_max"] = gap.abs().max()
            if correction_cap is not None:
                correction = gap.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp().clamp(max=correction_cap)
                sums["correction"] = (correction * count).sum()
    loss = -(objective * correction * weights).sum()
    return LossParts(loss=loss, sums=sums, maxima=maxima)
