"""The supported public datasets: their columns, and the conversion of a row of problems to a row of this project.

`pipeline.py` and `inspect.py` look up the layout of the command line in `LAYOUTS`. `conversations.py` has the
conversion of demonstrations. Pure.
"""

from __future__ import annotations

import hashlib
from typing import Any

from rstar2_train.data.prepare.conversations import DEMONSTRATIONS
from rstar2_train.data.prepare.records import KEPT_BY_STAGES, DatasetLayout, RemovedRow, Row
from rstar2_train.data.problems import LOST_FIELDS, check_lost_fields
from rstar2_train.data.readers import (
    LONGEST_TEXT,
    DataError,
    check_spelling,
    check_written,
    first_text,
    flag_field,
    is_gap,
    known_answer,
    slice_field,
    text_field,
)
from rstar2_train.rewards.quantity import check_unit, read_quantity
from rstar2_train.utils.plugins import benchmark_plugins
from rstar2_train.utils.text import short_repr

_DAPO_BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem."
)
_DAPO_AFTER = 'Remember to put your answer on its own line after "Answer:".'
_CHECKED = "has_answer_extracted"
"""`problem_type` in OpenMathReasoning of problems with an answer in the forum. Other answers are votes of models."""

_IDS = ("id", "unique_id", "problem_idx")
"""Columns in which benchmarks have the id of a problem."""
_LETTERS = "ABCD"
_CHOOSE = "One of these four choices is right. The final value is its letter: A, B, C or D."
_CHOICES = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


def _dapo(row: dict[str, Any], where: str) -> Row | RemovedRow:
    """Convert a row whose `prompt` is a chat message with the problem, and `reward_model.ground_truth` the answer.

    In open-r1/DAPO-Math-17k-Processed, `prompt` is a text and `solution` is the answer.
    """
    prompt = row.get("prompt")
    if isinstance(prompt, list):
        roles = [message.get("role") if isinstance(message, dict) else message for message in prompt]
        if roles != ["user"]:
            raise DataError(f"{where}: prompt must be one message of role user, got roles {short_repr(roles)}")
        prompt = prompt[0].get("content")
    if not isinstance(prompt, str):
        raise DataError(f"{where}: no prompt")
    problem = check_written(prompt, f"{where}: prompt").strip().removeprefix(_DAPO_BEFORE).removesuffix(_DAPO_AFTER)
    reward = row.get("reward_model")
    if reward is not None:
        if not isinstance(reward, dict):
            raise DataError(f"{where}: reward_model must be an object with ground_truth, got {short_repr(reward)}")
        return _problem(problem, first_text(reward, f"{where}: reward_model", "ground_truth"), where)
    return _problem(problem, first_text(row, where, "solution"), where)


def _openmathreasoning(row: dict[str, Any], where: str) -> Row | RemovedRow:
    problem = first_text(row, where, "problem")
    kind = text_field(row, "problem_type", where, default=_CHECKED)
    if kind != _CHECKED:
        return RemovedRow("no-gold-answer", f"problem_type: {kind}")
    return _problem(problem, first_text(row, where, "expected_answer"), where)


def _project_euler(row: dict[str, Any], where: str) -> Row | RemovedRow:
    problem = first_text(row, where, "question_latex", "problem", "question")
    return _problem(problem, first_text(row, where, "numerical_answer", "answer", "solution"), where)


def _own_problems(row: dict[str, Any], where: str) -> Row | RemovedRow:
    check_lost_fields(row, where)
    check_spelling(row, ("question",), where)
    for field in KEPT_BY_STAGES:
        if not is_gap(value := row.get(field)) and (field != "files" or value):
            raise DataError(f"{where}: {field} would be lost: name the file in the data of the stage as it is")
    return _problem(first_text(row, where, "problem", "question"), first_text(row, where, "answer"), where)


def _benchmark(row: dict[str, Any], where: str) -> Row | RemovedRow:
    """Convert a row of a benchmark. Its id, its slice or else its level, and `hard` are retained if it has them."""
    check_spelling(row, ("level", *_IDS), where)
    level = slice_field(row, "level", where)
    slice_name = slice_field(row, "slice", where) or (f"level {level}" if level else "")
    problem = _with_id_and_slice(_own_problems(row, where), row, where, _IDS, slice=slice_name)
    is_hard = flag_field(row, "hard", where)
    return problem | {"hard": True} if is_hard and not isinstance(problem, RemovedRow) else problem


def _hmmt(row: dict[str, Any], where: str) -> Row | RemovedRow:
    """Convert a row whose `problem_type` is a list of areas, the slice of the problem."""
    areas = row.get("problem_type") or []
    if not isinstance(areas, list) or not all(isinstance(area, str) for area in areas):
        raise DataError(f"{where}: problem_type must be a list of texts, got {short_repr(areas)}")
    return _with_id_and_slice(
        _own_problems(row, where), row, where, ("problem_idx",), slice=", ".join(map(str.strip, areas))
    )


