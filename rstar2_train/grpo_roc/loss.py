"""The loss of a micro-batch: the terms of the objective, the staleness correction, excluded rollouts, and metrics.

The trainer calls `policy_loss` for every micro-batch. Each token has its weight in the whole update (`tokens.Counts`),
so that the sum over micro-batches and ranks is exactly the objective for any distribution of the sequences.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from rstar2_train.grpo_roc.gap import GAP_EDGES
from rstar2_train.grpo_roc.objectives import functions_of
from rstar2_train.grpo_roc.tokens import LOG_RATIO_LIMIT, Tokens

if TYPE_CHECKING:
    from rstar2_train.api.stages import GRPOSettings

OUTSIDE = 0.1
"""A token whose p_old / p_engine differs from 1 by more than this counts as outside."""


@dataclass(frozen=True, slots=True)
class LossParts:
    """The share of one micro-batch in the loss and in its metrics."""

    loss: Tensor
    """Scalar with a gradient: minus the micro-batch's share of the objective."""
    sums: dict[str, Tensor]
    """Scalars to sum: tokens, clipped, ratio, kl; with engine log-probabilities those of `_gap_metrics`; if they apply
    correction, excluded, reference_kl, teacher_kl and distilled_tokens."""
    maxima: dict[str, Tensor]
    """Scalars to maximise: ratio_max, mismatch_max."""
    gaps: Tensor
    """Number of tokens per bin of `GAP_EDGES`, by |log p_old - log p_engine|; empty without engine values."""


def policy_loss(
    tokens: Tokens,
    settings: GRPOSettings,
    *,
    engine_logprobs: Tensor | None = None,
    stale: Tensor | None = None,
    excluded: Tensor | None = None,
) -> LossParts:
    """Return minus the share of some tokens in the objective of the update. All tensors have the shape [tokens].

    Args:
        tokens: the trained tokens of a micro-batch, with the denominators of the update.
        settings: the objective; with a correction_cap each token has the weight min(cap, p_old / p_engine): truncated
            importance sampling, of the sequence if the objective's ratio is.
        engine_logprobs: log-probabilities that the engine reported, for the mismatch metrics.
        stale: whether other weights than those of p_old sampled the token, for the metrics; None: no token.
        excluded: whether the token's rollout is too far from p_old to be trained on (`excluded_by_gap`); None: no
            token. Its weight in the loss becomes 0; the metrics include it.

    Raises:
        ValueError: for a correction without the engine's log-probabilities, or a KL term without those of a reference.
    """
    correction_cap = settings.correction_cap
    if correction_cap is not None and engine_logprobs is None:
        raise ValueError("importance correction needs the engine's log-probabilities")
    terms = functions_of(settings.objective).loss(tokens, settings)
    trained, log_ratio, ratio = tokens.trained, tokens.log_ratio, tokens.ratio

    with torch.no_grad():
        count = trained.to(ratio.dtype)
        clipped = torch.zeros_like(count) if terms.clipped is None else terms.clipped.to(ratio.dtype)
        sums = {
            "tokens": count.sum(),
            "clipped": (clipped * count).sum(),
            "ratio": (ratio * count).sum(),
            # KL(old || new), of tokens that pi_old sampled.
            "kl": (k3(log_ratio) * count).sum(),
        }
        maxima = {"ratio_max": torch.where(trained, ratio, 0.0).max()}
        correction = torch.ones_like(ratio)
        gaps = torch.zeros(0, device=ratio.device)
        if engine_logprobs is not None:
            gap = torch.where(trained, tokens.old_logprobs - engine_logprobs, 0.0)
            maxima["mismatch_max"] = gap.abs().max()
            sums |= _gap_metrics(gap, count, cap=settings.importance_correction.cap, stale=stale)
            gaps = _histogram(gap.abs(), trained)
            if correction_cap is not None:
                own = tokens.sequence_mean(gap) if terms.ratio_of == "sequence" else gap
                correction = own.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp().clamp(max=correction_cap)
                sums["correction"] = (correction * count).sum()
        if excluded is not None:
            correction = torch.where(excluded, 0.0, correction)
            sums["excluded"] = (excluded.to(count.dtype) * count).sum()
    loss = -(terms.objective * correction * terms.weights).sum()
    if settings.reference_kl is not None:
        estimate = kl_estimate(tokens, settings.reference_kl.estimator)
        sums["reference_kl"] = (estimate.detach() * count).sum()
        if excluded is not None:
            estimate = torch.where(excluded, 0.0, estimate)
        loss = loss + settings.reference_kl.weight * (estimate * terms.weights).sum()
    if settings.objective.teacher is not None:
        sums["teacher_kl"] = (kl_estimate(tokens, "K1").detach() * count).sum()
        sums["distilled_tokens"] = count.sum() if excluded is None else (count * ~excluded).sum()
    return LossParts(loss=loss, sums=sums, maxima=maxima, gaps=gaps)


