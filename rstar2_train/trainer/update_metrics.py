"""The metrics of the updates of a step, from the sums and maxima of all ranks. Pure.

`trainer_group` adds the counts of the step; the orchestrator reports them as `trainer/NAME` (docs/monitoring.md).
"""

from __future__ import annotations

from rstar2_train.grpo_roc.gap import gap_quantile
from rstar2_train.trainer.types import MetricTally

Metrics = dict[str, float]


def common_metrics(tally: MetricTally, *, lr: float, all_tokens: int, seconds: float) -> Metrics:
    """Return loss, grad_norm (largest), entropy, tokens (trained), update_skipped, lr, seconds and tokens_per_second.

    `all_tokens`: with prompts and tool output. `seconds`: of the step.
    """
    return {
        "loss": tally.sums["loss"],
        "grad_norm": tally.maxima["grad_norm"],
        "entropy": tally.sums["entropy"] / tally.sums["tokens"],
        "tokens": tally.sums["tokens"],
        "update_skipped": tally.maxima["skipped"],
        "lr": lr,
        "seconds": seconds,
        "tokens_per_second": all_tokens / seconds,
        **{name: tally.maxima[name] for name in ("graphs", "uncompiled") if name in tally.maxima},
    }


def grpo_metrics(tally: MetricTally) -> Metrics:
    """Return the metrics of a GRPO step.

    clip_fraction, ratio_mean, ratio_max, approx_kl, mismatch_mean and mismatch_max (|log p_trainer - log p_engine| at
    the start of the step), correction_mean, reference_kl, teacher_kl and distilled_tokens (those with a term of the
    teacher) if they are enabled, those of the gap to the engine, and of a mixture those of the replay.
    """
    sums, maxima = tally.sums, tally.maxima
    tokens = sums["tokens"]
    metrics = {
        "clip_fraction": sums["clipped"] / tokens,
        "ratio_mean": sums["ratio"] / tokens,
        "ratio_max": maxima["ratio_max"],
        "approx_kl": sums["kl"] / tokens,
        "mismatch_mean": sums["mismatch"] / tokens,
        "mismatch_max": maxima["mismatch_max"],
    }
    if "correction" in sums:
        metrics["correction_mean"] = sums["correction"] / tokens
    metrics |= {name: sums[name] / tokens for name in ("reference_kl", "teacher_kl") if name in sums}
    if "distilled_tokens" in sums:
        metrics["distilled_tokens"] = sums["distilled_tokens"]
    return metrics | _gap_metrics(tally) | _replay_metrics(tally)


def _gap_metrics(tally: MetricTally) -> Metrics:
    """Return the metrics of the gap between trainer and engine over the trained tokens of the step.

    `engine_error_mean` is its mean over the tokens that the trainer's own version sampled, `drift_mean` over those that
    older versions sampled; the one without tokens is omitted.
    """
    sums, tokens = tally.sums, tally.sums["tokens"]
    stale, drift = sums.get("stale", 0.0), sums.get("drift", 0.0)
    metrics = {
        "gap_p50": gap_quantile(tally.gaps, 0.5),
        "gap_p99": gap_quantile(tally.gaps, 0.99),
        "gap_outside_ratio": sums["outside"] / tokens,
        "effective_sample_size": sums["weight"] ** 2 / (tokens * sums["weight_squared"]),
    }
    if stale < tokens:
        metrics["engine_error_mean"] = (sums["mismatch"] - drift) / (tokens - stale)
    if stale:
        metrics["drift_mean"] = drift / stale
    if "excluded" in sums:
        metrics["gap_excluded_ratio"] = sums["excluded"] / tokens
    return metrics


def _replay_metrics(tally: MetricTally) -> Metrics:
    """Return the metrics of the replay of a mixture's experts.

    `own_experts_kl` is KL(engine || trainer) if the trainer used its own experts, in the steps that measure it.
    """
    sums, metrics = tally.sums, {}
    if "experts" in sums:
        metrics["experts_changed_ratio"] = sums["experts_differing"] / max(1.0, sums["experts"])
        metrics["engine_kl"] = sums["engine_kl"] / sums["tokens"]
    if sums.get("own_experts_tokens"):
        metrics["own_experts_kl"] = sums["own_experts_kl"] / sums["own_experts_tokens"]
    return metrics
