"""The tables of `rstar2 eval` and `rstar2 filter`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from rstar2_train.cli.tables import Column, FittingTable
from rstar2_train.evaluation.difficulty import FilterReport
from rstar2_train.evaluation.figure_table import FigureTable
from rstar2_train.evaluation.records import Evaluation, Figures
from rstar2_train.evaluation.result import benchmark_rows, format_number, plugin_tables

BAR = 32
"""Length of the longest bar, in characters."""


@dataclass(frozen=True, slots=True)
class EvaluationTables:
    """A row per benchmark, one for all of them, and the tables of benchmarks with figures of their own."""

    evaluation: Evaluation

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the tables for the width of the console."""
        yield _benchmark_table(self.evaluation)
        for table in plugin_tables(self.evaluation):
            if not table.only_on_page:
                yield _plugin_table(table)


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
        Column(
            "95 % interval",
            ["-" if interval is None else "{:.3f} to {:.3f}".format(*interval) for interval in intervals],
        ),
        *pass_at_k,
        numbers("mean\ntokens", lambda row: row.mean_tokens, "{:.1f}", 3),
        numbers("tool\ncalls", lambda row: row.calls_per_sample, "{:.2f}", 6),
        numbers("tool\nerrors", lambda row: row.tool_error_ratio, "{:.1%}", 1),
        numbers("in correct\nsamples", lambda row: row.tool_error_ratio_correct, "{:.1%}", 7),
        numbers("truncated", lambda row: row.truncated, "{:.1%}", 2),
    ]
    return FittingTable(Text(f"{evaluation.model}: {sampling}", style="bold"), columns)


def _plugin_table(table: FigureTable) -> FittingTable:
    names = [Text(row.name, style="bold" if row.is_mean else "") for row in table.rows]
    columns = [Column(table.headings[0], names, is_text=True)]
    for at, heading in enumerate(table.headings[1:]):
        values = [row.values[at] for row in table.rows]
        cells = [format_number(value, "{}" if isinstance(value, int) else "{:.3f}") for value in values]
        columns.append(Column(heading, cells))
    return FittingTable(Text(table.title), columns)


def _bar(number: int, counts: Mapping[int, int]) -> str:
    """Return a bar proportional to `number`, rounded up, so that a single problem is visible."""
    return "█" * -(-BAR * number // max(1, *counts.values()))
