"""Conversion of BFCL's published files: questions, and the wanted calls in a folder next to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.benchmarks.bfcl.conversion import to_row
from rstar2_train.cli.main import main
from rstar2_train.data.problems import Problem, read_problems

ADD: dict[str, Any] = {
    "name": "math.add",
    "description": "Adds.",
    "parameters": {
        "type": "dict",
        "properties": {
            "a": {"type": "float", "description": "First."},
            "b": {"type": "any", "description": "Second.", "default": {"type": "dict"}},
        },
        "required": ["a"],
    },
}
SUM: dict[str, Any] = {
    "name": "sum",
    "description": "Sums.",
    "parameters": {
        "type": "dict",
        "properties": {
            "values": {"type": "ArrayList", "description": "All.", "items": {"type": "long"}},
            "into": {"type": "any", "description": "Target."},
        },
        "required": ["values"],
    },
}

TOTAL = SUM | {"parameters": {"type": "dict", "properties": {"into": {"type": "integer"}}, "required": []}}


def _item(id: str, function: list[dict[str, Any]]) -> dict[str, Any]:
    question = [[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Add 1 and 2."}]]
    return {"id": id, "question": question, "function": function}


def _write(folder: Path, category: str, items: list[dict[str, Any]], truths: dict[str, Any] | None = None) -> None:
    (folder / "possible_answer").mkdir(parents=True, exist_ok=True)
    name = f"BFCL_v4_{category}.json"
    (folder / name).write_text("".join(json.dumps(item) + "\n" for item in items))
    if truths is not None:
        rows = ({"id": id, "ground_truth": calls} for id, calls in truths.items())
        (folder / "possible_answer" / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def _prepare(folder: Path, out: Path) -> tuple[int, list[Problem]]:
    code = main(["data", "prepare", f"bfcl={folder}", "--out", str(out)])
    return code, [problem for file in sorted(out.glob("*/benchmark.jsonl")) for problem in read_problems(file)]


def test_prepare_joins_questions_and_answers(tmp_path: Path) -> None:
    """Each row has its wanted calls by id, and its category as slice. Files of other categories are skipped."""
    calls = {"simple_python_0": [{"math.add": {"a": [1.0], "b": [2, ""]}}], "simple_python_1": [{"sum": {}}]}
    _write(tmp_path / "data", "simple_python", [_item(id, [ADD, TOTAL]) for id in reversed(calls)], calls)
    _write(tmp_path / "data", "live_irrelevance", [_item("live_irrelevance_0-0-0", [])])
    _write(tmp_path / "data", "multi_turn_base", [{"id": "multi_turn_base_0", "question": [[], []]}], {})
    (tmp_path / "data" / "BFCL_v4_format_sensitivity.json").write_text('{\n "simple_python": []\n}')
    code, problems = _prepare(tmp_path / "data", tmp_path / "out")
    assert code == 0
    assert [(problem.id, problem.slice, problem.answer) for problem in problems] == [
        ("bfcl-live_irrelevance_0-0-0", "live_irrelevance", "no call"),
        ("bfcl-simple_python_1", "simple_python", "sum"),
        ("bfcl-simple_python_0", "simple_python", "math.add"),
    ]
    assert [json.loads(problem.functions) == [] for problem in problems] == [True, False, False]
    data = json.loads(problems[2].data)
    assert (data["kind"], data["calls"], data["functions"]) == ("simple", calls["simple_python_0"], [ADD, TOTAL])


def test_prepare_of_changed_answers_writes_new_rows(tmp_path: Path) -> None:
    """The file of answers is part of the input: a change is not answered from the cache of converted files."""
    for value in (1, 2):
        _write(
            tmp_path / "data", "multiple", [_item("multiple_0", [TOTAL])], {"multiple_0": [{"sum": {"into": [value]}}]}
        )
        _prepare(tmp_path / "data", tmp_path / "out")
    _, problems = _prepare(tmp_path / "data", tmp_path / "out")
    values = sorted(json.loads(problem.data)["calls"][0]["sum"]["into"][0] for problem in problems)
    assert values == [1, 2]


@pytest.mark.parametrize(
    ("category", "item", "truths", "message"),
    [
        ("parallel", _item("parallel_0", [ADD]), None, "possible_answer/BFCL_v4_parallel.json: no such file"),
        ("parallel", _item("parallel_0", [ADD]), {"parallel_1": []}, "parallel_0 has no ground_truth"),
        ("parallel", _item("exec_0", [ADD]), {"exec_0": []}, "unknown category 'exec'"),
        ("parallel", {"id": "parallel_0"}, {"parallel_0": []}, "not a question in one turn with functions"),
        ("memory", {"id": "memory_0"}, None, "no file name matches the layout bfcl"),
    ],
)
def test_prepare_of_invalid_files_names_the_fault(
    category: str,
    item: dict[str, Any],
    truths: dict[str, Any] | None,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Missing answers, other categories and rows of another form are errors."""
    _write(tmp_path / "data", category, [item], truths)
    assert _prepare(tmp_path / "data", tmp_path / "out") == (1, [])
    assert message in capsys.readouterr().err


