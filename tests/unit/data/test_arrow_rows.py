"""Rows of Parquet and Arrow files: each type is read, or refused where it is used, with row and column."""

from __future__ import annotations

import datetime
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rstar2_train.data.problems import read_problems
from rstar2_train.data.readers import DataError, read_rows

NOW = datetime.datetime(2026, 11, 26, 12, 0, 0)
UNREADABLE = {
    "timestamp": (pa.timestamp("us"), NOW),
    "timestamp of nanoseconds": (pa.timestamp("ns"), 1),
    "timestamp of an unknown zone": (pa.timestamp("s", "Mars/Olympus"), 1),
    "timestamp beyond the calendar": (pa.timestamp("ms"), 2**60),
    "date": (pa.date32(), NOW.date()),
    "time": (pa.time64("us"), NOW.time()),
    "duration": (pa.duration("s"), datetime.timedelta(1)),
    "bytes": (pa.binary(), b"\xff"),
    "map with numbers as keys": (pa.map_(pa.int32(), pa.string()), [(1, "a")]),
    "map with a repeated key": (pa.map_(pa.string(), pa.string()), [("a", "b"), ("a", "c")]),
}
READABLE: dict[str, tuple[pa.DataType, Any, Any]] = {
    "large text": (pa.large_string(), "7", "7"),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), "7", "7"),
    "decimal": (pa.decimal128(5, 2), Decimal("7.00"), Decimal("7.00")),
    "half": (pa.float16(), 0.1, 0.1),
    "single": (pa.float32(), 0.1, 0.1),
    "not a number": (pa.float32(), math.inf, math.inf),
    "decimal of 60 digits": (pa.decimal256(76, 1), Decimal("1" * 60), Decimal("1" * 60)),
    "JSON": (pa.json_(), '{"a": [1, null], "b": 1.50}', {"a": [1, None], "b": 1.5}),
    "boolean in a byte": (pa.bool8(), 1, True),
    "list": (pa.list_(pa.int8()), [1, None], [1, None]),
    "large list of lists": (pa.large_list(pa.list_(pa.string())), [["a"], [], None], [["a"], [], None]),
    "map": (pa.map_(pa.string(), pa.int8()), [("a", 1), ("b", None)], {"a": 1, "b": None}),
    "struct": (pa.struct([("a", pa.int8()), ("b", pa.string())]), {"a": 1, "b": None}, {"a": 1}),
    "struct of a map": (
        pa.struct([("m", pa.map_(pa.string(), pa.struct([("x", pa.int8()), ("y", pa.int8())])))]),
        {"m": [("k", {"x": 1, "y": None})]},
        {"m": {"k": {"x": 1}}},
    ),
}


def _write(folder: Path, name: str, kind: pa.DataType, *values: Any) -> Path:
    """Write problems with one further column; the first and the last row have no value in it."""
    rows = [None, *values, None]
    columns: dict[str, pa.Array] = {name: pa.array(rows, type=kind)}
    for text in {"problem", "answer"} - {name}:
        columns[text] = pa.array(["1"] * len(rows))
    path = folder / "data.parquet"
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize("name", READABLE)
def test_read_rows_reads_each_type(tmp_path: Path, name: str) -> None:
    """Values have the types of JSON, and absent keys of a struct are absent; also in an Arrow stream with slices."""
    kind, value, expected = READABLE[name]
    table = pa.table({"x": pa.array([None, value, value, None], type=kind)})
    pq.write_table(table, tmp_path / "data.parquet")
    assert [row["x"] for _, row in read_rows(tmp_path / "data.parquet")] == [None, expected, expected, None]
    path = tmp_path / "data.arrow"
    with pa.ipc.new_stream(str(path), table.schema) as stream:
        stream.write_table(table.slice(1), max_chunksize=1)
    assert [row["x"] for _, row in read_rows(path)] == [expected, expected, None]
    with pa.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table, max_chunksize=3)
    assert [row["x"] for _, row in read_rows(path)] == [None, expected, expected, None]


@pytest.mark.parametrize("name", ["timestamp", "bytes"])
@pytest.mark.parametrize("column", ["data", "problem", "answer", "id", "slice", "reward", "hard", "tools", "files"])
def test_read_problems_refuses_types_with_row_and_column(tmp_path: Path, column: str, name: str) -> None:
    """A timestamp, date, duration or bytes is refused where it is used; a column that no one reads is no error."""
    kind, value = UNREADABLE[name]
    path = _write(tmp_path, column, kind, value)
    with pytest.raises(DataError, match=rf"data\.parquet:{1 if column in ('problem', 'answer') else 2}: {column} "):
        list(read_problems(path))
    assert len(list(read_problems(_write(tmp_path, "created", kind, value)))) == 3


@pytest.mark.parametrize("name", UNREADABLE)
def test_read_problems_names_the_place_in_data(tmp_path: Path, name: str) -> None:
    """The error names the key and the index inside the field, and the type."""
    kind, value = UNREADABLE[name]
    nested = pa.struct([("x", pa.list_(kind))])
    with pytest.raises(DataError, match=r"data\.parquet:2: data\.x\[1\] is a value of type .* write it as a text"):
        list(read_problems(_write(tmp_path, "data", nested, {"x": [None, value]})))


