"""All metrics of a GRPO step, from its groups: what MLflow, progress and the terminal view show.

Called by the driver after selection and update. The names of `reject_equal_reward/`, `roc_error_ratio/`,
`roc_answer_format/` and `down_sampling/` are those that rStar2-Agent's users know. Pure; no figure counts a
trajectory that infrastructure lost, except the one that counts those.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rstar2_train.rollout.trajectory import Trajectory

HEADLINE = {
    "reward": "reward/mean",
    "tool_error_ratio": "tools/error_ratio",
    "truncated": "response/truncation_ratio",
    "tokens_per_second": "rollout/tokens_per_second",
    "response_tokens": "response/length_mean",
    "all_correct": "reject_equal_reward/all_correct_ratio",
}
"""Name in `progress.json` (and in the terminal view) -> metric."""


def step_metrics(
    groups: Sequence[Sequence[Trajectory]], trainer: Mapping[str, float], timings: Mapping[str, float]
) -> dict[str, float]:
    """Metrics of one step.

    `groups`: all rollouts of each prompt, judged, with `kept` set by the selection. `trainer`: what the update
    returned (loss, gradient norm, ...), reported as `trainer/<name>`. `timings`: seconds a phase, reported as
    `time/<phase>_seconds`; `rollout` is the one that tokens per second are taken over. A figure with nothing to
    measure (no tool call, no correct rollout) is left out, not 0.
    """
    valid = [[trajectory for trajectory in group if not trajectory.failed] for group in groups]
    everyone = [trajectory for group in valid for trajectory in group]
    values: dict[str, float | None] = {
        **_rewards(everyone),
        **_groups(valid),
        **_penalties(everyone),
        **_tools(everyone),
        **_responses(everyone),
        "down_sampling/before_sampling_trace_num": len(everyone),
        "down_sampling/after_sampling_trace_num": sum(trajectory.kept for trajectory in everyone),
        "rollout/excluded": sum(len(group) for group in groups) - len(everyone),
        "rollout/tokens_per_second": _rate(_sampled_tokens(everyone), timings.get("rollout", 0.0)),
        **{f"trainer/{name}": value for name, value in trainer.items()},
        **{f"time/{phase}_seconds": seconds for phase, seconds in timings.items()},
    }
    return {name: float(value) for name, value in values.items() if value is not None}


def headline(metrics: Mapping[str, float]) -> dict[str, float]:
    """The few metrics that progress carries, under their short names."""
    return {short: metrics[name] for short, name in HEADLINE.items() if name in metrics}


def _rewards(everyone: Sequence[Trajectory]) -> dict[str, float | None]:
    kept = [trajectory.reward for trajectory in everyone if trajectory.kept]
    verdicts = Counter(trajectory.verdict for trajectory in everyone)
    return {
        "reward/mean": _mean([trajectory.reward for trajectory in everyone]),
        "reward/mean_kept": _mean(kept),
        "reward/no_answer_ratio": _ratio(verdicts["no_answer"], len(everyone)),
        "reward/verifier_timeout_ratio": _ratio(verdicts["timeout"], len(everyone)),
    }


def _groups(valid: Sequence[Sequence[Trajectory]]) -> dict[str, float | None]:
    """Groups whose rollouts all have one reward carry no advantage and are dropped."""
    rewards = [{trajectory.reward for trajectory in group} for group in valid if group]
    equal = [values for values in rewards if len(values) == 1]
    wrong = sum(values == {0.0} for values in equal)
    kept = [{trajectory.reward for trajectory in group if trajectory.kept} for group in valid]
    return {
        "reject_equal_reward/solve_non_equal_total": len(rewards) - len(equal),
        "reject_equal_reward/solve_equal_total": len(equal),
        "reject_equal_reward/solve_equal_total_ratio": _ratio(len(equal), len(rewards)),
        "reject_equal_reward/solve_equal_zeros": wrong,
        "reject_equal_reward/solve_equal_non_all_zeros": len(equal) - wrong,
        "reject_equal_reward/all_correct_ratio": _ratio(len(equal) - wrong, len(rewards)),
        "reject_equal_reward/all_wrong_ratio": _ratio(wrong, len(rewards)),
        "down_sampling/trained_group_num": sum(len(values) > 1 for values in kept),
    }


def _penalties(everyone: Sequence[Trajectory]) -> dict[str, float | None]:
    tags = [trajectory.answer_tags for trajectory in everyone]
    kept_correct = [trajectory for trajectory in everyone if trajectory.kept and trajectory.reward > 0]
    return {
        "roc_error_ratio/global_err_ratio": _error_ratio(everyone),
        "roc_error_ratio/penalty_weight": _mean([trajectory.p_err for trajectory in everyone]),
        "roc_error_ratio/penalty_weight_kept_correct": _mean([trajectory.p_err for trajectory in kept_correct]),
        "roc_answer_format/penalty_weight": _mean([trajectory.p_format for trajectory in everyone]),
        "roc_answer_format/penalty_weight_kept_correct": _mean([trajectory.p_format for trajectory in kept_correct]),
        "roc_answer_format/answer_per_rollout_mean": _mean(tags),
        "roc_answer_format/zero_answer_count": sum(count == 0 for count in tags),
        "roc_answer_format/one_answer_count": sum(count == 1 for count in tags),
        "roc_answer_format/gt_one_answer_count": sum(count > 1 for count in tags),
    }


def _tools(everyone: Sequence[Trajectory]) -> dict[str, float | None]:
    calls = [call for trajectory in everyone for call in trajectory.calls]
    # Calls that never reached the judge (malformed, unknown tool) have no latency.
    ran = [call for call in calls if call.status not in ("malformed", "unknown_tool", "invalid")]
    latency = sorted(call.queue_seconds + call.run_seconds for call in ran)
    statuses = Counter(call.status for call in calls)
    return {
        "tools/calls_per_trajectory": _ratio(len(calls), len(everyone)),
        "tools/calls": len(calls),
        "tools/error_ratio": _error_ratio(everyone),
        "tools/error_ratio_correct": _error_ratio([trajectory for trajectory in everyone if trajectory.reward > 0]),
        "tools/latency_mean_seconds": _mean(latency),
        "tools/latency_p50_seconds": quantile(latency, 0.5),
        "tools/latency_p99_seconds": quantile(latency, 0.99),
        "tools/queue_mean_seconds": _mean([call.queue_seconds for call in ran]),
        **{f"tools/status_{status}_ratio": count / len(calls) for status, count in sorted(statuses.items())},
    }


def _responses(everyone: Sequence[Trajectory]) -> dict[str, float | None]:
    lengths = [trajectory.response_tokens for trajectory in everyone]
    correct = [trajectory.response_tokens for trajectory in everyone if trajectory.reward > 0]
    return {
        "response/length_mean": _mean(lengths),
        "response/length_max": max(lengths, default=None),
        "response/length_mean_correct": _mean(correct),
        "response/truncation_ratio": _ratio(sum(trajectory.truncated for trajectory in everyone), len(everyone)),
        "response/turns_mean": _mean([trajectory.turns for trajectory in everyone]),
        "response/seconds_mean": _mean([trajectory.seconds for trajectory in everyone]),
        "response/seconds_max": max((trajectory.seconds for trajectory in everyone), default=None),
    }


def quantile(ascending: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` of `ascending` (sorted) do not exceed; None when it is empty."""
    if not ascending:
        return None
    return ascending[max(0, math.ceil(share * len(ascending)) - 1)]


def _sampled_tokens(everyone: Iterable[Trajectory]) -> int:
    return sum(
        len(segment.token_ids) for trajectory in everyone for segment in trajectory.segments if segment.kind == "model"
    )


def _error_ratio(trajectories: Sequence[Trajectory]) -> float | None:
    calls = sum(len(trajectory.calls) for trajectory in trajectories)
    return _ratio(sum(trajectory.call_errors for trajectory in trajectories), calls)


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _rate(amount: int, seconds: float) -> float | None:
    return amount / seconds if seconds > 0 else None
