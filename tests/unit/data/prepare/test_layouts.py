"""Conversion of rows of the public problem datasets and benchmarks, as they are published."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rstar2_train.data.arrow_rows import column_names
from rstar2_train.data.prepare.layouts import LAYOUTS
from rstar2_train.data.prepare.pipeline import convert_row
from rstar2_train.data.prepare.records import RULES, RemovedRow
from rstar2_train.data.readers import DataError
from rstar2_train.rewards.verify import compare_text

DAPO_PROMPT = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\nWhat is $1+1$?\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)
DAPO = {
    "data_source": "math_dapo",
    "prompt": [{"content": DAPO_PROMPT, "role": "user"}],
    "ability": "MATH",
    "reward_model": {"ground_truth": "2", "style": "rule-lighteval/MATH_v2"},
    "extra_info": {"index": "9a9b6eb4-a1cb-49d1-8c1e-62eaf2f74079"},
}
OMR = {
    "expected_answer": "12",
    "problem_type": "has_answer_extracted",
    "problem": "How many?",
    "generated_solution": "<think>...",
    "inference_mode": "cot",
}
SCIBENCH = {
    "problem_text": "Find the work.",
    "answer_latex": " -6.8 ",
    "answer_number": "-6.8",
    "unit": "$10^{-3} \\mathrm{~kJ}$",
    "source": "atkins",
    "problemid": " 5.1(a)",
}
HMMT = {"problem_idx": 3, "problem": "p", "answer": "\\frac{9}{2}", "problem_type": ["Algebra", "Geometry"]}
GPQA = {
    "Pre-Revision Question": "Which was it?",
    "Question": "Which planet is the largest?\n",
    "Correct Answer": "Jupiter ",
    "Incorrect Answer 1": "Mars",
    "Incorrect Answer 2": "Venus",
    "Incorrect Answer 3": "Saturn",
    "Explanation": "It is.",
    "Subdomain": "Astrophysics",
    "Record ID": "rec0",
    "High-level domain": "Physics",
}
NO_ARGUMENTS = dict.fromkeys(["num_words", "relation", "keywords", "letter", "num_bullets"])
IFEVAL = {
    "key": 7,
    "prompt": "Describe a door in fewer than 20 words.\nUse no commas. ",
    "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
    "kwargs": [NO_ARGUMENTS, NO_ARGUMENTS | {"num_words": 20, "relation": "less than"}],
}
TOOLACE = {
    "system": json.dumps([{"name": "f", "description": "d", "parameters": {"type": "dict", "properties": {}}}]),
    "conversations": [{"from": "user", "value": "q"}, {"from": "assistant", "value": "a"}],
}
EULER = {"id": 1, "title": "Multiples", "problem": "plain", "question_latex": "$x$?", "numerical_answer": "233168"}


@pytest.mark.parametrize(
    ("layout", "row", "expected"),
    [
        ("dapo", DAPO, {"problem": "What is $1+1$?", "answer": "2"}),
        ("dapo", {"prompt": "What is $1+1$?", "solution": "2"}, {"problem": "What is $1+1$?", "answer": "2"}),
        ("openmathreasoning", OMR, {"problem": "How many?", "answer": "12"}),
        ("project-euler", EULER, {"problem": "$x$?", "answer": "233168"}),
        ("project-euler", {"id": 2, "problem": "p", "solution": "7"}, {"problem": "p", "answer": "7"}),
        ("problems", {"question": "p", "answer": 7, "more": None}, {"problem": "p", "answer": "7"}),
        (
            "aime",
            {"id": 60, "problem": "p", "answer": 204, "year": 2024},
            {"id": "60", "problem": "p", "answer": "204"},
        ),
        ("aime", {"question": "p", "answer": "033"}, {"problem": "p", "answer": "033"}),
        (
            "benchmark",
            {"id": 3.0, "problem": "p", "answer": "1", "level": 2, "slice": "hard ones", "hard": "true"},
            {"id": "3", "problem": "p", "answer": "1", "slice": "hard ones", "hard": True},
        ),
        (
            "benchmark",
            {"problem": "p", "answer": "1", "level": " 2", "slice": " "},
            {"problem": "p", "answer": "1", "slice": "level 2"},
        ),
        (
            "hmmt",
            HMMT | {"problem_type": [" Algebra"]},
            {"id": "3", "problem": "p", "answer": "\\frac{9}{2}", "slice": "Algebra"},
        ),
        (
            "math500",
            {"problem": "p", "answer": "\\frac12", "level": 3, "unique_id": "test/x/1.json"},
            {"id": "test/x/1.json", "problem": "p", "answer": "\\frac12", "slice": "level 3"},
        ),
        (
            "scibench",
            SCIBENCH,
            {
                "problem": "Find the work.\n\nThe unit of the answer is $10^{-3} \\mathrm{~kJ}$.",
                "answer": "-6.8 \\times $10^{-3} \\mathrm{~kJ}$",
                "slice": "atkins",
            },
        ),
        ("scibench", SCIBENCH | {"unit": " "}, {"problem": "Find the work.", "answer": "-6.8", "slice": "atkins"}),
        ("hmmt", HMMT, {"id": "3", "problem": "p", "answer": "\\frac{9}{2}", "slice": "Algebra, Geometry"}),
        ("hmmt", HMMT | {"problem_type": None}, {"id": "3", "problem": "p", "answer": "\\frac{9}{2}"}),
        (
            "ifeval",
            IFEVAL,
            {
                "id": "7",
                "problem": "Describe a door in fewer than 20 words.\nUse no commas. ",
                "instructions": [
                    {"id": "punctuation:no_comma"},
                    {"id": "length_constraints:number_words", "num_words": 20, "relation": "less than"},
                ],
            },
        ),
    ],
)
def test_convert_row_of_each_layout(layout: str, row: dict[str, Any], expected: dict[str, str]) -> None:
    """A row of each layout, with all its columns and with the layout's columns only."""
    assert convert_row(LAYOUTS[layout], row, "f:1", max_digits=20) == expected
    only = {name: value for name, value in row.items() if name in LAYOUTS[layout].columns}
    assert convert_row(LAYOUTS[layout], only, "f:1", max_digits=20) == expected


