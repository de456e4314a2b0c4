"""The figures of an evaluation, compared with manual values, and properties that hold for any result."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2_train.api.stages import Sampling
from rstar2_train.evaluation.records import Evaluation
from rstar2_train.evaluation.result import build_evaluation
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.evaluation.scores import pass_at_1, pass_at_k, tool_error_ratio
from rstar2_train.evaluation.statistics import evaluation_metrics
from rstar2_train.rewards.verdict import Verdict
from rstar2_train.rollout.trajectory import Segment, StopReason, ToolCall, Trajectory
from rstar2_train.tools.types import CallStatus


def rollout(
    prompt: str,
    *,
    correct: bool = False,
    calls: str = "",
    tokens: int = 10,
    stop: StopReason = "answered",
    slice: str = "",
    hard: bool = False,
    verdict: Verdict | None = None,
) -> SampleResult:
    """Return a sample. `calls`: one letter per call, `o` for ok, `e` for error. `stop`: reason of the end."""
    statuses: dict[str, CallStatus] = {"o": "ok", "e": "error"}
    return SampleResult.from_trajectory(
        Trajectory(
            prompt_id=prompt,
            sample=0,
            prompt_ids=[1, 2],
            segments=[Segment("model", [0] * tokens)],
            calls=[ToolCall(0, "run", "", "", statuses[letter], "") for letter in calls],
            stop=stop,
            turns=1 + bool(calls),
            verdict=verdict or ("correct" if correct else "wrong"),
            reward=float(correct),
            slice=slice,
            hard=hard,
        )
    )


def figures(rows: list[SampleResult], benchmarks: dict[str, str] | None = None) -> Evaluation:
    return build_evaluation(
        rows, stage="rl-1", sampling=Sampling(temperature=0.6), seconds=2, attempt=3, step=40, model="m", endpoint=None,
        settings={}, samples=2, benchmarks=benchmarks,
    )  # fmt: skip


def test_measure_equals_manual_computation() -> None:
    """Three problems: 2/2, 1/2, 0/1 (its other sample is lost). Mean 0.5; clustered error sqrt(0.5 / 6)."""
    rows = [
        rollout("a", correct=True, calls="oe", tokens=10, slice="L1"),
        rollout("a", correct=True, calls="oo", tokens=20, slice="L1"),
        rollout("b", correct=True, calls="", tokens=30, slice="L2", hard=True),
        rollout("b", calls="eee", tokens=40, slice="L2", hard=True, stop="length"),
        rollout("c", calls="o", tokens=50, slice="L2", hard=True),
        rollout("c", correct=False, calls="eeee", tokens=999, slice="L2", hard=True, stop="infrastructure"),
    ]
    result = figures(rows)
    assert (result.problems, result.samples, result.excluded) == (3, 5, 1)
    assert result.pass_at_1 == pytest.approx(0.5)
    assert result.pass_at_1_se == pytest.approx(math.sqrt(0.5 / 6))
    assert result.hard_pass_at_1 == pytest.approx(0.25)
    assert result.hard_pass_at_1_se == pytest.approx(0.25)
    assert result.pass_at_k == {2: pytest.approx(1.0)}  # a and b have two samples, and both have a correct one
    assert result.tool_error_ratio == pytest.approx(4 / 8)
    assert result.tool_error_ratio_correct == pytest.approx(1 / 4)
    assert result.calls_per_sample == pytest.approx(8 / 5)
    assert result.mean_tokens == pytest.approx(30)
    assert result.truncated == pytest.approx(1 / 5)
    assert result.turns == pytest.approx((2 + 2 + 1 + 2 + 2) / 5)
    assert {name: (part.problems, part.samples, part.pass_at_1) for name, part in result.slices.items()} == {
        "L1": (1, 2, 1.0),
        "L2": (2, 3, 0.25),
    }
    assert result.slices["L1"].pass_at_1_se is None
    assert (result.stage, result.attempt, result.step, result.temperature) == ("rl-1", 3, 40, 0.6)


def test_measure_groups_benchmarks_by_prompt() -> None:
    """Each benchmark has its own figures."""
    rows = [rollout("a", correct=True), rollout("b")]
    result = figures(rows, {"b": "math500", "a": "aime24"})
    assert {name: part.pass_at_1 for name, part in result.benchmarks.items()} == {"aime24": 1.0, "math500": 0.0}


def test_measure_without_valid_samples_is_null() -> None:
    """Figures without data are null, not 0."""
    result = figures([rollout("a", stop="infrastructure")])
    assert result.excluded == 1
    assert result.pass_at_1 is None and result.mean_tokens is None and result.truncated is None
    assert result.tool_error_ratio is None and result.tool_error_ratio_correct is None
    assert figures([rollout("a", calls="")]).tool_error_ratio is None
    assert "evaluation/pass_at_1" not in evaluation_metrics(result)


def test_measure_excludes_internal_verdicts() -> None:
    """A sample without a verdict of the judge is excluded."""
    lost = rollout("a", verdict="internal")
    assert figures([lost, rollout("a", correct=True)]).pass_at_1 == 1.0


@pytest.mark.parametrize(
    ("right", "total", "k", "value"),
    [
        (0, 4, 2, 0.0),
        (1, 4, 1, 0.25),
        (1, 4, 2, 0.5),
        (2, 4, 2, 5 / 6),
        (3, 4, 2, 1.0),
        (4, 4, 4, 1.0),
        (1, 16, 8, 0.5),
    ],
)
def test_pass_at_k_of_single_problem(right: int, total: int, k: int, value: float) -> None:
    """pass@k of one problem equals the manual value."""
    rows = [rollout("a", correct=index < right) for index in range(total)]
    assert pass_at_k(rows, k) == pytest.approx(value)


def test_pass_at_k_omits_problems_with_few_samples() -> None:
    """A problem with fewer than k samples does not count."""
    rows = [rollout("a", correct=True), *(rollout("b") for _ in range(2))]
    assert pass_at_k(rows, 2) == 0.0
    assert pass_at_k(rows, 3) is None


outcomes = st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=8)


@given(outcomes)
def test_pass_at_k_increases_with_k(problems: list[list[bool]]) -> None:
    """pass@k starts at pass@1 and does not decrease with k."""
    size = min(map(len, problems))
    rows = [rollout(str(i), correct=flag) for i, flags in enumerate(problems) for flag in flags[:size]]
    values = [pass_at_k(rows, k) for k in range(1, size + 1)]
    assert values[0] == pytest.approx(pass_at_1(rows).value)
    assert all(low is not None and high is not None and low <= high + 1e-12 for low, high in pairwise(values))


@given(outcomes)
def test_pass_at_1_weighs_problems_equally(problems: list[list[bool]]) -> None:
    """Doubling the samples of one problem changes neither the mean nor its error."""
    rows = [rollout(str(i), correct=flag) for i, flags in enumerate(problems) for flag in flags]
    doubled = rows + [rollout("0", correct=flag) for flag in problems[0]]
    assert pass_at_1(doubled) == pytest.approx(pass_at_1(rows))


@given(st.lists(st.sampled_from(["", "o", "e", "oe", "eeo"]), max_size=6))
def test_tool_error_ratio_is_per_call(calls: list[str]) -> None:
    """The ratio is over calls, not over samples."""
    rows = [rollout("a", calls=letters) for letters in calls]
    letters = "".join(calls)
    assert tool_error_ratio(rows) == (letters.count("e") / len(letters) if letters else None)


def test_evaluation_metrics_names_figures_and_slices() -> None:
    """The names of the metrics contain the figure or the slice."""
    metrics = evaluation_metrics(figures([rollout("a", correct=True, slice="L1"), rollout("b", slice="L2")]))
    assert metrics["evaluation/pass_at_1"] == 0.5
    assert metrics["evaluation_slices/L1"] == 1.0
    assert metrics["evaluation/excluded"] == 0.0
    assert "evaluation/hard_pass_at_1" not in metrics
