"""The layout of the rows of BFCL's package."""

from __future__ import annotations

from typing import Any

from rstar2_train.benchmarks.bfcl.conversion import KINDS, answers_file, has_rows, has_truth, to_row
from rstar2_train.data.prepare.records import DatasetLayout, RemovedRow, Row
from rstar2_train.data.readers import DataError, check_written, first_text


def convert(row: dict[str, Any], where: str) -> Row | RemovedRow:
    """Convert a row whose `question` is a list of turns, and whose id starts with its category."""
    category = first_text(row, where, "id").rpartition("_")[0]
    if category not in KINDS:
        raise DataError(f"{where}: unknown category {category!r}; the categories are {', '.join(KINDS)}")
    if has_truth(category) and row.get("ground_truth") is None:
        raise DataError(f"{where}: {row['id']} has no ground_truth in the file of answers")
    try:
        converted = to_row(category, row, row.get("ground_truth"))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DataError(f"{where}: not a question in one turn with functions: {error!r}") from error
    check_written(converted["problem"], f"{where}: question")
    return converted


PLUGIN = DatasetLayout(
    "bfcl",
    "BFCL, as in the package bfcl-eval: calls in one turn",
    "benchmark",
    ("id", "question", "function", "ground_truth"),
    convert,
    has_rows=has_rows,
    answers=answers_file,
)
