"""The readers of problems and demonstrations: accepted rows, and the exact error of each invalid row."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rstar2_train.data.problems import DataError, Problem, read_problems

PROBLEMS: list[dict[str, Any]] = [
    {"id": "a", "problem": "1+1?", "answer": "2", "slice": "easy"},
    {"id": "b", "problem": "2*3?", "answer": "6", "hard": True},
]
ADD = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}


def _jsonl(folder: Path, *rows: object) -> Path:
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_read_problems_of_jsonl_and_parquet_are_equal(tmp_path: Path) -> None:
    """A JSON Lines and a Parquet file with the same rows give the same problems."""
    expected = [Problem("a", "1+1?", "2", slice="easy"), Problem("b", "2*3?", "6", hard=True)]
    assert list(read_problems(_jsonl(tmp_path, *PROBLEMS))) == expected
    pq.write_table(pa.Table.from_pylist(PROBLEMS, schema=_schema()), tmp_path / "data.parquet")
    assert list(read_problems(tmp_path / "data.parquet")) == expected


def _schema() -> pa.Schema:
    texts = [(name, pa.string()) for name in ("id", "problem", "answer", "slice")]
    return pa.schema([*texts, ("hard", pa.bool_())])


@pytest.mark.parametrize("name", [" easy", "easy\n", "\u00a0easy "])
def test_read_problems_slice_has_no_space_at_its_ends(tmp_path: Path, name: str) -> None:
    """A field of a CSV file behind `, ` starts with a blank: it is no slice of its own."""
    (tmp_path / "data.csv").write_text(f'problem,answer,slice\nx,1,"{name}"\ny,2, \n')
    assert [row.slice for row in read_problems(tmp_path / "data.csv")] == ["easy", ""]


def test_read_problems_with_empty_id_uses_file_and_line(tmp_path: Path) -> None:
    """A gap in the column of ids of a CSV file is an empty text."""
    (tmp_path / "data.csv").write_text("id,problem,answer,slice\n,x,1,\n,y,2,\n")
    assert [(each.id, each.slice) for each in read_problems(tmp_path / "data.csv")] == [("data-2", ""), ("data-3", "")]


def test_read_problems_without_id_uses_file_and_line(tmp_path: Path) -> None:
    """A row without an id gets one from file and line. An answer may be a number."""
    path = tmp_path / "set.jsonl"
    path.write_text('{"problem": "x", "answer": 7}\n\n{"problem": "y", "answer": "8"}\n', encoding="utf-8")
    assert [(problem.id, problem.answer) for problem in read_problems(path)] == [("set-1", "7"), ("set-3", "8")]


def test_read_problems_with_instructions_round_trips(tmp_path: Path) -> None:
    """Instructions are stored in the answer, and are read back from it."""
    row = {"id": "a", "problem": "Continue.", "instructions": [{"id": "punctuation:no_comma", "num_words": None}]}
    (problem,) = read_problems(_jsonl(tmp_path, row))
    assert problem.raw_prompt and problem.answer == '{"instructions": [{"id": "punctuation:no_comma"}]}'
    written = _jsonl(tmp_path, problem.to_row())  # in the format of a Filter stage
    assert list(read_problems(written)) == [problem]
    assert not Problem("b", "1+1?", "2").raw_prompt


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"problem": "x", "instructions": []}, "instructions must be a list"),
        ({"problem": "x", "answer": '{"instructions": [{"id": "x"}]}'}, "unknown instruction 'x'"),
        ({"problem": "x", "answer": '{"instructions": ['}, "Expecting value"),
        ({"problem": "x", "answer": "1", "instructions": [{"id": "x"}]}, "an answer or instructions, not both"),
        ({"answer": "2"}, "problem must be a non-empty text, got None"),
        ({"problem": "half \ud800", "answer": "1"}, "problem contains '\\ud800', half of a surrogate pair"),
        ({"problem": "a" * (2**20 + 1), "answer": "1"}, "problem has 1,048,577 characters; the limit is 1,048,576"),
        ({"problem": "\frac{1}{2}", "answer": "1"}, "problem contains '\\x0c', a control character, in"),
        ({"problem": "a\0b", "answer": "1"}, "problem contains '\\x00', a control character"),
        (
            {"problem": "<image>", "answer": "5", "images": ["a.png"]},
            "images is no part of a problem, and would be lost",
        ),
        ({"problem": "x", "answer": "5", "system": "In radians."}, "would be lost: set spec.model.systemPrompt"),
        ({"problem": "x", "answer": "5", "choices": ["1", "5"]}, "would be lost: write them in the problem"),
        ({"problem": "x", "answer": "5", "rewards": "r"}, "rewards is no part of a problem"),
        ({"problem": "x", "answer": "5", "context": "c"}, "context is no part of a problem"),
        ({"problem": "x", "answer": "5", "image_1": "a.png"}, "image_1 is no part of a problem, and would be lost"),
        ({"problem": "x", "answer": "5", "test_cases": [{}]}, "would be lost: write them in data, as {tests: [{input"),
        ({"problem": "x", "answer": "5", "starter_code": "def"}, "would be lost: write it in the problem"),
        ({"problem": "x", "answer": "5", "unit": "m"}, "would be lost: write one known answer, with its unit"),
        ({"problem": "x", "answer": "5", "weight": 0.5}, "would be lost: rows have no weight"),
        ({"problem": "x", "answer": "5", "Images": ["a"]}, "Images is no part of a problem, and would be lost: models"),
        ({"problem": "x", "answer": "5", "systemPrompt": "s"}, "would be lost: set spec.model.systemPrompt"),
        ({"problem": "x", "answer": "5", "Question": "y"}, "Question would be lost, because the row has a problem too"),
        ({"problem": "x", "answer": "5", "Answer": "6"}, "'Answer' is not read: remove one of them"),
        ({"problem": "x", "answer": "5", "Reward": "r"}, "'Reward' is not read: rename it to 'reward', or remove it"),
        ({"problem": "x", "answer": "5", " tools": ["a"]}, "' tools' is not read: rename it to"),
        ({"data": [{"problem": "x"}]}, "problem must be a non-empty text, got None; the fields of the row are 'data'"),
        ({"problem": "x", "answer": ""}, "answer must be a non-empty text, got ''"),
        ({"problem": "x", "answer": "1", "id": "\ud800"}, "id contains '\\ud800', half of a surrogate pair"),
        ({"problem": "x", "answer": "\ud800"}, "answer contains '\\ud800', half of a surrogate pair"),
        ({"problem": "x", "answer": "1", "slice": "\ud800"}, "slice contains '\\ud800'"),
        ({"problem": "x", "answer": "1", "data": {"a": "\ud800"}}, "data contains '\\ud800'"),
        ({"problem": " \n", "answer": "1"}, "problem must be a non-empty text, got ' \\n'"),
        ({"problem": "x", "answer": "\t "}, "answer must be a non-empty text"),
        ({"problem": "x", "answer": True}, "answer must be a non-empty text, got True"),
        ({"problem": "x", "answer": "1", "hard": "yes"}, "hard must be true or false, got 'yes'"),
        ([1], "a row must be a JSON object"),
    ],
)
def test_read_problems_of_invalid_row_names_place(tmp_path: Path, row: object, message: str) -> None:
    """The error of an invalid row names file, line and field."""
    path = _jsonl(tmp_path, PROBLEMS[0], row)
    with pytest.raises(DataError) as caught:
        list(read_problems(path))
    assert str(caught.value).startswith(f"{path}:2: ") and message in str(caught.value)


@pytest.mark.parametrize(
    "answer",
    [
        *("\frac{1}{2}", "\boxed{1}", "\times 2", "\text{C}", "\rho", "\neq 3", "1\x00", "\x85", "\nu", "x \ne 0"),
        *("\tanh x", "x \rightarrow 2", "\therefore 5", "3\notin A", "\tbinom{1}{2}", "\rbrace"),
    ],
)
def test_read_problems_control_character_in_answer_raises(tmp_path: Path, answer: str) -> None:
    """An answer whose JSON has one backslash before a LaTeX command would never be equal to a rollout's."""
    with pytest.raises(DataError, match=r":1: answer contains '\\.*', a control character, .* backslash .* twice"):
        list(read_problems(_jsonl(tmp_path, {"problem": "x", "answer": answer})))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("5+5=10\n#### 10", "10"),
        ("5+5=<<5+5=10>>10\n\n#### 1,234\n", "1,234"),
        ("#### 7", "7"),
        ("\tx = 1\n\treturn x\r\n", "\tx = 1\n\treturn x\r\n"),
        ("5+5=10\n####10", "10"),
        ("5+5=10 #### 10", "10"),
        ("no value ####", "no value ####"),
        ("x = 1\n##### end #####", "x = 1\n##### end #####"),
        ("x = 1  #### one ####", "x = 1  #### one ####"),
    ],
)
def test_read_problems_reads_answers_of_gsm8k(tmp_path: Path, answer: str, expected: str) -> None:
    """The value after the solution is the answer. Other text, such as a program, is unchanged."""
    (problem,) = read_problems(_jsonl(tmp_path, {"problem": "x", "answer": answer}))
    assert problem.answer == expected