@pytest.mark.parametrize(
    ("layout", "row", "rule"),
    [
        ("openmathreasoning", OMR | {"problem_type": "converted_proof"}, "no-gold-answer"),
        ("openmathreasoning", OMR | {"problem_type": "no_answer_extracted"}, "no-gold-answer"),
        ("openmathreasoning", OMR | {"expected_answer": None}, "no-gold-answer"),
        ("openmathreasoning", OMR | {"problem": " "}, "no-problem"),
        ("dapo", DAPO | {"reward_model": {"ground_truth": ""}}, "no-gold-answer"),
        ("math500", {"problem": "p", "answer": None}, "no-gold-answer"),
        ("openmathreasoning", OMR | {"expected_answer": "3\\sqrt2"}, "not-an-integer"),
        ("project-euler", {"problem": "p", "answer": None}, "no-gold-answer"),
        ("project-euler", {"problem": "p", "answer": "6.5e27330467"}, "enormous-answer"),
        ("gpqa", GPQA | {"Incorrect Answer 2": ""}, "no-gold-answer"),
        ("gpqa", GPQA | {"Incorrect Answer 2": "Jupiter"}, "no-gold-answer"),
        ("gpqa", GPQA | {"Question": " "}, "no-problem"),
        ("scibench", SCIBENCH | {"unit": "furlongz"}, "no-gold-answer"),
        ("scibench", SCIBENCH | {"answer_number": "about 5"}, "no-gold-answer"),
        ("ifeval", IFEVAL | {"prompt": ""}, "no-problem"),
    ],
)
def test_convert_row_of_invalid_row_returns_rule(layout: str, row: dict[str, Any], rule: str) -> None:
    """A row that a rule for single rows removes."""
    removed = convert_row(LAYOUTS[layout], row, "f:1", max_digits=20)
    assert isinstance(removed, RemovedRow) and removed.rule == rule and rule in RULES


