"""The result of `rstar2 eval`: the figures of all benchmarks, of each benchmark and of each problem. Pure.

Computed from the samples for `html_report.py`, the table of the terminal, and `evaluation.json`. The figures are those
of an Evaluate stage (`statistics.measure`), and the result contains the same record.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from rstar2_train.api.stages import Sampling
from rstar2_train.evaluation.bfcl import leaderboard_rows
from rstar2_train.evaluation.records import Evaluation, LeaderboardMetrics, RecordModel
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.evaluation.statistics import group_by, measure, tool_error_ratio

STAGE = "eval"
"""Value of `Evaluation.stage` in a record of `rstar2 eval`."""
NORMAL_95 = 1.959964
"""Half width of a 95 % confidence interval, in standard errors."""
WIDE = 100
"""Minimum terminal width, in characters, for all columns of the table."""


class ProblemResult(RecordModel):
    """The samples of one problem."""

    id: str
    """`<benchmark>/<id>`."""
    benchmark: str
    slice: str
    gold: str
    """Known answer, or the instructions."""
    samples: int
    """Valid samples."""
    excluded: int
    """Samples lost to infrastructure failures; they count in no other figure."""
    correct: int
    """Valid samples with the correct answer."""
    mean_tokens: float | None
    """Mean response tokens per sample, with tool output."""
    calls_per_sample: float | None
    tool_error_ratio: float | None
    """Failed tool calls over all tool calls; null without calls."""
    truncated: int
    """Samples that a limit stopped before the answer."""
    answers: dict[str, int]
    """Final answer -> number of samples, the most frequent first. Samples without an answer do not count.

    With instructions, an answer is the list of their results in order: strict, loose or no."""


class EvaluationResult(RecordModel):
    """The result of an evaluation: `evaluation.json`."""

    format: int = 1
    """Version of this file."""
    model: str
    """Folder of the model, or its name at the endpoint."""
    endpoint: str | None
    """URL of the endpoint that served the model; null: this command served it."""
    settings: dict[str, Any]
    """All settings that determine the samples, with the model's fingerprint."""
    samples_per_problem: int
    overall: Evaluation
    """Figures of all benchmarks together, in the record of an Evaluate stage."""
    confidence: tuple[float, float] | None
    """95 % confidence interval of overall.pass_at_1; null with fewer than two problems."""
    benchmarks: dict[str, Evaluation]
    """Benchmark -> figures."""
    benchmark_confidence: dict[str, tuple[float, float] | None]
    """Benchmark -> 95 % confidence interval of pass_at_1."""
    problems: list[ProblemResult]
    """All problems, in the order of the files."""


def build_result(
    rows: Sequence[SampleResult],
    *,
    benchmarks: Mapping[str, str],
    model: str,
    endpoint: str | None,
    settings: dict[str, Any],
    samples: int,
    sampling: Sampling,
    seconds: float,
) -> EvaluationResult:
    """Return the result of `rows`: every sample of every problem, with the lost ones.

    `benchmarks`: problem id -> benchmark. `seconds`: wall time of the sampling in the last run.
    """
    overall = measure(rows, stage=STAGE, sampling=sampling, seconds=seconds, benchmarks=benchmarks)
    each = {
        name: measure(group, stage=name, sampling=sampling, seconds=seconds)
        for name, group in group_by(rows, lambda row: benchmarks[row.prompt_id]).items()
    }
    return EvaluationResult(
        model=model,
        endpoint=endpoint,
        settings=settings,
        samples_per_problem=samples,
        overall=overall,
        confidence=confidence(overall),
        benchmarks=each,
        benchmark_confidence={name: confidence(evaluation) for name, evaluation in each.items()},
        problems=[_problem_result(group, benchmarks) for group in group_by(rows, lambda row: row.prompt_id).values()],
    )


def confidence(evaluation: Evaluation) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of pass@1: mean ± 1.96 clustered standard errors, within 0..1.

    Returns None without a standard error.
    """
    mean, error = evaluation.pass_at_1, evaluation.pass_at_1_se
    if mean is None or error is None:
        return None
    return max(0.0, mean - NORMAL_95 * error), min(1.0, mean + NORMAL_95 * error)


class _Column(NamedTuple):
    """A column of the benchmark table."""

    heading: str
    cell: Callable[[Evaluation, tuple[float, float] | None], str]
    """Text of the cell, from the figures and the 95 % interval of pass@1."""
    important: bool = False
    """Whether a narrow terminal shows the column too."""


def _number_column(
    heading: str, value: Callable[[Evaluation], float | None], template: str, *, important: bool = False
) -> _Column:
    return _Column(heading, lambda figures, _: format_number(value(figures), template), important)


@dataclass(frozen=True, slots=True)
class ResultTable:
    """The tables of the terminal: one row per benchmark, one for all of them, and tables of instructions and BFCL.

    A terminal of fewer than `WIDE` columns shows the most important columns only.
    """

    result: EvaluationResult

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the tables for the width of the console."""
        yield _benchmark_table(self.result, wide=options.max_width >= WIDE)
        if self.result.overall.instructions is not None:
            yield _instruction_table(self.result)
        if self.result.overall.bfcl is not None:
            yield _leaderboard_table(self.result.overall.bfcl)