@pytest.mark.parametrize("answer", ["5+5=10\n#### 10\nDone", "#### 10 #### 11", "5+5=10\n####", "#### -3\nx"])
def test_read_problems_torn_answer_of_gsm8k_raises(tmp_path: Path, answer: str) -> None:
    """A solution whose value is not after its last mark has no known answer: no rollout would be equal to the whole."""
    with pytest.raises(DataError, match=r":1: answer has '####.*: after a solution, write `#### ` and the value once"):
        list(read_problems(_jsonl(tmp_path, {"problem": "x", "answer": answer})))


def test_read_problems_of_csv_reads_flags(tmp_path: Path) -> None:
    """All fields of a CSV file are texts."""
    path = tmp_path / "data.csv"
    path.write_text("problem,answer,hard\na,1,true\nb,2,False\nc,3,\nd,4,TRUE\n")
    assert [problem.hard for problem in read_problems(path)] == [True, False, False, True]


def test_read_problems_reads_gaps_of_pandas_and_csv(tmp_path: Path) -> None:
    """NaN in each optional column is a missing value, and so is an empty field of a CSV file."""
    fields = ("id", "slice", "hard", "tools", "reward", "files", "data", "functions")
    gaps = dict.fromkeys(fields, float("nan"))
    expected = Problem("data-1", "p", "1")
    assert list(read_problems(_jsonl(tmp_path, {"problem": "p", "answer": "1"} | gaps))) == [expected]
    (tmp_path / "data.csv").write_text("problem,answer,tools,files,functions,hard\np,1,,,,\n")
    assert list(read_problems(tmp_path / "data.csv")) == [Problem("data-2", "p", "1")]