def _gpqa(row: dict[str, Any], where: str) -> Row | RemovedRow:
    """Convert a multiple-choice row. The known answer is a letter in the notation of MATH-500.

    The choices are sorted by a hash of question and choice: shuffled, and the same in every run.
    """
    question, right, *wrong = (
        check_written(first_text(row, where, column), f"{where}: {column}").strip()
        for column in ("Question", *_CHOICES)
    )
    if not right or not all(wrong):
        return RemovedRow("no-gold-answer", "one of the four choices is empty")
    if right in wrong:
        return RemovedRow("no-gold-answer", "an incorrect choice equals the correct answer")
    order = sorted((right, *wrong), key=lambda choice: _hash(f"{question}\n{choice}"))
    listed = "\n".join(f"{letter}) {choice}" for letter, choice in zip(_LETTERS, order, strict=True))
    problem = f"{question}\n\n{listed}\n\n{_CHOOSE}" if question else ""
    answer = f"\\text{{{_LETTERS[order.index(right)]}}}"
    domain = slice_field(row, "High-level domain", where)
    return _with_id_and_slice(_problem(problem, answer, where), row, where, ("Record ID",), slice=domain)


def _scibench(row: dict[str, Any], where: str) -> Row | RemovedRow:
    """Convert a row whose answer is a number, and whose unit may have a power of ten: for a reward of type Numeric."""
    number, unit = first_text(row, where, "answer_number"), text_field(row, "unit", where, default="").strip()
    answer = f"{number} \\times {unit}" if unit.lstrip("$ ").startswith("10^") else f"{number} {unit}"
    quantity = read_quantity(answer, strict=True)
    try:
        check_unit(quantity.unit if quantity else "?")
    except ValueError as error:
        return RemovedRow("no-gold-answer", f"{answer!r}: not a number with a known unit: {error}")
    question = check_written(first_text(row, where, "problem_text"), f"{where}: problem_text").strip()
    unit_line = f"\n\nThe unit of the answer is {unit}." if unit and question else ""
    source = slice_field(row, "source", where)
    return _with_id_and_slice(_problem(question + unit_line, answer, where), row, where, (), slice=source)


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass")).digest()


def _with_id_and_slice(
    problem: Row | RemovedRow, row: dict[str, Any], where: str, id_columns: tuple[str, ...], *, slice: str = ""
) -> Row | RemovedRow:
    """Add the benchmark's id, from the first non-empty column of `id_columns`, and the slice."""
    if isinstance(problem, RemovedRow):
        return problem
    identity = next((text_field(row, name, where) for name in id_columns if not is_gap(row.get(name))), "")
    return problem | ({"id": identity} if identity else {}) | ({"slice": slice} if slice else {})


def _problem(problem: str, answer: str, where: str) -> Row | RemovedRow:
    problem, answer = (
        check_written(problem, f"{where}: problem").strip(),
        known_answer(answer, f"{where}: answer").strip(),
    )
    if not problem:
        return RemovedRow("no-problem", "the text is empty")
    if len(problem) > LONGEST_TEXT:
        return RemovedRow("not-text", f"the problem has {len(problem):,} characters; the limit is {LONGEST_TEXT:,}")
    return {"problem": problem, "answer": answer} if answer else RemovedRow("no-gold-answer", "the answer is empty")


_OWN_COLUMNS = ("problem", "question", "answer", *KEPT_BY_STAGES, *LOST_FIELDS)
_BENCHMARK_COLUMNS = (*_IDS, *_OWN_COLUMNS, "level", "slice", "hard")

LAYOUTS: dict[str, DatasetLayout] = {
    layout.name: layout
    for layout in (
        DatasetLayout(
            "dapo", "BytedTsinghua-SIA/DAPO-Math-17k, open-r1/DAPO-Math-17k-Processed", "training problems",
            ("prompt", "reward_model", "solution"), _dapo,
        ),
        DatasetLayout(
            "openmathreasoning", "nvidia/OpenMathReasoning", "training problems",
            ("problem", "problem_type", "expected_answer"), _openmathreasoning, sampled=True,
        ),
        DatasetLayout(
            "project-euler", "Project Euler: alexandonian/project-euler, PatrickHaller/pecc", "training problems",
            ("question_latex", "problem", "question", "numerical_answer", "answer", "solution"), _project_euler,
        ),
        DatasetLayout(
            "problems", "your own data: {problem, answer}", "training problems",
            _OWN_COLUMNS, _own_problems, sampled=True,
        ),
        DatasetLayout(
            "aime", "HuggingFaceH4/aime_2024, opencompass/AIME2025", "benchmark", _BENCHMARK_COLUMNS, _benchmark
        ),
        DatasetLayout("math500", "HuggingFaceH4/MATH-500", "benchmark", _BENCHMARK_COLUMNS, _benchmark),
        DatasetLayout(
            "hmmt", "MathArena/hmmt_feb_2025", "benchmark", ("problem_idx", *_OWN_COLUMNS, "problem_type"), _hmmt
        ),
        DatasetLayout(
            "gpqa", "Idavidrein/gpqa: gpqa_diamond.csv", "benchmark",
            ("Record ID", "Question", *_CHOICES, "High-level domain"), _gpqa,
        ),
        DatasetLayout(
            "scibench", "xw27/scibench", "benchmark", ("problem_text", "answer_number", "unit", "source"), _scibench
        ),
        *benchmark_plugins("layout"),
        DatasetLayout(
            "benchmark", "any other: {problem, answer, id?, level?, slice?, hard?}", "benchmark",
            _BENCHMARK_COLUMNS, _benchmark,
        ),
        *DEMONSTRATIONS,
    )
}  # fmt: skip
"""Name on the command line -> layout."""
