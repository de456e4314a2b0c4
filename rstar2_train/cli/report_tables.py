"""The tables of a job's report: its stages with their effect on the held-out set, and pass@1 of each slice.

`rstar2 run`, `rstar2 report` and the report pod print them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from rstar2_train.cli.tables import Column, ColumnGroups, FittingTable
from rstar2_train.evaluation.job_report import format_duration
from rstar2_train.evaluation.records import JobReport, SliceMetrics, StageReport

_SCORE_WIDTH = 14
"""Characters of a score with its standard error."""


@dataclass(frozen=True, slots=True)
class ReportTables:
    """Both tables, for any width."""

    report: JobReport

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the tables."""
        yield stage_table(self.report)
        slices = slice_table(self.report)
        if slices is not None:
            yield slices


def stage_table(report: JobReport) -> FittingTable:
    """Return the table of stages: pass@1 before and after each stage, its change, tool errors, length, truncation."""
    rows = report.stages

    def cells(cell: Callable[[StageReport], str | Text]) -> Sequence[str | Text]:
        return [cell(row) for row in rows]

    columns = [
        Column("stage", cells(lambda row: row.name), is_text=True),
        Column("type", cells(lambda row: row.type), rank=6),
        Column("steps", cells(lambda row: "-" if row.steps is None else str(row.steps)), rank=3),
        Column("attempts", cells(lambda row: str(row.attempts)), rank=9),
        Column("T", cells(lambda row: "-" if row.temperature is None else f"{row.temperature:g}"), rank=8),
        Column("pass@1\nbefore → after", cells(_before_after)),
        Column("change", cells(lambda row: _change(row.pass_at_1_before, row.pass_at_1)), rank=1),
        Column("tool errors\nin correct", cells(lambda row: _percent(row.tool_error_ratio_correct)), rank=2),
        Column("mean\ntokens", cells(lambda row: "-" if row.mean_tokens is None else f"{row.mean_tokens:.1f}"), rank=4),
        Column("truncated", cells(lambda row: _percent(row.truncated)), rank=5),
        Column("outcome", cells(_outcome), rank=7, is_text=True),
    ]
    return FittingTable(f"{report.job}: seed {report.seed}, {format_duration(report.seconds)}", columns)


def slice_table(report: JobReport) -> ColumnGroups | None:
    """Return the table with a row per slice and one for hard problems, and a column per stage; None without slices."""
    names = sorted({name for row in report.stages for name in row.slices})
    hard = any(row.hard_pass_at_1 is not None for row in report.stages)
    measured = [row for row in report.stages if row.slices or row.hard_pass_at_1 is not None]
    if not measured:
        return None
    title = "hard problems" if "hard" in names else "hard"
    rows = [*names, *([title] if hard else [])]

    def cells(row: StageReport) -> list[str]:
        scores = [_slice(row.slices.get(name)) for name in names]
        return scores + ([_score(row.hard_pass_at_1, row.hard_pass_at_1_se)] if hard else [])

    columns = [Column(_folded(row.name), cells(row)) for row in measured]
    return ColumnGroups("pass@1 by slice (± standard error)", Column("slice", rows, is_text=True), columns)


def _folded(name: str) -> str:
    """Return a name in lines of at most the width of a score."""
    return "\n".join(name[at : at + _SCORE_WIDTH] for at in range(0, len(name), _SCORE_WIDTH))


def _slice(metrics: SliceMetrics | None) -> str:
    return "-" if metrics is None else _score(metrics.pass_at_1, metrics.pass_at_1_se)


def _score(value: float | None, error: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if error is None else f"{value:.3f} ±{error:.3f}"


def _before_after(row: StageReport) -> str:
    if row.pass_at_1 is None:
        return "-"
    before = "-" if row.pass_at_1_before is None else f"{row.pass_at_1_before:.3f}"
    return f"{before} → {_score(row.pass_at_1, row.pass_at_1_se)}"


def _change(before: float | None, after: float | None) -> Text:
    if before is None or after is None:
        return Text("-")
    change = after - before
    return Text(f"{change:+.3f}", style="green" if change > 0 else "red" if change < 0 else "")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _outcome(row: StageReport) -> str:
    if row.outcome is None:
        return "running" if row.attempts else "not started"
    if row.outcome == "completed":
        return "done"
    return row.outcome if row.outcome == "suspended" else f"{row.outcome}: {row.reason}"
