"""Computes all metrics of a GRPO step from its groups, for MLflow, progress and the terminal view.

The orchestrator calls it after selection and update. The names of `reject_equal_reward/`, `roc_error_ratio/`,
`roc_answer_format/` and `down_sampling/` are those of rStar2-Agent. Lost rollouts count in `rollout/excluded` only.
Pure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.utils.numbers import mean, ratio

HEADLINE = {
    "reward": "reward/mean",
    "tool_error_ratio": "tools/error_ratio",
    "truncated": "response/truncation_ratio",
    "tokens_per_second": "rollout/tokens_per_second",
    "response_tokens": "response/length_mean",
    "all_correct": "reject_equal_reward/all_correct_ratio",
    "engines_idle": "engines/idle_ratio",
    "makespan_over_bound": "rollout/makespan_over_bound",
}
"""Name in `progress.json` and the terminal view -> metric."""


def step_metrics(
    groups: Sequence[Sequence[Trajectory]], trainer: Mapping[str, float], timings: Mapping[str, float]
) -> dict[str, float]:
    """Return the metrics of one step.

    `groups`: all rollouts of each prompt, with verdicts, and with `kept` set by the selection. `trainer`: metrics of
    the update (loss, gradient norm, ...), reported as `trainer/<name>`. `timings`: seconds per phase, reported as
    `time/<phase>_seconds`; `rollout` is the phase of tokens per second. A metric without data, such as an error ratio
    without tool calls, is omitted.
    """
    valid_groups = [[trajectory for trajectory in group if not trajectory.failed] for group in groups]
    valid = [trajectory for group in valid_groups for trajectory in group]
    undecided = sum(trajectory.verdict == "undecided" for group in groups for trajectory in group)
    values: dict[str, float | None] = {
        **_rewards(valid),
        "reward/verifier_undecided_ratio": ratio(undecided, sum(map(len, groups))),
        **_groups(valid_groups),
        **_penalties(valid),
        **_tools(valid),
        **_responses(valid),
        "down_sampling/before_sampling_trace_num": len(valid),
        "down_sampling/after_sampling_trace_num": sum(trajectory.kept for trajectory in valid),
        "rollout/excluded": sum(len(group) for group in groups) - len(valid),
        "rollout/tokens_per_second": _rate(_sampled_tokens(valid), timings.get("rollout", 0.0)),
        **_distillation(valid, trainer),
        **{f"trainer/{name}": value for name, value in trainer.items()},
        **{f"time/{phase}_seconds": seconds for phase, seconds in timings.items()},
    }
    return {name: float(value) for name, value in values.items() if value is not None}


def headline(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of `progress.json` under their short names."""
    return {short: metrics[name] for short, name in HEADLINE.items() if name in metrics}


def _rewards(valid: Sequence[Trajectory]) -> dict[str, float | None]:
    kept = [trajectory.reward for trajectory in valid if trajectory.kept]
    verdicts = Counter(trajectory.verdict for trajectory in valid)
    return {
        "reward/mean": mean([trajectory.reward for trajectory in valid]),
        "reward/mean_kept": mean(kept),
        "reward/no_answer_ratio": ratio(verdicts["no_answer"], len(valid)),
    }


def _groups(valid_groups: Sequence[Sequence[Trajectory]]) -> dict[str, float | None]:
    """Return the metrics of groups. A group whose rollouts have the same reward has no advantage and is dropped."""
    rewards = [{trajectory.reward for trajectory in group} for group in valid_groups if group]
    equal = [values for values in rewards if len(values) == 1]
    wrong = sum(values == {0.0} for values in equal)
    return {
        "reject_equal_reward/solve_non_equal_total": len(rewards) - len(equal),
        "reject_equal_reward/solve_equal_total": len(equal),
        "reject_equal_reward/solve_equal_total_ratio": ratio(len(equal), len(rewards)),
        "reject_equal_reward/solve_equal_zeros": wrong,
        "reject_equal_reward/solve_equal_non_all_zeros": len(equal) - wrong,
        "reject_equal_reward/all_correct_ratio": ratio(len(equal) - wrong, len(rewards)),
        "reject_equal_reward/all_wrong_ratio": ratio(wrong, len(rewards)),
        "down_sampling/trained_group_num": sum(any(row.kept for row in group) for group in valid_groups),
    }


