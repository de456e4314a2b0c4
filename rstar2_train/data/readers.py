"""Reads the rows of a data file, one after the other: JSON Lines, a JSON array, CSV, Parquet or Arrow.

The lowest floor of the room: problems.py, data/prepare/layouts.py and data/prepare/conversations.py say what the rows
mean. Never more than a batch of rows is held, whatever the size of the file.
"""

from __future__ import annotations

import codecs
import csv
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet", ".arrow")
"""Files that can be read. `.json` holds one array of objects, `.csv` a header and fields that are all text, `.arrow`
what `datasets.save_to_disk` writes."""
CHUNK = 1 << 16
"""Characters read at a time from a JSON array."""
LARGEST_ROW = 1 << 24
"""Characters of a JSON array without the end of a row, after which the file is given up."""
_CUT_OFF = 16
"""An error so near to the end of what has been read may be due to that end: the longest token is `\\uXXXX\\uXXXX`."""


_MOST_DIGITS = 4000
"""Python refuses to make an int of more than 4300 digits."""


class DataError(ValueError):
    """A data file is missing, unreadable, or holds a row that cannot be used. The message names file and line."""


def read_rows(path: Path, *, columns: Sequence[str] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows with their line numbers (but for JSON Lines and CSV: row numbers), counted from 1.

    `columns`: of a Parquet or Arrow file only these, where it has one of them. Raises DataError, naming file and
    line, for a file that is missing, empty or of another kind, and for a row that is not an object.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    if path.suffix not in SUFFIXES:
        raise DataError(f"{path}: a data file must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    readers: dict[str, Callable[[Path], Iterator[tuple[int, Any]]]] = {
        ".jsonl": _jsonl_rows,
        ".json": _json_rows,
        ".csv": _csv_rows,
    }
    read = readers.get(path.suffix)
    rows = read(path) if read else enumerate(_arrow_rows(path, columns), start=1)
    empty = True
    for line, row in rows:
        if not isinstance(row, dict):
            raise DataError(f"{path}:{line}: a row must be a JSON object, got {brief(row)}")
        empty = False
        yield line, row
    if empty:
        raise DataError(f"{path}: the file has no rows")


def text_field(row: dict[str, Any], field: str, where: str, *, default: str | None = None) -> str:
    """The text of a field; a number is taken as text, `5.0` as `5`. `where`: file and line, for the message.

    Raises DataError when it is missing or empty and there is no `default`, or is something else.
    """
    value = row.get(field)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:  # a column of integers with gaps
        value = int(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        value = str(value)
    if value is None and default is not None:
        return default
    if not isinstance(value, str) or (not value and default is None):
        raise DataError(f"{where}: {field} must be a non-empty text, got {brief(value)}")
    return value


def present_text(row: dict[str, Any], where: str, *fields: str) -> str:
    """The text of the first of these fields that is filled, or "" when none is. Raises DataError when none is there."""
    if not any(field in row for field in fields):
        raise DataError(f"{where}: no {' or '.join(fields)}")
    filled = next((field for field in fields if row.get(field) not in (None, "")), None)
    return "" if filled is None else text_field(row, filled, where)


def brief(value: object) -> str:
    """A value for a message, at most 60 characters of it."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _jsonl_rows(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open("rb") as file:
        for line, raw in enumerate(file, start=1):
            text = raw.rstrip().removeprefix(codecs.BOM_UTF8 if line == 1 else b"")
            if not text:
                continue
            try:
                yield line, json.loads(text.decode("utf-8"), parse_int=_int)
            except UnicodeDecodeError as error:
                raise DataError(f"{path}:{line}: not UTF-8: {error.reason} at byte {error.start}") from error
            except json.JSONDecodeError as error:
                raise DataError(f"{path}:{line}: not valid JSON: {error.msg} at column {error.colno}") from error
            except RecursionError as error:
                raise DataError(f"{path}:{line}: nested too deep") from error


def _json_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """The elements of one JSON array."""
    decoder = json.JSONDecoder(parse_int=_int)
    with path.open(encoding="utf-8-sig") as file:
        text = _at_next(path, file, "", skip="")
        if not text.startswith("["):
            raise DataError(f"{path}: a .json file must hold an array of objects; with one a line it is a .jsonl")
        text = _at_next(path, file, text[1:], skip="")
        for number in itertools.count(1):
            if text.startswith("]"):
                return
            while True:
                try:
                    row, end = decoder.raw_decode(text)
                    break
                except json.JSONDecodeError as error:
                    cut = error.msg.startswith("Unterminated string") or error.pos > len(text) - _CUT_OFF
                    more = _read(path, file) if cut and len(text) < LARGEST_ROW else ""
                    if not more:
                        raise DataError(f"{path}:{number}: not valid JSON: {error.msg}") from error
                    text += more
                except RecursionError as error:
                    raise DataError(f"{path}:{number}: nested too deep") from error
            yield number, row
            text = _at_next(path, file, text[end:], skip=",")


def _at_next(path: Path, file: TextIO, text: str, *, skip: str) -> str:
    """`text`, continued if need be, from its first character that is neither a space nor the one `skip`."""
    while not (rest := text.lstrip().removeprefix(skip).lstrip()):
        more = _read(path, file)
        if not more:
            raise DataError(f"{path}: the array is not closed; is the file cut off?")
        text += more
    return rest


def _read(path: Path, file: TextIO) -> str:
    try:
        return file.read(CHUNK)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8: {error.reason}") from error


def _int(digits: str) -> int | str:
    """A JSON number; one of thousands of digits, as answers may be, stays text."""
    return int(digits) if len(digits) <= _MOST_DIGITS else digits


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a CSV file by its header; a row is numbered by the line on which it begins."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader, header, line = csv.reader(file, strict=True), list[str](), 1
        try:
            for fields in reader:
                at, line = line, reader.line_num + 1
                if not fields:
                    continue
                if not header:
                    header = fields
                    if len(set(header)) < len(header):
                        raise DataError(f"{path}:{at}: two columns have the same name")
                    continue
                if len(fields) != len(header):
                    raise DataError(f"{path}:{at}: {len(fields)} fields; the header has {len(header)}")
                yield at, dict(zip(header, fields, strict=True))
        except csv.Error as error:
            raise DataError(f"{path}:{line}: not valid CSV: {error}") from error
        except UnicodeDecodeError as error:
            raise DataError(f"{path}:{line}: not UTF-8 near here: {error.reason}") from error


def _arrow_rows(path: Path, columns: Sequence[str] | None) -> Iterator[Any]:
    """Rows of a Parquet file or of an Arrow stream, a batch at a time."""
    try:
        import pyarrow.ipc
        import pyarrow.lib
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(f"{path}: reading it needs pyarrow: pip install 'rstar2[train]'") from error

    kind = "Parquet" if path.suffix == ".parquet" else "Arrow"
    try:
        if kind == "Arrow":
            with pyarrow.memory_map(str(path)) as source, pyarrow.ipc.open_stream(source) as stream:
                names = _wanted(stream.schema.names, columns)
                for batch in stream:
                    yield from batch.select(names).to_pylist()
            return
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024, columns=_wanted(file.schema_arrow.names, columns)):
                yield from batch.to_pylist()
    except pyarrow.lib.ArrowInvalid as error:
        raise DataError(f"{path}: not a readable {kind} file: {error}") from error


def _wanted(names: list[str], columns: Sequence[str] | None) -> list[str]:
    """All names where none is among `columns`, so that the message about the row can tell what there is."""
    return [name for name in names if columns is None or name in columns] or names
