"""Reading rows: every kind of file gives the same ones, a piece at a time, and says where it is broken."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rstar2_train.data import readers as rows
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
def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path, kind: str) -> None:
    assert list(read_rows(_write(tmp_path, kind))) == list(enumerate(ROWS, start=1))


def test_json_lines_may_begin_with_a_byte_order_mark_and_errors_count_columns_of_their_own_line(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\n{"a": 2\n')
    rows = read_rows(path)
    assert next(rows) == (1, {"a": 1})
    with pytest.raises(DataError, match=r":3: not valid JSON: .* at column 8$"):
        next(rows)


def test_csv_has_texts_alone_and_rows_of_several_lines(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text('\ufeffa,n\r\n"x, ""y""\nz",1\r\n\r\nü,\r\n', encoding="utf-8", newline="")
    assert list(read_rows(path)) == [(2, {"a": 'x, "y"\nz', "n": "1"}), (5, {"a": "ü", "n": ""})]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a,n\n1,2\n1,2,3\n", ":3: 3 fields; the header has 2"),
        (b"a,a\n1,2\n", ":1: two columns have the same name"),
        (b'a,n\n1,"2\n', ":2: not valid CSV: unexpected end of data"),
        (b"a,n\n\xff,2\n", ": not UTF-8 near here"),
        (b"a,n\n", ": the file has no rows"),
    ],
)
def test_csv_that_is_broken_is_an_error_with_its_place(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        list(read_rows(path))
    assert message in str(caught.value)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_of_a_file_of_columns_only_the_wanted_ones_are_read(tmp_path: Path, kind: str) -> None:
    read = [row for _, row in read_rows(_write(tmp_path, kind), columns=("n", "absent"))]
    assert read == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert [row for _, row in read_rows(_write(tmp_path, kind), columns=("absent",))] == ROWS


@pytest.mark.parametrize("chunk", [1, 2, 7, 64])
@pytest.mark.parametrize("layout", [{"indent": 1}, {"separators": (",", ":")}, {"ensure_ascii": False}])
def test_an_array_may_be_cut_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, layout: dict[str, Any]
) -> None:
    monkeypatch.setattr(rows, "CHUNK", chunk)
    path = tmp_path / "data.json"
    path.write_text("\ufeff \n" + json.dumps(ROWS, **layout) + "\n", encoding="utf-8")
    assert [row for _, row in read_rows(path)] == ROWS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1}', "must hold an array of objects"),
        ('[{"a": 1}, {"a": }]', ":2: not valid JSON"),
        ('[{"a": 1}, {"a": 2', ":2: not valid JSON"),
        ('[{"a": 1},', "the array is not closed"),
        ('[{"a": 1}, 3]', ":2: a row must be a JSON object, got 3"),
        ("[]", "the file has no rows"),
    ],
)
def test_a_broken_array_says_where(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "data.json"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        list(read_rows(path))
    assert message in str(caught.value) and str(path) in str(caught.value)


def test_an_error_in_a_large_array_is_found_without_reading_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "CHUNK", 100)
    monkeypatch.setattr(rows, "LARGEST_ROW", 1000)
    path = tmp_path / "data.json"
    path.write_text('[{"a": "' + "x" * 100_000)
    with pytest.raises(DataError, match=":1: not valid JSON: Unterminated string"):
        list(read_rows(path))


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_an_enormous_number_stays_text_and_deep_nesting_is_an_error(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"data.{suffix}"
    brackets = "[]" if suffix == "json" else ("", "")
    path.write_text(f'{brackets[0]}{{"a": {"9" * 5000}}}{brackets[1]}')
    assert [row for _, row in read_rows(path)] == [{"a": "9" * 5000}]
    path.write_text(f'{brackets[0]}{{"a": {"[" * 100_000}')
    with pytest.raises(DataError, match=r":1: nested too deep"):
        list(read_rows(path))


def test_a_number_is_text_where_text_is_wanted() -> None:
    row = {"whole": 5.0, "half": 0.5, "large": 1e300, "int": -3}
    assert [text_field(row, name, "f:1") for name in row] == ["5", "0.5", "1e+300", "-3"]


def test_a_broken_arrow_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "data.arrow").write_bytes(b"ARROW1 or not")
    with pytest.raises(DataError, match=r"data\.arrow: not a readable Arrow file"):
        list(read_rows(tmp_path / "data.arrow"))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_is_no_text_either(value: float) -> None:
    with pytest.raises(DataError, match=r"f:1: answer must be a non-empty text, got (nan|inf)"):
        text_field({"answer": value}, "answer", "f:1")
