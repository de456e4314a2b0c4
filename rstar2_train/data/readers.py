"""Reads the rows of a data file in JSON Lines, JSON, CSV, Parquet or Arrow format.

The lowest module of the package: `problems.py`, `prepare/layouts.py` and `prepare/conversations.py` interpret the rows.
At most one batch of rows is in memory, for files of any size.
"""

from __future__ import annotations

import codecs
import csv
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, TextIO

from rstar2_train.data.json_values import WrittenFloat, WrittenInteger, json_decoder
from rstar2_train.utils.json_objects import RepeatedKeyError
from rstar2_train.utils.local_path import file_fault
from rstar2_train.utils.spelling import spelled
from rstar2_train.utils.text import lone_surrogate, reason, short_repr

MEDIA_FIELDS = (
    *("image", "images", *(f"image_{number}" for number in range(10)), "video", "videos", "audio", "audios"),
    *("image_path", "image_paths", "image_url", "image_urls"),
)
"""Fields of a row that a model of text cannot read."""
SUFFIXES = (".jsonl", ".json", ".csv", ".parquet", ".arrow")
"""Supported file types. `.json` holds one array of objects, or an object per line as `.jsonl`. `.csv` has a header, and
all its fields are text. `.arrow` is the stream of `datasets.save_to_disk`, or Arrow's file format."""
CHUNK = 1 << 16
"""Characters per read of a JSON array."""
LONGEST_TEXT = 2**20
"""Maximum characters of a problem or message: far above the context of any policy. Some tokenizers abort the process
on texts a few times longer."""
LARGEST_ROW = 1 << 24
"""Maximum characters of a row in a JSON array, and of a CSV field; reading stops with an error at a longer one."""
_CUT_OFF = 16
"""Characters before the end of the buffer in which a parse error may come from a cut token. The longest token is
`\\uXXXX\\uXXXX`."""
_CONTROL = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"
    r"|\t(?:ext[a-z]*|imes|[df]?frac|anh?|heta|herefore|au|ilde|riangle|binom|op|o)(?![a-z])"
    r"|\r(?:ho|ight(?:arrow)?|angle|ceil|floor|m|brace|vert)(?![a-z])"
    r"|\n(?:eq|eg|abla|ot|otin|mid|leq|geq)(?![a-z])|(?:\A|(?<=[ =({]))\n[eiu](?![a-z])"
)
"""Control characters that no answer has: all but tab and line breaks, and those if they start a LaTeX command."""
_AFTER_SOLUTION = re.compile(r"(?:[^#]*[^#\w])?####(?!#)(?P<value>[^#]*[^#\s][^#]*)")
"""Last line of an answer of GSM8K; the comment of a program has other marks before or after."""
_TORN_SOLUTION = re.compile(r"^####[ \t]*(?:[-+$(\d.].*)?$", re.MULTILINE)
"""A line with the mark of GSM8K that is not the last one, or has no value, or two."""
_LOST_BACKSLASH = re.compile(r"[\x00\x08\x0b\x0c]")
"""Control characters that no text to train on has: JSON reads the starts of `\\boxed`, `\\frac` and `\\vec` as such."""
_SEPARATOR = re.compile(r"[;\t|]")
"""Other marks than a comma that separate fields in files named `.csv`."""
_SAVE_AS_TEXT = "save it as uncompressed text in UTF-8"


class DataError(ValueError):
    """A data file is missing or unreadable, or one of its rows is invalid. The message names file and line."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise DataError unless the path is a file, and for an error of the file system while it is read."""
    try:
        if fault := file_fault(path):
            raise DataError(f"{path}: {fault}")
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {reason(error)}; pass a file that you may read") from error