def test_convert_row_of_gpqa_shuffles_choices() -> None:
    """The order of GPQA's choices is shuffled and deterministic. The answer is the letter of the correct choice."""
    letters = Counter[str]()
    for number in range(400):
        row = GPQA | {"Question": f"Question {number}"}
        problem = convert_row(LAYOUTS["gpqa"], row, "f:1", max_digits=20)
        assert problem == convert_row(LAYOUTS["gpqa"], dict(reversed(row.items())), "f:1", max_digits=20)
        assert isinstance(problem, dict) and problem.keys() == {"id", "problem", "answer", "slice"}
        question, choices, _ = problem["problem"].split("\n\n")
        listed = dict(choice.split(") ") for choice in choices.splitlines())
        letter = problem["answer"].removeprefix("\\text{").removesuffix("}")
        assert question == f"Question {number}" and listed[letter] == "Jupiter"
        assert sorted(listed) == list("ABCD") and sorted(listed.values()) == ["Jupiter", "Mars", "Saturn", "Venus"]
        letters[letter] += 1
        correct = [f"<answer>\\boxed{{{form}}}</answer>" for form in (letter, f"({letter})", f"\\text{{{letter}}}")]
        assert {compare_text(response, problem["answer"])[0] for response in correct} == {"correct"}
        wrong = [f"<answer>\\boxed{{{other}}}</answer>" for other in listed if other != letter]
        assert {compare_text(response, problem["answer"])[0] for response in wrong} == {"wrong"}
    assert all(70 <= count <= 130 for count in letters.values())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kwargs": [{}]}, "must be lists of the same length"),
        ({"instruction_id_list": ["punctuation:no_dash", "x:y"]}, "unknown instruction 'punctuation:no_dash'"),
        ({"kwargs": [None, {"num_words": 20}]}, "takes num_words, relation; given: num_words"),
        ({"kwargs": ["", 3]}, "not a mapping"),
    ],
)
def test_convert_row_of_ifeval_with_invalid_instruction_raises(change: dict[str, Any], message: str) -> None:
    """An unknown instruction or invalid arguments are an error."""
    with pytest.raises(DataError, match=f"^f:1: .*{message}"):
        convert_row(LAYOUTS["ifeval"], IFEVAL | change, "f:1", max_digits=20)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_convert_row_of_other_layout_names_fields(layout: str) -> None:
    """A row without the layout's columns is an error that lists its fields."""
    with pytest.raises(DataError) as caught:
        convert_row(LAYOUTS[layout], {"colour": "red", "size": 3}, "file.jsonl:4", max_digits=20)
    assert str(caught.value).startswith("file.jsonl:4: ")
    assert f"layout {layout} is " in str(caught.value) and "fields are colour, size" in str(caught.value)


@pytest.mark.parametrize("layout", ["problems", "benchmark", "hmmt"])
@pytest.mark.parametrize("field", ["reward", "data", "functions", "images", "choices", "system", "Images", " context"])
def test_own_fields_that_would_be_lost_are_refused(layout: str, field: str, tmp_path: Path) -> None:
    """Fields that the preparation does not write, also in columns of a Parquet file."""
    file = tmp_path / "own.parquet"
    pq.write_table(pa.table({"problem": ["p"], "answer": ["5"], field: ["x"], "year": [2025]}), file)
    ((_, row),) = LAYOUTS[layout].read(file)
    assert set(row) == {"problem", "answer", field}
    with pytest.raises(DataError, match=rf"f:1: {field} .*would be lost"):
        LAYOUTS[layout].convert(row, "f:1")