def test_inspect_reads_the_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`rstar2 data inspect` converts a row as `prepare` does."""
    _write(tmp_path / "data", "multiple", [_item("multiple_0", [TOTAL])], {"multiple_0": [{"sum": {}}]})
    assert main(["data", "inspect", f"bfcl={tmp_path / 'data'}"]) == 0
    assert '"answer": "sum"' in capsys.readouterr().out


def test_to_row_of_python_functions() -> None:
    """Names have underscores, types are those of JSON schemas, and a note on the language follows the description."""
    row = to_row("parallel", _item("parallel_0", [ADD]), [{"math.add": {"a": [1.0]}}] * 2)
    assert (row["problem"], row["answer"]) == ("Be brief.\n\nAdd 1 and 2.", "math.add, math.add")
    assert row["functions"] == [
        {
            "name": "math_add",
            "description": "Adds. Note that the provided function is in Python 3 syntax.",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "number", "description": "First."},
                    "b": {"description": "Second.", "default": {"type": "dict"}},
                },
                "required": ["a"],
            },
        }
    ]
    assert "language" not in row["data"]


def test_to_row_of_java_functions() -> None:
    """Arguments are texts, whose descriptions name the type; the checker sees the types of the language."""
    row = to_row("simple_java", _item("simple_java_0", [SUM]), [{"sum": {"values": [[1]]}}])
    assert row["functions"][0]["parameters"]["properties"] == {
        "values": {
            "type": "string",
            "description": "All. This is Java ArrayList type parameter in string representation. "
            "The list elements are of type long; they are not in string representation.",
        },
        "into": {
            "type": "string",
            "description": "Target. This parameter can be of any type of Java object in string representation.",
        },
    }
    assert row["data"] == {
        "kind": "simple",
        "functions": [SUM],
        "calls": [{"sum": {"values": [[1]]}}],
        "language": "java",
    }


def test_to_row_of_javascript_object_describes_its_fields() -> None:
    """The fields of an object are part of its description."""
    schema = {"type": "dict", "description": "All.", "properties": {"n": {"type": "integer"}}}
    function = {"name": "f", "description": "Runs.", "parameters": {"type": "dict", "properties": {"options": schema}}}
    row = to_row("simple_javascript", _item("simple_javascript_0", [function]), [{"f": {}}])
    assert row["functions"][0]["parameters"]["properties"]["options"] == {
        "type": "string",
        "description": "All. This is JavaScript dict type parameter in string representation. The dictionary entries "
        'have the following schema; they are not in string representation. {"n": {"type": "integer"}}',
    }
    assert row["data"]["language"] == "javascript"