def kl_estimate(tokens: Tokens, estimator: Literal["K1", "K2", "K3"]) -> Tensor:
    """Return the estimate of KL(pi || pi_reference) of each token, times pi / pi_old; 0 for tokens that do not train.

    With the ratio, the gradient of the mean over tokens that pi_old sampled is that of the mean under pi: an estimator
    alone lacks the part of the sampling, and K1 alone has the gradient 0 on average. With d = log pi - log
    pi_reference, within +-20: K1 is d, K2 d^2 / 2, K3 exp(-d) - 1 + d.
    """
    d, ratio = tokens.reference_difference.detach(), tokens.ratio.detach()
    value, slope = {
        "K1": lambda: (d, d + 1),
        "K2": lambda: (d * d / 2, d * (d / 2 + 1)),
        "K3": lambda: (k3(-d), d),
    }[estimator]()
    # Not by autograd: the parts of ratio and estimate cancel, for K3 to the last digit, and a limit would drop one.
    moved = (tokens.logprobs - tokens.logprobs.detach()).where(tokens.trained, 0.0)
    return ratio * (value + slope * moved)


def k3(log_ratio: Tensor) -> Tensor:
    """Return exp(x) - 1 - x, which is never negative: for x = log q - log p of a token of p the estimate of KL(p || q).

    In float64: near 0 it is x^2 / 2, of which the difference in float32 has no digits.
    """
    wide = log_ratio.double()
    return (wide.expm1() - wide).to(log_ratio.dtype)


def excluded_by_gap(gap: Tensor, trained: Tensor, sequences: Tensor, *, count: int, limit: float) -> Tensor:
    """Return whether each token belongs to a sequence whose mean absolute gap over its trained tokens exceeds `limit`.

    `sequences`: index of the sequence of each token, from 0 to `count` - 1.
    """
    # In float64: the sum of a long sequence in float32 depends on its order, and loses digits.
    totals = torch.zeros(count, dtype=torch.float64, device=gap.device)
    tokens = totals.clone().index_add_(0, sequences, trained.to(totals.dtype))
    totals.index_add_(0, sequences, torch.where(trained, gap.abs(), 0.0).to(totals.dtype))
    return (totals > limit * tokens)[sequences]


def kept_tokens(excluded: Tensor, trained: Tensor, indices: Tensor, *, count: int) -> Tensor:
    """Return the trained tokens of each group or sequence without those of excluded sequences: [count], int64.

    `indices`: group or sequence of each token, from 0 to `count` - 1.
    """
    kept = (trained & ~excluded).long()
    return torch.zeros(count, dtype=torch.int64, device=kept.device).index_add_(0, indices, kept)


def _gap_metrics(gap: Tensor, count: Tensor, *, cap: float, stale: Tensor | None) -> dict[str, Tensor]:
    """Return the sums of the gap's metrics.

    mismatch (absolute gap), outside, and the truncated weights with their squares; of stale tokens drift (absolute gap)
    and stale (their number).
    """
    ratio = gap.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    weight = ratio.clamp(max=cap) * count
    sums = {
        "mismatch": gap.abs().sum(),
        "outside": (((ratio - 1).abs() > OUTSIDE).to(count.dtype) * count).sum(),
        "weight": weight.sum(),
        "weight_squared": (weight * weight).sum(),
    }
    if stale is not None:
        other = stale.to(count.dtype) * count
        sums |= {"drift": (gap.abs() * other).sum(), "stale": other.sum()}
    return sums


def _histogram(values: Tensor, counted: Tensor) -> Tensor:
    # Neither a selection nor bincount, whose result sizes the host would wait for.
    bins = torch.bucketize(values, _edges(values.device, values.dtype))
    counts = torch.zeros(len(GAP_EDGES) + 1, dtype=torch.float64, device=values.device)
    return counts.index_add_(0, bins, counted.to(counts.dtype))


@functools.cache
def _edges(device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.tensor(GAP_EDGES, device=device, dtype=dtype)
