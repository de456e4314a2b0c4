"""Which files `--benchmark` means, and how their problems are named."""

import json
from pathlib import Path

import pytest

from rstar2_train.data.problems import DataError
from rstar2_train.evaluation.benchmarks import BenchmarkFile, parse_benchmarks, read_benchmarks


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_files_names_and_bare_names(tmp_path: Path) -> None:
    aime = write(tmp_path / "aime24.jsonl", {})
    math = write(tmp_path / "MATH test.json", {})
    texts = [f"{aime},math500={math}", "hmmt"]
    hmmt = write(tmp_path / "hmmt.parquet", {})
    assert parse_benchmarks(texts, data=tmp_path) == [
        BenchmarkFile("aime24", aime), BenchmarkFile("math500", math), BenchmarkFile("hmmt", hmmt)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("aime99", r"'aime99': no such file, and none of that name \(\.jsonl, .*\) in .*--data"),
        ("x=missing.jsonl", r"no such file \(looked at .*missing\.jsonl\)"),
        ("missing.jsonl", r"no such file \(looked at .*missing\.jsonl\)"),
        ("Bad Name={a}", "'Bad Name' cannot be a benchmark's name"),
        ("{b}", r"'B_1' cannot be a benchmark's name .* give NAME=FILE"),
        ("{a},x={a},x={a}", "the name 'x' is already given"),
        ("", "no such file"),
    ],
)
def test_what_cannot_be_meant_is_said(tmp_path: Path, text: str, says: str) -> None:
    a, b = write(tmp_path / "a.jsonl", {}), write(tmp_path / "B_1.jsonl", {})
    with pytest.raises(DataError, match=says):
        parse_benchmarks([text.format(a=a, b=b)], data=tmp_path)


def test_problems_of_two_benchmarks_have_ids_of_their_own(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", {"id": 7, "problem": "1+1", "answer": 2, "slice": "L1"})
    found = list(read_benchmarks([BenchmarkFile("one", file), BenchmarkFile("two", file)]))
    assert [(name, problem.id, problem.answer, problem.slice) for name, problem in found] == [
        ("one", "one/7", "2", "L1"), ("two", "two/7", "2", "L1")
    ]  # fmt: skip


def test_a_bad_row_is_named_with_its_line(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", {"problem": "1+1", "answer": "2"}, {"problem": "1+2"})
    with pytest.raises(DataError, match=r"a\.jsonl:2: .*answer"):
        list(read_benchmarks([BenchmarkFile("a", file)]))
