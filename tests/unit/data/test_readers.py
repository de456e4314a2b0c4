"""Reading rows: all file types give the same rows in bounded memory, and errors name the place."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rstar2_train.data import readers
from rstar2_train.data.readers import DataError, json_value, read_rows, text_field

ROWS: list[dict[str, Any]] = [
    {"a": 'x, ]} \\ " [{', "n": 1},
    {"a": "ü" * 30, "n": 2},
    {"a": "", "n": 3},
]


def _write(folder: Path, kind: str) -> Path:
    path = folder / f"data.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    elif kind == "json":
        path.write_text(json.dumps(ROWS, indent=1), encoding="utf-8")
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    else:
        table = pa.Table.from_pylist(ROWS)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table, max_chunksize=2)
    return path


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet", "arrow"])
def test_read_rows_of_each_type_are_equal(tmp_path: Path, kind: str) -> None:
    """Each file type gives the same rows."""
    assert list(read_rows(_write(tmp_path, kind))) == list(enumerate(ROWS, start=1))


def test_read_rows_with_byte_order_mark_names_column(tmp_path: Path) -> None:
    """A JSON Lines file may start with a byte order mark. Errors name the column within the line."""
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\n{"a": 2\n')
    rows = read_rows(path)
    assert next(rows) == (1, {"a": 1})
    with pytest.raises(DataError, match=r":3: not valid JSON: .* at column 8; write one object per line$"):
        next(rows)


def test_read_rows_of_csv_gives_text_and_multiline_fields(tmp_path: Path) -> None:
    """All CSV fields are text, and a row may span lines."""
    path = tmp_path / "data.csv"
    path.write_text('\ufeffa,n\r\n"x, ""y""\nz",1\r\n\r\nü,\r\n', encoding="utf-8", newline="")
    assert list(read_rows(path)) == [(2, {"a": 'x, "y"\nz', "n": "1"}), (5, {"a": "ü", "n": ""})]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a,n\n1,2\n1,2,3\n", ":3: 3 fields, but the header has 2"),
        (b"a,a\n1,2\n", ":1: two columns have the same name"),
        (b'a,n\n1,"2\n', ":2: not valid CSV: unexpected end of data"),
        (b"a,n\n\xff,2\n", ": not UTF-8 near this line"),
        (b"a,n\n", ": the file has no rows"),
        (b"a,n\n1,2\n\xef\xbb\xbfa,n\n3,4\n", ":3: the header is repeated; remove this line"),
        ("a,n\n1,2\n".encode("utf-16"), ":1: not UTF-8 near this line: invalid start byte; save it as"),
    ],
)
def test_read_rows_of_invalid_csv_names_line(tmp_path: Path, content: bytes, message: str) -> None:
    """An invalid CSV file is an error with its line."""
    path = tmp_path / "data.csv"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        list(read_rows(path))
    assert message in str(caught.value)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_read_rows_with_columns_reads_only_those(tmp_path: Path, kind: str) -> None:
    """`columns` restricts a columnar file. If none of them exists, all columns are read."""
    read = [row for _, row in read_rows(_write(tmp_path, kind), columns=("n", "absent"))]
    assert read == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert [row for _, row in read_rows(_write(tmp_path, kind), columns=("absent",))] == ROWS


@pytest.mark.parametrize("chunk", [1, 2, 7, 64])
@pytest.mark.parametrize("layout", [{"indent": 1}, {"separators": (",", ":")}, {"ensure_ascii": False}])
def test_read_rows_of_json_ignores_chunk_borders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, layout: dict[str, Any]
) -> None:
    """The borders of the chunks do not affect the rows of a JSON array."""
    monkeypatch.setattr(readers, "CHUNK", chunk)
    path = tmp_path / "data.json"
    path.write_text("\ufeff \n" + json.dumps(ROWS, **layout) + "\n", encoding="utf-8")
    assert [row for _, row in read_rows(path)] == ROWS


def test_read_rows_of_json_with_object_per_line(tmp_path: Path) -> None:
    """A .json file that starts with an object has the rows of a .jsonl file."""
    path = tmp_path / "data.json"
    path.write_text("\ufeff" + "\n\n".join(map(json.dumps, ROWS)) + "\n", encoding="utf-8")
    assert list(read_rows(path)) == [(2 * index + 1, row) for index, row in enumerate(ROWS)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('"a"', "must contain an array of objects, or one object per line"),
        ('{"a": 1}\n{"a": }', ":2: not valid JSON"),
        ('{"a": 1}\n3', ":2: a row must be a JSON object, got 3"),
        ('{\n"a": 1\n}', ":1: not valid JSON"),
        ('[{"a": 1}, {"a": }]', ":2: not valid JSON"),
        ('[{"a": 1}, {"a": 2', ":2: not valid JSON"),
        ('[{"a": 1},', "the array is not closed"),
        ('[{"a": 1} {"a": 2}]', ":1: not valid JSON: no comma after this row"),
        ('[{"a": 1}, {"a": 2},]', ":2: not valid JSON: a comma after the last row"),
        ('[{"a": 1},, {"a": 2}]', ":2: not valid JSON"),
        ('[{"a": 1}, 3]', ":2: a row must be a JSON object, got 3"),
        ("[]", "the file has no rows"),
        ("", "the file has no rows"),
        (" \n" * 50_000, "the file has no rows"),
        ('[{"a": 1}] [{"a": 2}]', "follows the array; write one array, or an object per line"),
        ('[{"a": 1}]' + " " * 100_000 + "x", "'x' follows the array"),
        ('[{"a": 1}, {"a": 1, "a": 2}]', ":2: an object has the key 'a' twice; keep one"),
        ('{"a": 1}\n{"b": [{"a": 1, "a": 2}]}', ":2: an object has the key 'a' twice; keep one"),
    ],
)
def test_read_rows_of_invalid_json_names_row(tmp_path: Path, text: str, message: str) -> None:
    """An invalid JSON array is an error with file and row."""
    path = tmp_path / "data.json"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        list(read_rows(path))
    assert message in str(caught.value) and str(path) in str(caught.value)


def test_read_rows_of_too_long_row_stops_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row above the limit is an error before the rest of the file is read."""
    monkeypatch.setattr(readers, "CHUNK", 100)
    monkeypatch.setattr(readers, "LARGEST_ROW", 1000)
    path = tmp_path / "data.json"
    path.write_text('[{"a": "' + "x" * 100_000)
    with pytest.raises(DataError, match=":1: not valid JSON: Unterminated string"):
        list(read_rows(path))


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_read_rows_with_huge_number_or_nesting(tmp_path: Path, suffix: str) -> None:
    """A number of thousands of digits stays text. Deep nesting is an error."""
    path = tmp_path / f"data.{suffix}"
    brackets = "[]" if suffix == "json" else ("", "")
    path.write_text(f'{brackets[0]}{{"a": {"9" * 5000}}}{brackets[1]}')
    assert [row for _, row in read_rows(path)] == [{"a": "9" * 5000}]
    path.write_text(f'{brackets[0]}{{"a": {"[" * 100_000}')
    with pytest.raises(DataError, match=r":1: too many nested objects or arrays"):
        list(read_rows(path))


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
@pytest.mark.parametrize(
    ("number", "text"),
    [
        ("0.30000000000000000000000001", "0.30000000000000000000000001"),
        ("12345678901234567890.5", "12345678901234567890.5"),
        ("9007199254740993.0", "9007199254740993.0"),
        ("1e400", "1e400"),
        ("1e-400", "1e-400"),
        ("1e99999999999999999999", "1e99999999999999999999"),
        ("5.00000000000000000000", "5"),
        ("0.1000000000000000", "0.1"),
        ("1.5e3", "1500"),
        ("-0.25", "-0.25"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_text_field_of_json_number_keeps_its_digits(tmp_path: Path, suffix: str, number: str, text: str) -> None:
    """A known answer is never rounded; a number that a double keeps has its usual form."""
    path = tmp_path / f"data.{suffix}"
    path.write_text(f'[{{"a": {number}}}]' if suffix == "json" else f'{{"a": {number}}}')
    ((_, row),) = read_rows(path)
    assert text_field(row, "a", "f:1") == text


def test_json_value_of_long_numbers_is_number_or_refused(tmp_path: Path) -> None:
    """A float in data is the next double, as for each reader of JSON; an integer that Python cannot read is refused."""
    path = tmp_path / "data.jsonl"
    path.write_text('{"a": {"x": 0.30000000000000000000000001}}\n{"a": {"x": ' + "9" * 5000 + "}}")
    (_, first), (_, second) = read_rows(path)
    assert json.dumps(json_value(first["a"], "f:1: a")) == '{"x": 0.3}'
    with pytest.raises(DataError, match=r"f:1: a\.x is an integer of 5,000 digits, .* write it as a text"):
        json_value(second["a"], "f:1: a")


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_read_rows_of_csv_names_another_separator(tmp_path: Path, mark: str) -> None:
    """A file with semicolons or tabs is refused by its header."""
    path = tmp_path / "data.csv"
    path.write_text(f"problem{mark}answer\nx{mark}1\n")
    with pytest.raises(DataError, match=r"data\.csv:1: the fields are separated by .*; write commas between them"):
        list(read_rows(path))


def test_text_field_of_number_returns_text() -> None:
    """A number in a text field becomes text, without `.0`."""
    row = {"whole": 5.0, "half": 0.5, "large": 1e300, "int": -3}
    assert [text_field(row, name, "f:1") for name in row] == ["5", "0.5", "1e+300", "-3"]


def test_read_rows_of_invalid_arrow_names_file(tmp_path: Path) -> None:
    """An invalid Arrow file is an error with its name."""
    (tmp_path / "data.arrow").write_bytes(b"ARROW1 or not")
    with pytest.raises(DataError, match=r"data\.arrow: not a readable Arrow file"):
        list(read_rows(tmp_path / "data.arrow"))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_text_field_of_nan_or_infinity_raises(value: float) -> None:
    """NaN and infinity are not text."""
    with pytest.raises(DataError, match=r"f:1: answer must be a non-empty text, got (nan|inf)"):
        text_field({"answer": value}, "answer", "f:1")
