"""The files of `--benchmark`, and the ids of their problems."""

import json
from pathlib import Path

import pytest

from rstar2_train.data.problems import DataError
from rstar2_train.evaluation.benchmarks import BenchmarkFile, parse_benchmarks, read_benchmarks


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_parse_benchmarks_of_file_name_and_pair(tmp_path: Path) -> None:
    """A file, NAME=FILE, and a name that selects a file of the data folder."""
    aime = write(tmp_path / "aime24.jsonl", {})
    math = write(tmp_path / "MATH test.json", {})
    texts = [f"{aime},math500={math}", "hmmt"]
    hmmt = write(tmp_path / "hmmt.parquet", {})
    assert parse_benchmarks(texts, data=tmp_path) == [
        BenchmarkFile("aime24", aime), BenchmarkFile("math500", math), BenchmarkFile("hmmt", hmmt)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("aime99", r"'aime99': no such file, and no file of that name \(\.jsonl, .*\) in .*--data"),
        ("x=missing.jsonl", r"no such file: /.*missing\.jsonl"),
        ("missing.jsonl", r"no such file: /.*missing\.jsonl"),
        ("Bad Name={a}", "invalid benchmark name 'Bad Name'"),
        ("{b}", r"invalid benchmark name 'B_1' .* set a name with NAME=FILE"),
        ("{a},x={a},x={a}", "duplicate benchmark name 'x'"),
        ("", "no such file"),
        ("~no-user/a.jsonl", "no such user on this machine"),
        ("x=~no-user/a.jsonl", "no such user on this machine"),
    ],
)
def test_parse_benchmarks_of_invalid_argument_raises(tmp_path: Path, text: str, message: str) -> None:
    """A missing file, an invalid name or a duplicate name is an error with advice."""
    a, b = write(tmp_path / "a.jsonl", {}), write(tmp_path / "B_1.jsonl", {})
    with pytest.raises(DataError, match=message):
        parse_benchmarks([text.format(a=a, b=b)], data=tmp_path)


def test_read_benchmarks_makes_ids_unique(tmp_path: Path) -> None:
    """The id of a problem starts with its benchmark."""
    file = write(tmp_path / "a.jsonl", {"id": 7, "problem": "1+1", "answer": 2, "slice": "L1"})
    problems = list(read_benchmarks([BenchmarkFile("one", file), BenchmarkFile("two", file)]))
    assert [(name, problem.id, problem.answer, problem.slice) for name, problem in problems] == [
        ("one", "one/7", "2", "L1"), ("two", "two/7", "2", "L1")
    ]  # fmt: skip


def test_read_benchmarks_of_invalid_row_names_line(tmp_path: Path) -> None:
    """The error of an invalid row names its line."""
    file = write(tmp_path / "a.jsonl", {"problem": "1+1", "answer": "2"}, {"problem": "1+2"})
    with pytest.raises(DataError, match=r"a\.jsonl:2: .*answer"):
        list(read_benchmarks([BenchmarkFile("a", file)]))