def read_rows(
    path: Path, *, columns: Sequence[str] | None = None, also: Sequence[str] = ()
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number, row) for each row. Numbers start at 1: lines in JSON Lines and CSV files, rows in other files.

    `columns`: the columns to read from a Parquet or Arrow file, in any spelling (`spelled`). If the file has none of
    them, all columns are read, else those of `also` too.
    Raises DataError, which names file and line, for a file that is missing, empty or of an unsupported type, and for a
    row that is not an object.
    """
    empty = True
    with reading(path):
        for line, row in _numbered_rows(path, columns, also):
            if not isinstance(row, dict):
                raise DataError(f"{path}:{line}: a row must be a JSON object, got {short_repr(row)}")
            empty = False
            yield line, row
    if empty:
        raise DataError(f"{path}: the file has no rows")


def _numbered_rows(path: Path, columns: Sequence[str] | None, also: Sequence[str]) -> Iterator[tuple[int, Any]]:
    if path.suffix not in SUFFIXES:
        raise DataError(
            f"{path}: unsupported file type {path.suffix!r}; supported: {', '.join(SUFFIXES[:-1])} and {SUFFIXES[-1]}"
        )
    read = {".jsonl": _jsonl_rows, ".json": _json_rows, ".csv": _csv_rows}.get(path.suffix)
    if read is not None:
        return read(path)
    from rstar2_train.data.arrow_rows import read_arrow_rows

    return enumerate(read_arrow_rows(path, columns, also), start=1)


def text_field(row: dict[str, Any], field: str, where: str, *, default: str | None = None) -> str:
    """Return the text of a field. A number becomes text, `5.0` becomes `5`; one that a double does not keep has all its
    digits. `where`: file and line, for the message.

    Raises DataError if the field has another type, or if it is missing or empty and there is no `default`.
    """
    value = row.get(field)
    if isinstance(value, WrittenFloat):
        value = value.digits
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:  # a column of integers with gaps
        value = int(value)
    if isinstance(value, Decimal) and value.is_finite():
        value = str(int(value)) if is_whole(value) else f"{value:f}"
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        value = str(value)
    if default is not None and (value is None or (isinstance(value, float) and math.isnan(value))):  # a gap of pandas
        return default
    if not isinstance(value, str) or (not value and default is None):
        existing = "" if field in row else f"; the fields of the row are {', '.join(map(repr, row))[:200]}"
        raise DataError(f"{where}: {field} must be a non-empty text, got {short_repr(value)}{existing}")
    return value


def slice_field(row: dict[str, Any], field: str, where: str) -> str:
    """Return the name of a slice, without white space at its ends, such as that after a comma of a CSV file."""
    return text_field(row, field, where, default="").strip()


def check_spelling(row: Mapping[str, Any], fields: tuple[str, ...], where: str) -> None:
    """Raise DataError for a name that is one of `fields` in another spelling: it is not read.

    A header such as `problem, answer, tools` has a blank before its names. A name with the value of its field is
    accepted.
    """
    for name, field in spelled(row, fields):
        if name != field and is_set(row, name) and row[name] != row.get(field):
            remedy = "remove one of them" if field in row else f"rename it to {field!r}, or remove it"
            raise DataError(f"{where}: {name!r} is not read: {remedy}")


def is_set(row: Mapping[str, Any], field: str) -> bool:
    """Return whether a row has a field with content: not null, empty, false, or a gap of pandas."""
    value = row.get(field)
    return bool(value) and not is_gap(value)


def is_gap(value: Any) -> bool:
    """Return whether a value of a column with gaps is missing: null, NaN, or an empty text."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def flag_field(row: Mapping[str, Any], field: str, where: str) -> bool:
    """Return a field that is true or false; a gap is false. The fields of a CSV file are texts. Raises DataError."""
    value = row.get(field)
    if is_gap(value):
        return False
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.lower(), value)
    if not isinstance(value, bool):
        raise DataError(f"{where}: {field} must be true or false, got {short_repr(value)}")
    return value


def is_whole(value: float | Decimal) -> bool:
    """Return whether a number is whole."""
    return value == value.to_integral_value() if isinstance(value, Decimal) else value % 1 == 0


def first_text(row: dict[str, Any], where: str, *fields: str) -> str:
    """Return the text of the first non-empty field, or "" if all are empty. Raises DataError if the row has none."""
    if not any(field in row for field in fields):
        raise DataError(f"{where}: no {' or '.join(fields)}")
    filled = next((field for field in fields if not is_gap(row.get(field))), None)
    return "" if filled is None else text_field(row, filled, where)