@pytest.mark.parametrize(
    ("layout", "row", "field", "value"),
    [
        ("dapo", {"prompt": "p", "solution": "5"}, "tools", ["run"]),
        ("dapo", {"prompt": "p", "solution": "5"}, "messages", [{"role": "system", "content": "s"}]),
        ("openmathreasoning", {"problem": "p", "expected_answer": "5"}, "Images", ["a.png"]),
        ("gpqa", {"Question": "q"} | {name: name for name in GPQA if "nswer" in name}, "context", "c"),
        ("toolace", TOOLACE, "messages", [{"role": "user", "content": "q"}]),
        ("toolace", TOOLACE, "rejected", "b"),
        ("toolace", TOOLACE, "weight", 0.5),
        ("nemotron", {"input": "q", "output": "a", "reasoning": "off"}, "tools", ["run"]),
    ],
)
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_columns_that_a_layout_would_lose_are_refused(
    layout: str, row: dict[str, Any], field: str, value: object, kind: str, tmp_path: Path
) -> None:
    """A column that a stage would learn from is refused; without content, or with another name, it is only listed."""
    file = tmp_path / f"rows.{kind}"
    for more, refused in (({field: value}, True), ({field: None, "year": 2025}, False)):
        if kind == "parquet":
            pq.write_table(pa.Table.from_pylist([row | more]), file)
        else:
            file.write_text(json.dumps(row | more))
        ((line, read),) = LAYOUTS[layout].read(file)
        if refused:
            with pytest.raises(DataError, match=rf"^f:1: {field} is not read, and would be lost: remove the column"):
                convert_row(LAYOUTS[layout], read, f"f:{line}", max_digits=20)
        else:
            assert not isinstance(convert_row(LAYOUTS[layout], read, f"f:{line}", max_digits=20), RemovedRow)
            assert LAYOUTS[layout].unused(column_names(file, read)) == [field, "year"]


@pytest.mark.parametrize(
    ("layout", "row", "name", "remedy"),
    [
        ("problems", {"Question": "p", "answer": "5"}, "Question", "rename it to 'question', or remove it"),
        ("problems", {"problem": "p", "Answer": "5"}, "Answer", "rename it to 'answer', or remove it"),
        ("problems", {"problem": "p", "answer": "5", "Answer": "6"}, "Answer", "remove one of them"),
        ("problems", {"problem": "p", "answer": "5", "Tools": ["a"]}, "Tools", "rename it to 'tools'"),
        ("benchmark", {"problem": "p", "answer": "5", "ID": "a"}, "ID", "rename it to 'id'"),
        ("benchmark", {"problem": "p", "answer": "5", "Level": 3}, "Level", "rename it to 'level'"),
        ("conversations", {"messages": [{"role": "user", "content": "x"}], "Tools": ["a"]}, "Tools", "rename it to"),
    ],
)
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_own_columns_in_another_spelling_are_refused(
    layout: str, row: dict[str, Any], name: str, remedy: str, kind: str, tmp_path: Path
) -> None:
    """A column that a layout reads is refused in another spelling, also if only some columns of the file are read."""
    file = tmp_path / f"own.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist([row | {"year": 2025}]), file)
    else:
        file.write_text(json.dumps(row))
    ((line, read),) = LAYOUTS[layout].read(file)
    with pytest.raises(DataError, match=rf"f:1: '{name}' is not read: {remedy}"):
        LAYOUTS[layout].convert(read, f"f:{line}")


@pytest.mark.parametrize("layout", ["problems", "benchmark"])
@pytest.mark.parametrize(
    "row",
    [
        {"tools": []},
        {"functions": []},
        {"data": 0},
        {"data": False},
        {"data": []},
        {"instructions": [{"id": "punctuation:no_comma"}]},
        {"problem": "p", "question": "another"},
    ],
)
def test_own_fields_with_empty_values_are_refused(layout: str, row: dict[str, Any]) -> None:
    """An empty list of tools and a false value have a meaning in a stage."""
    given = {"problem": "p", "answer": "5"}
    with pytest.raises(DataError, match=r"^f:1: \w+ would be lost"):
        LAYOUTS[layout].convert(given | row, "f:1")
    gaps = [None, float("nan"), ""]
    for gap in gaps:
        assert LAYOUTS[layout].convert(given | dict.fromkeys(row.keys() - given.keys(), gap), "f:1") == given


