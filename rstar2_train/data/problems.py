"""Reads problems and demonstrations from JSONL or Parquet files, and says exactly which row is wrong.

The files that a manifest names end here: they are checked before a job starts, and every stage driver reads its
`data`, through these functions, which hold one row at a time.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROLES = ("system", "user", "assistant", "tool")


class DataError(ValueError):
    """A data file is missing, unreadable, or holds a row that cannot be used. The message names file and line."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A question with a known answer."""

    id: str
    problem: str
    answer: str
    slice: str = ""
    """Name of the group it is reported under, such as a level; empty: none."""
    hard: bool = False
    """Counted again in the report's pass@1 of hard problems."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A demonstration: chat messages, with the assistant's text exactly as the policy should write it."""

    messages: tuple[dict[str, Any], ...]
    level: int = 0
    """Difficulty, 1 the first; 0 when the file does not say. See `SFTStage.shortest_first_steps`."""


def read_problems(path: Path) -> Iterator[Problem]:
    """The problems of a `.jsonl` or `.parquet` file of rows `{problem, answer, id?, slice?, hard?}`, in file order.

    A row without `id` gets `<file stem>-<line>`; a number is taken as an answer too.
    Raises DataError, naming file and line, for a row that is not usable, for an id used twice and for an empty file.
    """
    seen: dict[str, int] = {}
    for line, row in _rows(path):
        where = f"{path}:{line}"
        problem = Problem(
            id=_text(row, "id", where, default=f"{path.stem}-{line}"),
            problem=_text(row, "problem", where),
            answer=_text(row, "answer", where),
            slice=_text(row, "slice", where, default=""),
            hard=_flag(row, "hard", where),
        )
        if problem.id in seen:
            raise DataError(
                f"{where}: id {problem.id!r} is already used in line {seen[problem.id]}; ids must be unique"
            )
        seen[problem.id] = line
        yield problem


def read_conversations(path: Path) -> Iterator[Conversation]:
    """The demonstrations of a `.jsonl` or `.parquet` file of rows `{messages: [{role, content}], level?}`.

    Raises DataError, naming file and line, for a row without an assistant message, an unknown role or a
    message without text.
    """
    for line, row in _rows(path):
        where = f"{path}:{line}"
        level = row.get("level") or 0
        if not isinstance(level, int):
            raise DataError(f"{where}: level is {level!r}; it must be a whole number, 1 for the first difficulty")
        yield Conversation(messages=_messages(row, where), level=level)


def _messages(row: dict[str, Any], where: str) -> tuple[dict[str, Any], ...]:
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages:
        raise DataError(f"{where}: messages must be a list of {{role, content}}, got {_brief(messages)}")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise DataError(f"{where}: messages[{index}] must be an object, got {_brief(message)}")
        if message.get("role") not in ROLES:
            raise DataError(f"{where}: messages[{index}].role is {message.get('role')!r}; allowed: {', '.join(ROLES)}")
        if not isinstance(message.get("content"), str):
            raise DataError(f"{where}: messages[{index}] has no text in content; tool calls are written out in it too")
    if not any(message["role"] == "assistant" for message in messages):
        raise DataError(f"{where}: no assistant message, so there is nothing to learn from")
    # Parquet fills the fields that other rows have with None; a chat template would take those for set.
    return tuple({key: value for key, value in message.items() if value is not None} for message in messages)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows with their line numbers (Parquet: row numbers), counted from 1."""
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    if path.suffix not in (".jsonl", ".parquet"):
        raise DataError(f"{path}: a data file must end in .jsonl or .parquet")
    rows = _parquet_rows(path) if path.suffix == ".parquet" else _jsonl_rows(path)
    count = 0
    for count, (line, row) in enumerate(rows, start=1):  # noqa: B007 - the last count is needed
        if not isinstance(row, dict):
            raise DataError(f"{path}:{line}: a row must be a JSON object, got {_brief(row)}")
        yield line, row
    if count == 0:
        raise DataError(f"{path}: the file has no rows")


def _jsonl_rows(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open("rb") as file:
        for line, raw in enumerate(file, start=1):
            if not raw.strip():
                continue
            try:
                yield line, json.loads(raw.decode("utf-8"))
            except UnicodeDecodeError as error:
                raise DataError(f"{path}:{line}: not UTF-8: {error.reason} at byte {error.start}") from error
            except json.JSONDecodeError as error:
                raise DataError(f"{path}:{line}: not valid JSON: {error.msg} at column {error.colno}") from error


def _parquet_rows(path: Path) -> Iterator[tuple[int, Any]]:
    import pyarrow.lib
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            rows = itertools.chain.from_iterable(batch.to_pylist() for batch in file.iter_batches(batch_size=1024))
            yield from enumerate(rows, start=1)
    except pyarrow.lib.ArrowInvalid as error:
        raise DataError(f"{path}: not a readable Parquet file: {error}") from error


def _text(row: dict[str, Any], field: str, where: str, *, default: str | None = None) -> str:
    value = row.get(field)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if value is None and default is not None:
        return default
    if not isinstance(value, str) or (not value and default is None):
        raise DataError(f"{where}: {field} must be a non-empty text, got {_brief(value)}")
    return value


def _flag(row: dict[str, Any], field: str, where: str) -> bool:
    value = row.get(field)
    if value is not None and not isinstance(value, bool):
        raise DataError(f"{where}: {field} must be true or false, got {_brief(value)}")
    return bool(value)


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