def json_value(value: Any, field: str, *, exact: bool = False) -> Any:
    """Return a value of a row with the types of JSON. Raises DataError, which names the field inside the value.

    `exact`: whether the value is trained on, so that a number is not rounded to a double.
    """
    try:
        return _json_value(value, field, exact)
    except RecursionError:
        raise DataError(f"{field[:200]}: too many nested objects or arrays") from None


def _json_value(value: Any, field: str, exact: bool) -> Any:
    if isinstance(value, dict):
        return {key: _json_value(inner, f"{field}.{key}", exact) for key, inner in value.items()}
    if isinstance(value, list):
        return [_json_value(inner, f"{field}[{at}]", exact) for at, inner in enumerate(value)]
    if exact and isinstance(value, WrittenFloat) and math.isfinite(value):
        raise DataError(f"{field} is {value.digits[:60]}, which a double rounds to {value!r}: write that number")
    if isinstance(value, Decimal) and value.is_finite() and is_whole(value):
        return int(value)
    if isinstance(value, WrittenInteger):
        raise DataError(f"{field} is an integer of {len(value):,} digits, which no program reads: write it as a text")
    if value is None or isinstance(value, (str, bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise DataError(f"{field} is {short_repr(value)}, which JSON cannot hold: write it as a text or a number")


def known_answer(answer: str, field: str) -> str:
    """Return a known answer; of GSM8K's `solution #### value` the value.

    Raises DataError for a control character: JSON reads the start of a LaTeX command such as `\\frac` as one.
    """
    _reject_control(_CONTROL, answer, field)
    *_, last = answer.rstrip().rpartition("\n")
    match = _AFTER_SOLUTION.fullmatch(last)
    if match is None and (torn := _TORN_SOLUTION.search(answer)):
        raise DataError(
            f"{field} has {short_repr(torn[0].strip())}: after a solution, write `#### ` and the value once, in the "
            "last line"
        )
    return answer if match is None else match["value"].strip()


def check_written(text: str, field: str) -> str:
    """Return a text that is read or learned, unchanged. Raises DataError for the rest of a LaTeX command in it."""
    _reject_control(_LOST_BACKSLASH, text, field)
    return text


def _reject_control(controls: re.Pattern[str], text: str, field: str) -> None:
    if control := controls.search(text):
        excerpt = short_repr(text[max(0, control.start() - 20) : control.end() + 20])
        raise DataError(
            f"{field} contains {control.group()[0]!a}, a control character, in {excerpt}; in JSON, write "
            "the backslash of a LaTeX command twice"
        )


def check_characters(text: str, field: str) -> str:
    """Return the text unchanged. Raises DataError for one that has no form in UTF-8."""
    if half := lone_surrogate(text):
        raise DataError(f"{field} contains {half!a}, half of a surrogate pair; remove it or the row")
    return text


def check_text(text: str, field: str) -> str:
    """Return the text unchanged. Raises DataError for a text that tokenizers reject."""
    check_characters(text, field)
    if len(text) > LONGEST_TEXT:
        raise DataError(
            f"{field} has {len(text):,} characters; the limit is {LONGEST_TEXT:,}. Shorten or remove the row"
        )
    return text


def _jsonl_rows(path: Path) -> Iterator[tuple[int, Any]]:
    decoder = json_decoder()
    with path.open("rb") as file:
        for line, raw in enumerate(file, start=1):
            text = raw.rstrip().removeprefix(codecs.BOM_UTF8 if line == 1 else b"")
            if not text:
                continue
            try:
                yield line, decoder.decode(text.decode("utf-8"))
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}:{line}: not UTF-8: {error.reason} at byte {error.start}; {_SAVE_AS_TEXT}"
                ) from error
            except json.JSONDecodeError as error:
                raise DataError(
                    f"{path}:{line}: not valid JSON: {error.msg} at column {error.colno}; write one object per line"
                ) from error
            except RepeatedKeyError as error:
                raise DataError(f"{path}:{line}: {error}; keep one") from error
            except RecursionError as error:
                raise DataError(f"{path}:{line}: too many nested objects or arrays") from error


