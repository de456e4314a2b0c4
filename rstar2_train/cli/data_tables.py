"""The tables and lines that `rstar2 data` prints.

They show the reports of `data/prepare/pipeline.py` and of `data/prepare/inspect.py`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rstar2_train.cli.common import warn_of_answers
from rstar2_train.cli.tables import Column, ColumnGroups, FittingTable
from rstar2_train.data.prepare.records import RULES, DatasetLayout, to_json
from rstar2_train.utils.text import printable

if TYPE_CHECKING:
    from rstar2_train.data.prepare.inspect import InspectionReport


def removal_table(report: dict[str, Any]) -> ColumnGroups:
    """Return the table of rows read, removed per rule, and kept. `report`: of `RemovalReport.as_json`."""
    sources = [name for name in report["read"] if name != "all"]
    headings = {"all": "all", **{name: name for name in sources}} if len(sources) > 1 else {"all": "rows"}
    counts = [report["read"], *(entry["rows"] for entry in report["removed"].values()), report["kept"]]
    examples = [f"{entry['examples'][0]['at']}: {entry['examples'][0]['why']}" for entry in report["removed"].values()]
    columns = [Column(heading, [f"{row.get(name, 0):,}" for row in counts]) for name, heading in headings.items()]
    names = Column("", ["read", *report["removed"], "kept"], is_text=True)
    return ColumnGroups("", names, [*columns, Column("first example", ["", *examples, ""], is_text=True)])


def unused_line(unused: Mapping[str, Sequence[str]]) -> str:
    """Return the line that names the columns that no layout reads, or no line. `unused`: source -> columns."""
    named = {source: ", ".join(map(printable, columns)) for source, columns in unused.items() if columns}
    texts = named.values() if len(unused) == 1 else [f"{source}: {columns}" for source, columns in named.items()]
    return f"columns not used: {'; '.join(texts)}\n" if named else ""


def column_table(report: InspectionReport) -> FittingTable:
    """Return a table with one row per column of the inspected files."""
    columns = report.columns.values()
    return FittingTable(
        "",
        [
            Column("column", list(report.columns), is_text=True),
            Column("type", [", ".join(column.types) for column in columns], rank=1, is_text=True),
            Column("rows", [f"{column.types.total():,}" for column in columns], rank=2),
            Column("first value", [column.example for column in columns], rank=3, is_text=True),
        ],
    )


def inspection_lines(report: InspectionReport, layout: DatasetLayout | None) -> Iterator[str]:
    """Yield the lines below the column table: counts, sizes, and the first usable row."""
    yield f"{report.rows:,} rows, {report.usable:,} usable" + (f" as {layout.kind}" if layout else "")
    for rule, rows in report.removed.items():
        yield f"  {rows:,} removed by {rule}: {RULES[rule]}"
    if report.refused:
        yield f"  {report.refused:,} refused by stages: {report.fault}"
    yield from unused_line({"": report.unused}).splitlines()
    if not (report.usable or report.refused or report.removed):
        yield "No row is a problem {problem, answer} or a conversation {messages}. Select a layout with LAYOUT=PATH."
    if not report.usable:
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
