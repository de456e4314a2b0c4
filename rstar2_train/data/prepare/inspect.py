"""Looks at a data file before it is used: columns, and what the project would make of the rows (`rstar2 data inspect`).

Beside pipeline.py, from which it has the conversion; writes nothing.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rstar2_train.data.prepare.config import PrepareSettings
from rstar2_train.data.prepare.normalize import normalized_words
from rstar2_train.data.prepare.pipeline import converted, named
from rstar2_train.data.prepare.records import DatasetLayout, RemovedRow, Row, compared_text
from rstar2_train.data.readers import brief, read_rows
from rstar2_train.rewards.verify import canonical_integer
from rstar2_train.tools.schema import CALL_OPEN


@dataclass(slots=True)
class ColumnSummary:
    """One column of the rows as they are."""

    types: Counter[str] = field(default_factory=Counter)
    """JSON type -> rows; rows without the column or with null are not counted."""
    example: str = ""


@dataclass(slots=True)
class InspectionReport:
    """What was seen in a file."""

    rows: int = 0
    columns: dict[str, ColumnSummary] = field(default_factory=dict)
    usable: int = 0
    """Rows that are problems or conversations, after conversion if a layout was named."""
    removed: Counter[str] = field(default_factory=Counter)
    """Rule -> rows that it removes, of the rules that look at one row alone."""
    integers: int = 0
    """Problems whose answer is a whole number."""
    words: list[int] = field(default_factory=list)
    """Number of words of each usable row: of the problem, or of what the user says."""
    turns: Counter[str] = field(default_factory=Counter)
    """Role -> messages; under `tool call` the calls that assistant messages make."""
    first: Row | None = None
    """The first usable row."""


_JSON_TYPES = {str: "text", bool: "boolean", int: "number", float: "number", list: "list", dict: "object"}


def inspect_rows(
    files: Sequence[Path], *, layout: DatasetLayout | None = None, most: int | None = None
) -> InspectionReport:
    """Read the files, or their first `most` rows. Raises DataError for a row that `layout` does not fit."""
    found = InspectionReport()
    rows = ((f"{path}:{line}", row) for path in files for line, row in read_rows(path))
    for where, row in itertools.islice(rows, most):
        _count_columns(found, row)
        own, _ = named(converted(layout, row, where, max_digits=PrepareSettings().max_digits) if layout else row)
        if isinstance(own, RemovedRow):
            found.removed[own.rule] += 1
        elif layout or isinstance(own.get("messages"), list) or _is_problem(own):
            _count_row(found, own, where)
    return found


def _is_problem(row: Row) -> bool:
    return "problem" in row and ("answer" in row or "instructions" in row)


def _count_columns(found: InspectionReport, row: dict[str, Any]) -> None:
    found.rows += 1
    for name, value in row.items():
        if value is None:
            continue
        column = found.columns.setdefault(name, ColumnSummary())
        column.types[_JSON_TYPES.get(type(value), type(value).__name__)] += 1
        column.example = column.example or brief(value)


def _count_row(found: InspectionReport, row: Row, where: str) -> None:
    found.usable += 1
    found.first = found.first or row
    found.words.append(len(normalized_words(compared_text(row, where))))
    if "answer" in row:
        found.integers += canonical_integer(str(row["answer"])) is not None
    for message in row.get("messages") or ():
        role = message.get("role") if isinstance(message, dict) else None
        found.turns[str(role)] += 1
        if role == "assistant":
            found.turns["tool call"] += str(message.get("content")).count(CALL_OPEN)
