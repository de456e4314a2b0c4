"""Scores of samples: pass@1 with its standard error, pass@k, and pass@1 per slice.

Samples of one problem are not independent, so standard errors are clustered by problem. Pure.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from rstar2_train.evaluation.record_model import RecordModel
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.utils.numbers import mean, ratio

NORMAL_95 = 1.959964
"""Half width of a 95 % confidence interval, in standard errors."""
Key = TypeVar("Key", bound=Hashable)
Row = TypeVar("Row")


class SliceMetrics(RecordModel):
    """Pass@1 of one slice of the problems."""

    problems: int
    """Problems with at least one valid sample."""
    samples: int
    """Valid samples of these problems."""
    pass_at_1: float
    """Mean over problems of the share of correct samples."""
    pass_at_1_se: float | None = None
    """Standard error of pass_at_1, clustered by problem; null with a single problem."""


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


def pass_at_powers(rows: Sequence[SampleResult]) -> dict[int, float]:
    sizes = [len(group) for group in group_by(rows, lambda row: row.prompt_id).values()]
    result = {}
    k = 2
    while k <= max(sizes, default=0):
        value = pass_at_k(rows, k)
        if value is not None:
            result[k] = value
        k *= 2
    return result


def scores_by(rows: Sequence[SampleResult], key: Callable[[SampleResult], str]) -> dict[str, SliceMetrics]:
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
