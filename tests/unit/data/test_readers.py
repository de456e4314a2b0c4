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
from rstar2_train.data.readers import DataError, read_rows, text_field

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
    with pytest.raises(DataError, match=r":3: not valid JSON: .* at column 8$"):
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
        ('[{"a": 1}, 3]', ":2: a row must be a JSON object, got 3"),
        ("[]", "the file has no rows"),
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