def test_read_problems_of_csv_has_the_limit_of_jsonl(tmp_path: Path) -> None:
    """A long field is read from CSV as from JSON Lines; the limit of both is the same."""
    for length, message in ((140_000, ""), (2**20, ""), (2**20 + 1, "problem has 1,048,577 characters")):
        path = tmp_path / "data.csv"
        path.write_text(f'problem,answer\n"{"a" * length}",1\n')
        for read in (path, _jsonl(tmp_path, {"problem": "a" * length, "answer": "1"})):
            if message:
                with pytest.raises(DataError, match=rf":\d: {message}"):
                    list(read_problems(read))
            else:
                assert [len(problem.problem) for problem in read_problems(read)] == [length]


def test_read_problems_with_duplicate_id_raises(tmp_path: Path) -> None:
    """A duplicate id is an error."""
    with pytest.raises(DataError, match=r":2: duplicate id 'a', first used in line 1"):
        list(read_problems(_jsonl(tmp_path, PROBLEMS[0], PROBLEMS[0])))


def test_read_problems_of_unreadable_file_raises(tmp_path: Path) -> None:
    """A missing, empty, invalid or unsupported file is an error with its name."""
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "broken.jsonl").write_text('{"problem": "x"')
    (tmp_path / "latin.jsonl").write_bytes(b'{"problem": "\xe9"}\n')
    (tmp_path / "broken.parquet").write_bytes(b"PAR0")
    (tmp_path / "data.tsv").write_text("problem\tanswer\n")
    for kind in ("jsonl", "json", "csv"):
        (tmp_path / f"memory.{kind}").symlink_to("/proc/self/mem")  # each read of it is an error
    (tmp_path / "link.jsonl").symlink_to("nothing")
    os.mkfifo(tmp_path / "pipe.jsonl")
    for name, message in {
        "none.jsonl": "no such file",
        "link.jsonl": "is a link to nothing, which does not exist",
        "pipe.jsonl": "is a device or a pipe; write its content into a file",
        "empty.jsonl": "the file has no rows",
        "broken.jsonl": ":1: not valid JSON: ",
        "latin.jsonl": ":1: not UTF-8",
        "broken.parquet": "not a readable Parquet file",
        **{f"memory.{kind}": "cannot be read: " for kind in ("jsonl", "json", "csv")},
        "data.tsv": "unsupported file type '.tsv'; supported: .jsonl, .json, .csv, .parquet and .arrow",
    }.items():
        with pytest.raises(DataError) as caught:
            list(read_problems(tmp_path / name))
        assert name in str(caught.value) and message in str(caught.value)


