"""Computes the figures of an evaluation: pass@1 with standard error, pass@k, tool errors and lengths, also per slice.

Lost samples are counted and excluded, never scored 0. Samples of one problem are not independent, so standard errors
are clustered by problem. Pure.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from rstar2_train.evaluation.bfcl import is_bfcl, leaderboard_metrics
from rstar2_train.evaluation.ifeval import instruction_metrics
from rstar2_train.evaluation.records import Evaluation, Figures, SliceMetrics
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.utils.numbers import mean, ratio

NORMAL_95 = 1.959964
"""Half width of a 95 % confidence interval, in standard errors."""
Key = TypeVar("Key", bound=Hashable)
Row = TypeVar("Row")


class MeanWithError(NamedTuple):
    """A mean over problems and its standard error."""

    value: float | None
    error: float | None

    @property
    def confidence(self) -> tuple[float, float] | None:
        """The 95 % interval: mean ± 1.96 standard errors, within 0..1; None without a standard error."""
        if self.value is None or self.error is None:
            return None
        return max(0.0, self.value - NORMAL_95 * self.error), min(1.0, self.value + NORMAL_95 * self.error)


def measure(rows: Sequence[SampleResult]) -> Figures:
    """Return all figures of the samples. `rows`: every sample of every problem, with the lost ones."""
    valid = [row for row in rows if not row.failed]
    correct = [row for row in valid if row.correct]
    overall = pass_at_1(valid)
    hard = pass_at_1([row for row in valid if row.hard])
    return Figures(
        problems=len({row.prompt_id for row in rows}),
        samples=len(valid),
        excluded=len(rows) - len(valid),
        undecided=sum(row.verdict == "undecided" for row in rows),
        problem_set=problem_set(rows),
        pass_at_1=overall.value,
        pass_at_1_se=overall.error,
        confidence=overall.confidence,
        pass_at_k=_pass_at_powers(valid),
        hard_pass_at_1=hard.value,
        hard_pass_at_1_se=hard.error,
        tool_error_ratio=tool_error_ratio(valid),
        tool_error_ratio_correct=tool_error_ratio(correct),
        calls_per_sample=mean([row.calls for row in valid]),
        turns=mean([row.turns for row in valid]),
        mean_tokens=mean([row.response_tokens for row in valid]),
        truncated=mean([row.truncated for row in valid]),
        no_answer=mean([row.verdict == "no_answer" for row in valid]),
        slices=_by(valid, lambda row: row.slice),
        instructions=instruction_metrics(valid),
        bfcl=leaderboard_metrics(_by([row for row in valid if is_bfcl(row)], lambda row: row.slice)),
    )


def evaluation_metrics(evaluation: Evaluation) -> dict[str, float]:
    """Return the metrics for tracking: `evaluation/<figure>`, and pass@1 as `evaluation_slices/<name>` and
    `evaluation_benchmarks/<name>`.
    """
    values = {"seconds": evaluation.seconds, **figure_metrics(evaluation)}
    metrics: dict[str, float | None] = {f"evaluation/{name}": value for name, value in values.items()}
    metrics |= {f"evaluation_slices/{name}": part.pass_at_1 for name, part in evaluation.slices.items()}
    metrics |= {f"evaluation_benchmarks/{name}": part.pass_at_1 for name, part in evaluation.benchmarks.items()}
    return {name: float(value) for name, value in metrics.items() if value is not None}


def figure_metrics(figures: Figures) -> dict[str, float]:
    """Return the figures for tracking, by name; unknown ones are omitted."""
    names = (
        "pass_at_1", "pass_at_1_se", "hard_pass_at_1", "hard_pass_at_1_se", "tool_error_ratio",
        "tool_error_ratio_correct", "calls_per_sample", "turns", "mean_tokens", "truncated", "no_answer", "excluded",
        "undecided",
    )  # fmt: skip
    values: dict[str, float | None] = {name: getattr(figures, name) for name in names}
    values |= {f"pass_at_{k}": value for k, value in figures.pass_at_k.items()}
    if figures.instructions is not None:
        for name in ("prompt_strict", "prompt_loose", "instruction_strict", "instruction_loose"):
            values[name] = getattr(figures.instructions, name)
    if figures.bfcl is not None:
        for name in ("simple", "non_live", "live", "irrelevance"):
            values[f"bfcl_{name}"] = getattr(figures.bfcl, name)
    return {name: float(value) for name, value in values.items() if value is not None}


def pass_at_1(rows: Sequence[SampleResult]) -> MeanWithError:
    """Return the mean over problems of the share of correct samples, and its standard error clustered by problem.

    `rows`: valid samples. All problems have equal weight, regardless of their number of valid samples. The error is
    sqrt(sum (p_i - mean)^2 / (n (n - 1))) over n problems; None with fewer than two.
    """
    shares = [_share(group) for group in group_by(rows, lambda row: row.prompt_id).values()]
    if not shares:
        return MeanWithError(None, None)
    value = math.fsum(shares) / len(shares)
    if len(shares) < 2:
        return MeanWithError(value, None)
    squares = math.fsum((share - value) ** 2 for share in shares)
    return MeanWithError(value, math.sqrt(squares / (len(shares) * (len(shares) - 1))))


def pass_at_k(rows: Sequence[SampleResult], k: int) -> float | None:
    """Return unbiased pass@k: the mean over problems of 1 - C(n - c, k) / C(n, k), for c correct of n >= k samples."""
    values = []
    for group in group_by(rows, lambda row: row.prompt_id).values():
        total, correct = len(group), sum(row.correct for row in group)
        if total >= k:
            values.append(1 - math.comb(total - correct, k) / math.comb(total, k))
    return mean(values)


def tool_error_ratio(rows: Sequence[SampleResult]) -> float | None:
    """Return failed tool calls over all tool calls of the samples; None without calls."""
    return ratio(sum(row.call_errors for row in rows), sum(row.calls for row in rows))


def problem_set(rows: Sequence[SampleResult]) -> str:
    """Return a short hash of the set of prompt ids."""
    ids = sorted({row.prompt_id for row in rows})
    return hashlib.sha256("\n".join(ids).encode()).hexdigest()[:12]


def group_by(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    """Return key -> rows, in the order of first appearance."""
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _share(group: Sequence[SampleResult]) -> float:
    return sum(row.correct for row in group) / len(group)


def _pass_at_powers(rows: Sequence[SampleResult]) -> dict[int, float]:
    sizes = [len(group) for group in group_by(rows, lambda row: row.prompt_id).values()]
    result = {}
    k = 2
    while k <= max(sizes, default=0):
        value = pass_at_k(rows, k)
        if value is not None:
            result[k] = value
        k *= 2
    return result


def _by(rows: Sequence[SampleResult], key: Callable[[SampleResult], str]) -> dict[str, SliceMetrics]:
    """Return name -> metrics, sorted by name. Rows without a name are omitted."""
    metrics = {}
    for name, group in sorted(group_by(rows, key).items()):
        score = pass_at_1(group)
        if name and score.value is not None:
            problems = len({row.prompt_id for row in group})
            metrics[name] = SliceMetrics(
                problems=problems, samples=len(group), pass_at_1=score.value, pass_at_1_se=score.error
            )
    return metrics
