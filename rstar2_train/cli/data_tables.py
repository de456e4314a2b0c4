"""The tables and lines that `rstar2 data` prints.

They show the reports of `data/prepare/pipeline.py` and of `data/prepare/inspect.py`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Column, Table

from rstar2_train.cli.common import warn_of_answers
from rstar2_train.data.prepare.records import RULES, DatasetLayout, to_json

if TYPE_CHECKING:
    from rstar2_train.data.prepare.inspect import InspectionReport


def removal_table(report: dict[str, Any]) -> Table:
    """Return the table of rows read, removed per rule, and kept. `report`: of `RemovalReport.as_json`."""
    sources = [name for name in report["read"] if name != "all"]
    columns = ["all", *sources] if len(sources) > 1 else ["all"]
    headers = [escape(name) for name in columns] if len(sources) > 1 else ["rows"]
    table = Table(Column("", min_width=max(map(len, RULES))))
    for header in headers:
        table.add_column(header, justify="right")
    table.add_column("first example", no_wrap=True, overflow="ellipsis")
    removed = [(rule, entry["rows"], entry["examples"][0]) for rule, entry in report["removed"].items()]
    for title, counts, example in (("read", report["read"], None), *removed, ("kept", report["kept"], None)):
        reason = escape(f"{example['at']}: {example['why']}") if example else ""
        table.add_row(title, *(f"{counts.get(name, 0):,}" for name in columns), reason)
    return table


def column_table(report: InspectionReport) -> Table:
    """Return a table with one row per column of the inspected files."""
    table = Table("column", "type", Column("rows", justify="right"), "first value")
    for name, column in report.columns.items():
        types = escape(", ".join(column.types))
        table.add_row(escape(name), types, f"{column.types.total():,}", escape(column.example))
    return table


def inspection_lines(report: InspectionReport, layout: DatasetLayout | None) -> Iterator[str]:
    """Yield the lines below the column table: counts, sizes, and the first usable row."""
    yield f"{report.rows:,} rows, {report.usable:,} usable" + (f" as {layout.kind}" if layout else "")
    for rule, rows in report.removed.items():
        yield f"  {rows:,} removed by {rule}: {RULES[rule]}"
    if not report.usable:
        yield "No row is a problem {problem, answer} or a conversation {messages}. Select a layout with LAYOUT=PATH."
        return
    if report.words:
        shortest, median, longest = min(report.words), statistics.median(report.words), max(report.words)
        yield f"words per row: {shortest:,} to {longest:,}, median {median:,.0f}"
    if report.turns:
        yield "messages: " + ", ".join(f"{count:,} {role}" for role, count in report.turns.items())
    else:
        yield f"answers: {report.integers:,} integers, {report.usable - report.integers:,} others"
        yield from warn_of_answers(report.unclear)
    yield "first usable row, in the format of a stage:"
    yield to_json(report.first, indent=1)