def test_read_problems_of_task_fields_round_trips(tmp_path: Path) -> None:
    """Tools, reward, files and data of a row are read; a Filter stage writes them for another folder."""
    (tmp_path / "shop.db").write_bytes(b"x")
    row = {"id": "a", "problem": "?", "answer": "1", "tools": [], "reward": "sql", "data": {"hidden": [1]}}
    row["functions"] = [ADD]
    (problem,) = read_problems(_jsonl(tmp_path, row | {"files": {"shop.sqlite": "shop.db"}}))
    assert (problem.tools, problem.reward, problem.data) == ((), "sql", '{"hidden": [1]}')
    assert problem.files == (("shop.sqlite", str(tmp_path / "shop.db")),) and problem.has_own_tools
    assert problem.read_files() == {"shop.sqlite": b"x"}
    assert json.loads(problem.functions) == row["functions"]
    (tmp_path / "other").mkdir()
    assert list(read_problems(_jsonl(tmp_path / "other", problem.to_row()))) == [problem]


def test_read_problems_of_no_functions_round_trips(tmp_path: Path) -> None:
    """An empty list of functions is no absent one: the row offers no tool. It stays in a file of a Filter stage."""
    rows = [{"id": "a", "problem": "?", "answer": "1", "functions": []}, {"id": "b", "problem": "?", "answer": "1"}]
    problems = list(read_problems(_jsonl(tmp_path, *rows)))
    assert [(problem.functions, problem.has_own_tools) for problem in problems] == [("[]", True), ("", False)]
    (tmp_path / "other").mkdir()
    assert list(read_problems(_jsonl(tmp_path / "other", *(problem.to_row() for problem in problems)))) == problems


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tools": "query"}, "tools must be a list of names"),
        (
            {"functions": [{"name": "add"}]},
            "functions must be a list of {name, description, parameters}: not a function",
        ),
        ({"functions": "add"}, "functions must be a list of {name, description, parameters}, got 'add'"),
        ({"functions": [ADD, ADD]}, "functions must have different names, got add, add"),
        ({"files": ["a"]}, "files must be an object"),
        ({"files": {"../a": "a"}}, "must be a file name without a folder"),
        ({"files": {"a": "missing"}}, "files: a: no such file: "),
        ({"files": {"a": "x\0"}}, "is no path: embedded null byte"),
        ({"files": {"a": "x" * 5000}}, "is no path: "),
        ({"files": {"a": "large"}}, "the limit of a row is 2,097,152"),
    ],
)
def test_read_problems_of_invalid_task_field_raises(tmp_path: Path, fields: dict, message: str) -> None:
    """An unusable field of tools or files names the row."""
    (tmp_path / "large").write_bytes(bytes(2**21 + 1))
    with pytest.raises(DataError, match=re.escape(message)):
        list(read_problems(_jsonl(tmp_path, {"problem": "?", "answer": "1", **fields})))