def _distillation(valid: Sequence[Trajectory], trainer: Mapping[str, float]) -> dict[str, float | None]:
    """Return the share of the sampled tokens whose term of the teacher is in the loss; none without a teacher."""
    distilled = trainer.get("distilled_tokens")
    return {} if distilled is None else {"trainer/distilled_ratio": ratio(int(distilled), _sampled_tokens(valid))}


def _penalties(valid: Sequence[Trajectory]) -> dict[str, float | None]:
    tags = [trajectory.answer_tags for trajectory in valid]
    kept_correct = [trajectory for trajectory in valid if trajectory.kept and trajectory.correct]
    return {
        "roc_error_ratio/global_err_ratio": _error_ratio(valid),
        "roc_error_ratio/penalty_weight": mean([trajectory.p_err for trajectory in valid]),
        "roc_error_ratio/penalty_weight_kept_correct": mean([trajectory.p_err for trajectory in kept_correct]),
        "roc_answer_format/penalty_weight": mean([trajectory.p_format for trajectory in valid]),
        "roc_answer_format/penalty_weight_kept_correct": mean([trajectory.p_format for trajectory in kept_correct]),
        "roc_answer_format/answer_per_rollout_mean": mean(tags),
        "roc_answer_format/zero_answer_count": sum(count == 0 for count in tags),
        "roc_answer_format/one_answer_count": sum(count == 1 for count in tags),
        "roc_answer_format/gt_one_answer_count": sum(count > 1 for count in tags),
    }


def _tools(valid: Sequence[Trajectory]) -> dict[str, float | None]:
    calls = [call for trajectory in valid for call in trajectory.calls]
    # Malformed calls and calls of unknown tools are not sent to the judge and have no latency.
    sent = [call for call in calls if call.status not in ("malformed", "unknown_tool", "invalid")]
    latency = sorted(call.queue_seconds + call.run_seconds for call in sent)
    statuses = Counter(call.status for call in calls)
    return {
        "tools/calls_per_trajectory": ratio(len(calls), len(valid)),
        "tools/calls": len(calls),
        "tools/error_ratio": _error_ratio(valid),
        "tools/error_ratio_correct": _error_ratio([trajectory for trajectory in valid if trajectory.correct]),
        "tools/latency_mean_seconds": mean(latency),
        "tools/latency_p50_seconds": quantile(latency, 0.5),
        "tools/latency_p99_seconds": quantile(latency, 0.99),
        "tools/queue_mean_seconds": mean([call.queue_seconds for call in sent]),
        **{f"tools/status_{status}_ratio": count / len(calls) for status, count in sorted(statuses.items())},
    }


def _responses(valid: Sequence[Trajectory]) -> dict[str, float | None]:
    lengths = [trajectory.response_tokens for trajectory in valid]
    correct = [trajectory.response_tokens for trajectory in valid if trajectory.correct]
    return {
        "response/length_mean": mean(lengths),
        "response/length_max": max(lengths, default=None),
        "response/length_mean_correct": mean(correct),
        "response/truncation_ratio": ratio(sum(trajectory.truncated for trajectory in valid), len(valid)),
        "response/turns_mean": mean([trajectory.turns for trajectory in valid]),
        "response/seconds_mean": mean([trajectory.seconds for trajectory in valid]),
        "response/seconds_max": max((trajectory.seconds for trajectory in valid), default=None),
    }


def quantile(ascending: Sequence[float], share: float) -> float | None:
    """Return the smallest of the sorted values that at least `share` of them do not exceed; None if there is none."""
    if not ascending:
        return None
    return ascending[max(0, math.ceil(share * len(ascending)) - 1)]


def _sampled_tokens(valid: Iterable[Trajectory]) -> int:
    return sum(
        len(segment.token_ids) for trajectory in valid for segment in trajectory.segments if segment.kind == "model"
    )


def _error_ratio(trajectories: Sequence[Trajectory]) -> float | None:
    calls = sum(len(trajectory.calls) for trajectory in trajectories)
    return ratio(sum(trajectory.call_errors for trajectory in trajectories), calls)


def _rate(amount: int, seconds: float) -> float | None:
    return amount / seconds if seconds > 0 else None