def _benchmark_table(result: EvaluationResult, *, wide: bool) -> Table:
    sampling = f"{result.samples_per_problem} samples per problem, temperature {result.overall.temperature:g}"
    table = _table(Text(f"{result.model}: {sampling}", style="bold"))
    table.add_column("benchmark", no_wrap=True)
    columns = [column for column in _columns(result) if wide or column.important]
    for column in columns:
        table.add_column(column.heading, justify="right", no_wrap=True)
    for name, figures, interval in benchmark_rows(result):
        table.add_row(name, *(column.cell(figures, interval) for column in columns))
    return table


def _columns(result: EvaluationResult) -> list[_Column]:
    largest = max(result.overall.pass_at_k, default=None)
    pass_at_k = [_number_column(f"pass@{largest}", lambda row: row.pass_at_k.get(largest or 0), "{:.3f}")]
    return [
        _number_column("problems", lambda row: row.problems, "{}", important=True),
        _number_column("pass@1", lambda row: row.pass_at_1, "{:.3f}", important=True),
        _Column(
            "95 % interval",
            lambda _, interval: "-" if interval is None else "{:.3f} to {:.3f}".format(*interval),
            important=True,
        ),
        *(pass_at_k if largest is not None else []),
        _number_column("mean\ntokens", lambda row: row.mean_tokens, "{:.1f}", important=True),
        _number_column("tool\ncalls", lambda row: row.calls_per_sample, "{:.2f}"),
        _number_column("tool\nerrors", lambda row: row.tool_error_ratio, "{:.1%}", important=True),
        _number_column("in correct\nsamples", lambda row: row.tool_error_ratio_correct, "{:.1%}"),
        _number_column("truncated", lambda row: row.truncated, "{:.1%}", important=True),
    ]


def benchmark_rows(result: EvaluationResult) -> list[tuple[str, Evaluation, tuple[float, float] | None]]:
    """Return (name, figures, 95 % interval) of each benchmark, and of all together if there are several."""
    rows = [(name, figures, result.benchmark_confidence[name]) for name, figures in result.benchmarks.items()]
    return [*rows, ("all", result.overall, result.confidence)] if len(rows) > 1 else rows


def format_number(value: float | None, template: str) -> str:
    """Return a formatted figure, or a dash if it is None."""
    return "-" if value is None else template.format(value)


def _table(title: Text) -> Table:
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)


def _instruction_table(result: EvaluationResult) -> Table:
    """Return the table of the benchmarks with instructions."""
    table = _table(Text("instructions followed"))
    table.add_column("benchmark", no_wrap=True)
    for heading in ("prompts", "strict", "loose", "instructions", "strict", "loose"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, evaluation in result.benchmarks.items():
        if (metrics := evaluation.instructions) is not None:
            prompt_shares = (f"{share:.3f}" for share in (metrics.prompt_strict, metrics.prompt_loose))
            shares = (f"{share:.3f}" for share in (metrics.instruction_strict, metrics.instruction_loose))
            table.add_row(name, str(metrics.prompts), *prompt_shares, str(metrics.instructions), *shares)
    return table


def _leaderboard_table(metrics: LeaderboardMetrics) -> Table:
    """Return the table of BFCL's leaderboard."""
    table = _table(Text("BFCL: calls in one turn"))
    table.add_column("category", no_wrap=True)
    for heading in ("problems", "accuracy"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in leaderboard_rows(metrics):
        name = Text(f"{row.name} (mean)" if row.is_mean else row.name, style="bold" if row.is_mean else "")
        table.add_row(name, str(row.problems), format_number(row.accuracy, "{:.3f}"))
    return table


def _problem_result(rows: Sequence[SampleResult], benchmarks: Mapping[str, str]) -> ProblemResult:
    first = rows[0]
    valid = [row for row in rows if not row.failed]
    count = len(valid)
    answers = Counter(row.answer for row in valid if row.answer is not None)
    return ProblemResult(
        id=first.prompt_id,
        benchmark=benchmarks[first.prompt_id],
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