def test_read_problems_has_only_the_keys_of_its_row(tmp_path: Path) -> None:
    """Arrow gives each row the keys of all rows; a checker and a declared function see only their own."""
    add = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    sub = {
        "name": "sub",
        "description": "Subtracts.",
        "parameters": {"type": "object", "properties": {"b": {"type": "integer"}}},
    }
    rows = [
        {"problem": "x", "answer": "1", "data": {"a": 1}, "functions": [add]},
        {"problem": "y", "answer": "2", "data": {"b": [{"c": 1}, {"d": 2}]}, "functions": [sub]},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data.parquet")
    first, second = read_problems(tmp_path / "data.parquet")
    assert [json.loads(each.data) for each in (first, second)] == [row["data"] for row in rows]
    assert [json.loads(each.functions) for each in (first, second)] == [row["functions"] for row in rows]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.decimal128(5, 2), Decimal("7.00"), "7"),
        (pa.decimal128(5, 2), Decimal("0.50"), "0.50"),
        (pa.float64(), 7.0, "7"),
        (pa.float32(), 0.1, "0.1"),
        (pa.float16(), 0.1, "0.1"),
        (pa.decimal128(38, 2), Decimal("1" * 30), "1" * 30),
        (pa.decimal256(76, 1), Decimal("1" * 60 + ".5"), "1" * 60 + ".5"),
    ],
)
def test_read_problems_reads_numbers_as_answers(tmp_path: Path, kind: pa.DataType, value: Any, expected: str) -> None:
    """A decimal keeps its digits; a whole number has none after the point."""
    pq.write_table(pa.table({"problem": ["x"], "answer": pa.array([value], type=kind)}), tmp_path / "data.parquet")
    (problem,) = read_problems(tmp_path / "data.parquet")
    assert problem.answer == expected


def test_read_rows_refuses_types_with_another_meaning(tmp_path: Path) -> None:
    """A tensor has a shape that its stored list lacks, JSON may be invalid, and a repeated key is one too many."""
    tensor = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int8(), [2, 2]), pa.array([[1, 2, 3, 4]], pa.list_(pa.int8(), 4))
    )
    texts = [pa.array([text], type=pa.json_()) for text in ("{", '{"a": 1, "a": 2}')]
    for values in (tensor, *texts):
        table = pa.table({"problem": ["x"], "answer": ["1"], "data": values})
        with pa.ipc.new_stream(str(tmp_path / "data.arrow"), table.schema) as stream:
            stream.write_table(table)
        with pytest.raises(DataError, match=r"data\.arrow:1: data is a value of type "):
            list(read_problems(tmp_path / "data.arrow"))


def test_read_rows_null_of_a_fixed_size_list_is_exact_or_refused(tmp_path: Path) -> None:
    """Arrow has the row without the list. Pyarrow does not read it from Parquet: the error names column and rows."""
    pairs = pa.array([[1, 2]] * 1024 + [None, [3, 4]], type=pa.list_(pa.int8(), 2))
    for values in (pairs, pa.StructArray.from_arrays([pairs], ["inner"])):
        table = pa.table({"answer": ["1"] * len(values), "pair": values})
        with pa.ipc.new_stream(str(tmp_path / "data.arrow"), table.schema) as stream:
            stream.write_table(table)
        *_, last, final = (row["pair"] for _, row in read_rows(tmp_path / "data.arrow"))
        assert (last, final) in ((None, [3, 4]), ({}, {"inner": [3, 4]}))
        pq.write_table(table, tmp_path / "data.parquet")
        with pytest.raises(DataError, match=r"data\.parquet: pair has null .* after row 1024, .* list of any size"):
            list(read_rows(tmp_path / "data.parquet"))
        assert len(list(read_rows(tmp_path / "data.parquet", columns=["answer"]))) == len(values)


def test_read_rows_gaps_of_pandas_are_no_values(tmp_path: Path) -> None:
    """NaN in an optional column is a gap."""
    columns = {"problem": ["x"], "answer": ["1"]} | {name: [float("nan")] for name in ("id", "slice", "hard", "reward")}
    pq.write_table(pa.table(columns), tmp_path / "data.parquet")
    (problem,) = read_problems(tmp_path / "data.parquet")
    assert (problem.id, problem.slice, problem.hard, problem.reward) == ("data-1", "", False, "")


def test_read_rows_refuses_text_that_is_not_utf8(tmp_path: Path) -> None:
    """Bytes in a column of texts are refused with their row; the other rows are read."""
    texts = pa.array([b"ok", b"\xff"]).view(pa.string())
    pq.write_table(pa.table({"problem": texts, "answer": ["1", "1"]}), tmp_path / "data.parquet")
    with pytest.raises(DataError, match=r"data\.parquet:2: problem must be .* a value of type text that is not UTF-8"):
        list(read_problems(tmp_path / "data.parquet"))


def test_read_rows_damaged_and_ambiguous_files_are_errors(tmp_path: Path) -> None:
    """A file that is cut or damaged, or has two columns of one name, is an error with its name."""
    pq.write_table(pa.table({"problem": ["x" * 100] * 5000, "answer": ["1"] * 5000}), tmp_path / "data.parquet")
    content = bytearray((tmp_path / "data.parquet").read_bytes())
    content[20:200] = bytes(180)
    (tmp_path / "damaged.parquet").write_bytes(content)
    (tmp_path / "cut.parquet").write_bytes(content[:-8])
    twice = pa.Table.from_arrays([pa.array(["x"]), pa.array(["y"])], names=["problem", "problem"])
    pq.write_table(twice, tmp_path / "twice.parquet")
    for name in ("damaged", "cut", "twice"):
        with pytest.raises(DataError, match=rf"{name}\.parquet: (not a readable Parquet file|two columns have)"):
            list(read_rows(tmp_path / f"{name}.parquet"))
