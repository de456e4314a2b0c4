"""Builds the record of an evaluation from its samples: figures of all benchmarks, of each one, of each problem. Pure.

Input of `html_report.py` and of the tables of the terminal. An Evaluate stage, a validation run and `rstar2 eval` write
the same record.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rstar2_train.api.stages import Sampling
from rstar2_train.evaluation.benchmark_figures import figure_plugins
from rstar2_train.evaluation.figure_table import FigureTable
from rstar2_train.evaluation.records import Evaluation, Figures, ProblemResult
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.evaluation.scores import group_by, tool_error_ratio
from rstar2_train.evaluation.statistics import measure


def build_evaluation(
    rows: Sequence[SampleResult],
    *,
    stage: str,
    attempt: int = 1,
    step: int | None = None,
    model: str,
    endpoint: str | None,
    settings: dict[str, Any],
    samples: int,
    sampling: Sampling,
    seconds: float,
    benchmarks: Mapping[str, str] | None = None,
) -> Evaluation:
    """Return the record of `rows`: every sample of every problem, with the lost ones.

    `benchmarks`: problem id -> benchmark, in an Evaluate stage. `seconds`: wall time of the sampling.
    """
    names = benchmarks or {}
    by_benchmark = group_by(rows, lambda row: names.get(row.prompt_id, ""))
    return Evaluation(
        **dict(measure(rows)),
        stage=stage,
        attempt=attempt,
        step=step,
        model=model,
        endpoint=endpoint,
        settings=settings,
        samples_per_problem=samples,
        temperature=sampling.temperature,
        max_response_tokens=sampling.max_response_tokens,
        max_turns=sampling.max_turns,
        seconds=round(seconds, 3),
        benchmarks={name: measure(group) for name, group in by_benchmark.items() if name},
        problem_results=[_problem_result(group, names) for group in group_by(rows, lambda row: row.prompt_id).values()],
    )


def benchmark_rows(evaluation: Evaluation) -> list[tuple[str, Figures]]:
    """Return (name, figures) of each benchmark, and of all together unless there is exactly one."""
    rows = list(evaluation.benchmarks.items())
    return rows if len(rows) == 1 else [*rows, ("all", evaluation)]


def plugin_tables(evaluation: Evaluation) -> list[FigureTable]:
    """Return the tables of the benchmarks with figures of their own."""
    tables = []
    for plugin in figure_plugins():
        if (metrics := getattr(evaluation, plugin.field)) is not None:
            named = {name: getattr(figures, plugin.field) for name, figures in evaluation.benchmarks.items()}
            tables += plugin.tables(metrics, {name: figures for name, figures in named.items() if figures is not None})
    return tables


def format_number(value: float | None, template: str) -> str:
    """Return a formatted figure, or a dash if it is None."""
    return "-" if value is None else template.format(value)


def _problem_result(rows: Sequence[SampleResult], benchmarks: Mapping[str, str]) -> ProblemResult:
    first = rows[0]
    valid = [row for row in rows if not row.failed]
    count = len(valid)
    answers = Counter(row.answer for row in valid if row.answer is not None)
    return ProblemResult(
        id=first.prompt_id,
        benchmark=benchmarks.get(first.prompt_id, ""),
        slice=first.slice,
        gold=first.gold,
        samples=count,
        excluded=len(rows) - count,
        correct=sum(row.correct for row in valid),
        mean_tokens=math.fsum(row.response_tokens for row in valid) / count if count else None,
        calls_per_sample=sum(row.calls for row in valid) / count if count else None,
        tool_error_ratio=tool_error_ratio(valid),
        truncated=sum(row.truncated for row in valid),
        answers=dict(answers.most_common()),
    )