@pytest.mark.parametrize(
    ("layout", "row"),
    [
        ("dapo", {"prompt": "\frac12?", "solution": "2"}),
        ("dapo", DAPO | {"prompt": [{"role": "user", "content": "so \boxed"}]}),
        ("openmathreasoning", OMR | {"problem": "\frac12"}),
        ("project-euler", EULER | {"question_latex": "2\vec x"}),
        ("problems", {"problem": "\frac12", "answer": "1"}),
        ("benchmark", {"question": " \frac12", "answer": "1"}),
        ("gpqa", GPQA | {"Question": "\frac12"}),
        ("gpqa", GPQA | {"Incorrect Answer 2": "\frac12"}),
        ("scibench", SCIBENCH | {"problem_text": "\frac12"}),
        ("hmmt", HMMT | {"problem": "\frac12"}),
        ("ifeval", IFEVAL | {"prompt": "\frac12"}),
    ],
)
def test_convert_row_with_lost_backslash_raises(layout: str, row: dict[str, Any]) -> None:
    """A form feed at an end of a text is no white space: it is the rest of a LaTeX command."""
    with pytest.raises(DataError, match=r"^f:1: .* contains '\\x0.', a control character"):
        convert_row(LAYOUTS[layout], row, "f:1", max_digits=20)


def test_convert_row_of_too_long_problem_returns_rule() -> None:
    """A problem that no stage reads is removed with its reason."""
    removed = convert_row(LAYOUTS["problems"], {"problem": "x" * (2**20 + 1), "answer": 1}, "f:1", max_digits=20)
    assert removed == RemovedRow("not-text", "the problem has 1,048,577 characters; the limit is 1,048,576")


def test_convert_row_of_benchmark_with_id_of_other_type_raises() -> None:
    """An id is a text or a number."""
    with pytest.raises(DataError, match=r"^f:1: id must be a non-empty text, got \[1\]"):
        convert_row(LAYOUTS["benchmark"], {"problem": "p", "answer": "1", "id": [1]}, "f:1", max_digits=20)


def test_convert_row_with_wrong_types_raises() -> None:
    """A field of a wrong type is an error."""
    for layout, row in (
        ("dapo", DAPO | {"prompt": 3}),
        ("dapo", DAPO | {"prompt": [{"role": "system", "content": "Be kind."}, *DAPO["prompt"]]}),
        ("dapo", DAPO | {"reward_model": '{"ground_truth": "7"}', "solution": "3"}),
        ("problems", {"problem": "p", "answer": "1", "reward": "tests"}),
        ("benchmark", {"problem": "p", "answer": "1", "data": {"tests": []}}),
        ("dapo", DAPO | {"reward_model": {"ground_truth": ["2"]}}),
        ("problems", {"problem": ["p"], "answer": "1"}),
    ):
        with pytest.raises(DataError, match=r"^f:1: "):
            convert_row(LAYOUTS[layout], row, "f:1", max_digits=20)


def test_convert_row_of_gsm8k_has_the_value_as_answer() -> None:
    """Of GSM8K's solutions the value is the answer; an answer with a control character is an error with its line."""
    for name in ("problems", "benchmark"):
        row = {"question": "How many?", "answer": "5+5=10\n#### 10"}
        converted = convert_row(LAYOUTS[name], row, "f:1", max_digits=20)
        assert converted == {"problem": "How many?", "answer": "10"}
        with pytest.raises(DataError, match=r"^f:1: answer contains '\\x0c', a control character"):
            convert_row(LAYOUTS[name], row | {"answer": "\frac{1}{2}"}, "f:1", max_digits=20)