def _json_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the elements of one JSON array, or the lines of a file that starts with an object."""
    decoder = json_decoder()
    with path.open(encoding="utf-8-sig") as file:
        text = _read_chunk(path, file)
        while text.isspace():
            text = _read_chunk(path, file)
        text = text.lstrip()
        if not text:
            return
        if text.startswith("{"):
            yield from _jsonl_rows(path)
            return
        if not text.startswith("["):
            raise DataError(f"{path}: a .json file must contain an array of objects, or one object per line")
        text = _skip_to_value(path, file, text[1:])
        for number in itertools.count(1):
            if text.startswith("]"):
                while not (rest := text[1:].strip()) and (text := _read_chunk(path, file)):
                    text = f"]{text}"
                if rest:
                    raise DataError(
                        f"{path}: {short_repr(rest)} follows the array; write one array, or an object per line"
                    )
                return
            while True:
                try:
                    row, end = decoder.raw_decode(text)
                    break
                except json.JSONDecodeError as error:
                    cut = error.msg.startswith("Unterminated string") or error.pos > len(text) - _CUT_OFF
                    more = _read_chunk(path, file) if cut and len(text) < LARGEST_ROW else ""
                    if not more:
                        raise DataError(f"{path}:{number}: not valid JSON: {error.msg}") from error
                    text += more
                except RepeatedKeyError as error:
                    raise DataError(f"{path}:{number}: {error}; keep one") from error
                except RecursionError as error:
                    raise DataError(f"{path}:{number}: too many nested objects or arrays") from error
            yield number, row
            text = _skip_to_value(path, file, text[end:])
            if not text.startswith("]"):
                if not text.startswith(","):
                    raise DataError(f"{path}:{number}: not valid JSON: no comma after this row")
                text = _skip_to_value(path, file, text[1:])
                if text.startswith("]"):
                    raise DataError(f"{path}:{number}: not valid JSON: a comma after the last row")


def _skip_to_value(path: Path, file: TextIO, text: str) -> str:
    """Return `text` from its first character after spaces. Reads more of the file as necessary."""
    while not (rest := text.lstrip()):
        more = _read_chunk(path, file)
        if not more:
            raise DataError(f"{path}: the array is not closed; the file is probably incomplete")
        text += more
    return rest


def _read_chunk(path: Path, file: TextIO) -> str:
    try:
        return file.read(CHUNK)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8: {error.reason}; {_SAVE_AS_TEXT}") from error


def _csv_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the rows of a CSV file as dicts by header, each with the number of its first line."""
    csv.field_size_limit(LARGEST_ROW)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader, header, line = csv.reader(file, strict=True), list[str](), 1
        try:
            for fields in reader:
                first_line, line = line, reader.line_num + 1
                if not fields:
                    continue
                if not header:
                    header = fields
                    if len(header) == 1 and (mark := _SEPARATOR.search(header[0])):
                        raise DataError(
                            f"{path}:{first_line}: the fields are separated by {mark[0]!r}; write commas between them"
                        )
                    if len(set(header)) < len(header):
                        raise DataError(f"{path}:{first_line}: two columns have the same name")
                    continue
                if [field.lstrip("\ufeff") for field in fields] == header:
                    raise DataError(f"{path}:{first_line}: the header is repeated; remove this line")
                if len(fields) != len(header):
                    raise DataError(
                        f"{path}:{first_line}: {len(fields)} fields, but the header has {len(header)}; "
                        "put quotation marks around a field with commas or line breaks"
                    )
                yield first_line, dict(zip(header, fields, strict=True))
        except csv.Error as error:
            raise DataError(f"{path}:{line}: not valid CSV: {error}") from error
        except UnicodeDecodeError as error:
            raise DataError(f"{path}:{line}: not UTF-8 near this line: {error.reason}; {_SAVE_AS_TEXT}") from error
