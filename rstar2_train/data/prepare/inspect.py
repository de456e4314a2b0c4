"""Inspects data files before use: their columns, and the rows after conversion (`rstar2 data inspect`).

Uses the conversion of `pipeline.py`; writes nothing. `render.py` prints the result.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from rstar2_train.data.arrow_rows import Unreadable, column_names
from rstar2_train.data.demonstrations import read_demonstration
from rstar2_train.data.json_values import WrittenFloat, WrittenInteger
from rstar2_train.data.known_answers import answer_fault
from rstar2_train.data.prepare.config import PrepareSettings
from rstar2_train.data.prepare.normalize import normalized_words
from rstar2_train.data.prepare.pipeline import convert_row, identify_row
from rstar2_train.data.prepare.records import DatasetLayout, RemovedRow, Row, comparison_text
from rstar2_train.data.problems import read_problem
from rstar2_train.data.readers import DataError, is_gap, read_rows
from rstar2_train.rewards.verify import canonical_integer
from rstar2_train.tools.schema import CALL_OPEN
from rstar2_train.utils.text import short_repr


@dataclass(slots=True)
class ColumnSummary:
    """Statistics of one column before conversion."""

    types: Counter[str] = field(default_factory=Counter)
    """JSON type -> rows. Rows without the column, or with null, do not count."""
    example: str = ""
    """The first value."""


@dataclass(slots=True)
class InspectionReport:
    """Statistics of the inspected rows."""

    rows: int = 0
    columns: dict[str, ColumnSummary] = field(default_factory=dict)
    usable: int = 0
    """Rows that a stage reads as problems or conversations, after conversion if a layout is set."""
    refused: int = 0
    """Rows with a problem or messages that a stage refuses."""
    fault: str = ""
    """The message for the first refused row."""
    unused: list[str] = field(default_factory=list)
    """Columns that the layout does not read."""
    removed: Counter[str] = field(default_factory=Counter)
    """Rule -> rows that it removes; only rules for single rows."""
    integers: int = 0
    """Problems with an integer answer."""
    unclear: list[str] = field(default_factory=list)
    """`FILE:LINE: fault` of each known answer that the reward Math cannot compare by type or only guesses. Rows with a
    `reward` or `functions` do not count."""
    words: list[int] = field(default_factory=list)
    """Number of words per usable row: of the problem, or of the user messages."""
    turns: Counter[str] = field(default_factory=Counter)
    """Role -> messages; `tool call` -> calls in assistant messages."""
    first: Row | None = None
    """The first usable row."""


_JSON_TYPES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (WrittenInteger, "number"),
    (str, "text"),
    (bool, "boolean"),
    ((int, float, Decimal), "number"),
    (list, "list"),
    (dict, "object"),
)


def inspect_rows(
    files: Sequence[Path], *, layout: DatasetLayout | None = None, limit: int | None = None
) -> InspectionReport:
    """Return the statistics of all rows, or of the first `limit`. Raises DataError for a row of another layout."""
    report = InspectionReport()
    read = layout.read if layout else read_rows
    seen: dict[Path, dict[str, int]] = {path: {} for path in files}
    rows = ((path, line, row) for path in files for line, row in read(path))
    for path, line, row in itertools.islice(rows, limit):
        where = f"{path}:{line}"
        _count_columns(report, row)
        result, _ = identify_row(
            convert_row(layout, row, where, max_digits=PrepareSettings().max_digits) if layout else row
        )
        if isinstance(result, RemovedRow):
            report.removed[result.rule] += 1
        elif fault := _stage_fault(result, path, line, seen[path]):
            report.refused += 1
            report.fault = report.fault or fault
        elif not (is_gap(result.get("messages")) and is_gap(result.get("problem"))):
            _count_row(report, result, where)
    if layout and report.rows:
        names = (column_names(path, report.columns) for path in files)
        report.unused = layout.unused(dict.fromkeys(itertools.chain.from_iterable(names)))
    return report


def _stage_fault(row: Row, path: Path, line: int, seen: dict[str, int]) -> str:
    """Return why stages refuse a row with messages or a problem; empty if one reads the row, or it has neither."""
    faults = []
    for name, read in (
        ("messages", lambda: read_demonstration(row, f"{path}:{line}")),
        ("problem", lambda: read_problem(row, path, line, seen)),
    ):
        if is_gap(row.get(name)):
            continue
        try:
            read()
            return ""
        except DataError as error:
            faults.append(str(error))
    return faults[0] if faults else ""


def _count_columns(report: InspectionReport, row: dict[str, Any]) -> None:
    report.rows += 1
    for name, value in row.items():
        if value is None:
            continue
        column = report.columns.setdefault(name, ColumnSummary())
        column.types[_type_name(value)] += 1
        column.example = column.example or short_repr(_readable(value))


def _type_name(value: Any) -> str:
    """Return the name of a value's type in JSON; of an unreadable value that of its column."""
    if isinstance(value, Unreadable):
        return value.type
    return next(name for types, name in _JSON_TYPES if isinstance(value, types))


def _readable(value: Any) -> Any:
    """Return a value for people: a number as it is written."""
    match value:
        case Unreadable():
            return str(value)
        case WrittenFloat():
            return value.digits
        case Decimal():
            return f"{value:f}"
    return value


def _count_row(report: InspectionReport, row: Row, where: str) -> None:
    report.usable += 1
    report.first = report.first or row
    with contextlib.suppress(DataError):  # a row of another form has no text to count
        report.words.append(len(normalized_words(comparison_text(row, where))))
    if "answer" in row:
        report.integers += canonical_integer(str(row["answer"])) is not None
        fault = answer_fault(str(row["answer"])) if row.get("functions") is None and not row.get("reward") else None
        if fault:
            report.unclear.append(f"{where}: {fault}")
    messages = row.get("messages")
    for message in messages if isinstance(messages, list) else ():
        role = message.get("role") if isinstance(message, dict) else None
        report.turns[str(role)] += 1
        if role == "assistant":
            report.turns["tool call"] += str(message.get("content")).count(CALL_OPEN)
