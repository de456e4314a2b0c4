"""The tables of `rstar2 eval` and `rstar2 filter`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from rstar2_train.evaluation.bfcl import leaderboard_rows
from rstar2_train.evaluation.difficulty import FilterReport
from rstar2_train.evaluation.records import Evaluation, Figures, LeaderboardMetrics
from rstar2_train.evaluation.result import benchmark_rows, format_number
from rstar2_train.launch.tables import Column, FittingTable

BAR = 32
"""Length of the longest bar, in characters."""


@dataclass(frozen=True, slots=True)
class EvaluationTables:
    """A row per benchmark, one for all of them, and tables of instructions and BFCL."""

    evaluation: Evaluation

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the tables for the width of the console."""
        yield _benchmark_table(self.evaluation)
        if self.evaluation.instructions is not None:
            yield _instruction_table(self.evaluation)
        if self.evaluation.bfcl is not None:
            yield _leaderboard_table(self.evaluation.bfcl)


def filter_table(report: FilterReport) -> FittingTable:
    """Return the table with one row per number of solved samples."""
    rows = report.histogram.items()
    dropped = {times: times >= report.drop_solved for times in report.histogram}
    bars = [Text(_bar(number, report.histogram), style="red" if dropped[times] else "green") for times, number in rows]
    columns = [
        Column(f"solved\nof {report.samples_per_problem}", [str(times) for times, _ in rows]),
        Column("problems", [str(number) for _, number in rows]),
        Column("share", [f"{number / report.problems:.1%}" for _, number in rows]),
        Column("", bars, rank=1),
        Column("", ["dropped" if dropped[times] and number else "" for times, number in rows]),
    ]
    title = Text(f"{report.model}: {report.kept} of {report.problems} problems kept, {report.dropped} dropped")
    return FittingTable(title, columns)


def _benchmark_table(evaluation: Evaluation) -> FittingTable:
    sampling = f"{evaluation.samples_per_problem} samples per problem, temperature {evaluation.temperature:g}"
    rows = benchmark_rows(evaluation)

    def numbers(heading: str, value: Callable[[Figures], float | None], template: str, rank: int = 0) -> Column:
        return Column(heading, [format_number(value(figures), template) for _, figures in rows], rank)

    largest = max(evaluation.pass_at_k, default=0)
    pass_at_k = [numbers(f"pass@{largest}", lambda row: row.pass_at_k.get(largest), "{:.3f}", 5)] if largest else []
    intervals = [figures.confidence for _, figures in rows]
    columns = [
        Column("benchmark", [name for name, _ in rows], is_text=True),
        numbers("problems", lambda row: row.problems, "{}", 4),
        numbers("pass@1", lambda row: row.pass_at_1, "{:.3f}"),
        Column("95 % interval", ["-" if each is None else "{:.3f} to {:.3f}".format(*each) for each in intervals]),
        *pass_at_k,
        numbers("mean\ntokens", lambda row: row.mean_tokens, "{:.1f}", 3),
        numbers("tool\ncalls", lambda row: row.calls_per_sample, "{:.2f}", 6),
        numbers("tool\nerrors", lambda row: row.tool_error_ratio, "{:.1%}", 1),
        numbers("in correct\nsamples", lambda row: row.tool_error_ratio_correct, "{:.1%}", 7),
        numbers("truncated", lambda row: row.truncated, "{:.1%}", 2),
    ]
    return FittingTable(Text(f"{evaluation.model}: {sampling}", style="bold"), columns)


def _instruction_table(evaluation: Evaluation) -> FittingTable:
    """Return the table of the benchmarks with instructions."""
    rows = [(name, figures.instructions) for name, figures in evaluation.benchmarks.items()]
    known = [(name, metrics) for name, metrics in rows if metrics is not None]
    columns = [
        Column("benchmark", [name for name, _ in known], is_text=True),
        Column("prompts", [str(metrics.prompts) for _, metrics in known], rank=2),
        Column("strict", [f"{metrics.prompt_strict:.3f}" for _, metrics in known]),
        Column("loose", [f"{metrics.prompt_loose:.3f}" for _, metrics in known]),
        Column("instructions", [str(metrics.instructions) for _, metrics in known], rank=1),
        Column("strict", [f"{metrics.instruction_strict:.3f}" for _, metrics in known]),
        Column("loose", [f"{metrics.instruction_loose:.3f}" for _, metrics in known]),
    ]
    return FittingTable(Text("instructions followed"), columns)


def _leaderboard_table(metrics: LeaderboardMetrics) -> FittingTable:
    """Return the table of BFCL's leaderboard."""
    rows = leaderboard_rows(metrics)
    names = [
        Text(f"{row.name} (mean)" if row.is_mean else row.name, style="bold" if row.is_mean else "") for row in rows
    ]
    columns = [
        Column("category", names, is_text=True),
        Column("problems", [str(row.problems) for row in rows]),
        Column("accuracy", [format_number(row.accuracy, "{:.3f}") for row in rows]),
    ]
    return FittingTable(Text("BFCL: calls in one turn"), columns)


def _bar(number: int, counts: Mapping[int, int]) -> str:
    """Return a bar proportional to `number`, rounded up, so that a single problem is visible."""
    return "█" * -(-BAR * number // max(1, *counts.values()))
