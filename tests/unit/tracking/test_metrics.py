"""The metrics of a step, compared with values that were computed by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2_train.rollout.trajectory import Segment, StopReason, ToolCall, Trajectory
from rstar2_train.tools.types import CallStatus
from rstar2_train.tracking.metrics import HEADLINE, headline, quantile, step_metrics


def rollout(
    prompt: str,
    reward: float,
    *,
    calls: tuple[CallStatus, ...] = (),
    kept: bool = True,
    tags: int = 1,
    stop: StopReason = "answered",
    sampled: int = 10,
    tool: int = 0,
    p_err: float = 0.0,
    latency: float = 0.1,
) -> Trajectory:
    return Trajectory(
        prompt_id=prompt,
        sample=0,
        prompt_ids=[1],
        segments=[Segment("model", [0] * sampled), Segment("tool", [0] * tool)],
        calls=[ToolCall(0, "run", "", "", status, "", latency / 4, latency * 3 / 4) for status in calls],
        stop=stop,
        turns=2,
        answer_tags=tags,
        verdict="correct" if reward else "wrong",
        reward=reward,
        p_err=p_err,
        kept=kept,
        seconds=2.0,
    )


GROUPS = [
    [rollout("a", 1, calls=("ok", "ok")), rollout("a", 1, calls=("error", "ok"), p_err=0.5, kept=False)],
    [rollout("b", 1, p_err=0.5, tool=30), rollout("b", 0, calls=("timeout",), p_err=1.0, tags=0, stop="length")],
    [rollout("c", 0, tags=2, kept=False), rollout("c", 0, calls=("malformed",), p_err=1.0, kept=False)],
    [rollout("d", 0, stop="infrastructure", calls=("error",) * 9, sampled=1000), rollout("d", 1, latency=9.0)],
]


def test_step_metrics_distilled_ratio_is_of_sampled_tokens() -> None:
    """Of all rollouts of the step that are not lost, kept or not; without a teacher there is no such metric."""
    metrics = step_metrics(GROUPS, {"distilled_tokens": 21.0}, {})
    assert (metrics["trainer/distilled_tokens"], metrics["trainer/distilled_ratio"]) == (21, 21 / 70)
    assert "trainer/distilled_ratio" not in step_metrics(GROUPS, {}, {})


def test_step_metrics_undecided_rollouts_are_excluded() -> None:
    """A rollout with an undecided answer counts in the two metrics of excluded rollouts only."""
    undecided = rollout("e", 0)
    undecided.verdict = "undecided"
    metrics = step_metrics([[rollout("e", 1), rollout("e", 0), rollout("e", 1), undecided]], {}, {})
    assert (metrics["reward/verifier_undecided_ratio"], metrics["rollout/excluded"]) == (1 / 4, 1)
    assert metrics["reward/mean"] == 2 / 3


def test_step_metrics_equal_manual_computation() -> None:
    """The metrics of a step equal the manual computation."""
    metrics = step_metrics(GROUPS, {"loss": 0.25}, {"rollout": 2.0, "update": 1.0})
    expected = {
        "reward/mean": 4 / 7,
        "reward/mean_kept": 3 / 4,
        "reject_equal_reward/solve_equal_total": 3,
        "reject_equal_reward/solve_non_equal_total": 1,
        "reject_equal_reward/solve_equal_total_ratio": 3 / 4,
        "reject_equal_reward/solve_equal_zeros": 1,
        "reject_equal_reward/solve_equal_non_all_zeros": 2,
        "reject_equal_reward/all_correct_ratio": 2 / 4,
        "reject_equal_reward/all_wrong_ratio": 1 / 4,
        "down_sampling/before_sampling_trace_num": 7,
        "down_sampling/after_sampling_trace_num": 4,
        "down_sampling/trained_group_num": 3,
        "roc_error_ratio/global_err_ratio": 3 / 6,
        "roc_error_ratio/penalty_weight": 3 / 7,
        "roc_error_ratio/penalty_weight_kept_correct": 0.5 / 3,
        "roc_answer_format/answer_per_rollout_mean": 1,
        "roc_answer_format/zero_answer_count": 1,
        "roc_answer_format/one_answer_count": 5,
        "roc_answer_format/gt_one_answer_count": 1,
        "tools/calls": 6,
        "tools/calls_per_trajectory": 6 / 7,
        "tools/error_ratio": 3 / 6,
        "tools/error_ratio_correct": 1 / 4,
        "tools/latency_mean_seconds": 0.1,
        "tools/queue_mean_seconds": 0.025,
        "tools/status_ok_ratio": 3 / 6,
        "tools/status_malformed_ratio": 1 / 6,
        "response/length_mean": 100 / 7,
        "response/length_max": 40,
        "response/truncation_ratio": 1 / 7,
        "response/turns_mean": 2,
        "rollout/excluded": 1,
        "rollout/tokens_per_second": 35,
        "trainer/loss": 0.25,
        "time/update_seconds": 1.0,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


def test_step_metrics_without_data_are_omitted() -> None:
    """Metrics without data are omitted."""
    metrics = step_metrics([[rollout("a", 0)]], {}, {})
    assert "tools/error_ratio" not in metrics and "rollout/tokens_per_second" not in metrics
    assert "response/length_mean_correct" not in metrics
    assert metrics["tools/calls"] == 0
    assert step_metrics([], {}, {})["down_sampling/before_sampling_trace_num"] == 0


def test_headline_returns_all_short_names() -> None:
    """The headline has all short names, those of the engines' figures included."""
    engines = {"engines/idle_ratio": 0.1, "rollout/makespan_over_bound": 1.2}
    assert set(headline(step_metrics(GROUPS, {}, {"rollout": 1.0}) | engines)) == set(HEADLINE)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=50), st.floats(0.01, 1))
def test_quantile_is_smallest_value_of_its_share(values: list[float], share: float) -> None:
    """At least `share` of the values do not exceed the quantile, and fewer are below it."""
    ascending = sorted(values)
    value = quantile(ascending, share)
    assert value in values
    assert sum(other <= value for other in values) >= share * len(values) - 1e-9
    assert sum(other < value for other in values) < share * len(values) + 1e-9
