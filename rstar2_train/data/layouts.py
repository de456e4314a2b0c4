"""The columns of the public datasets that can be prepared, and how a row of problems becomes one of ours.

Above rows.py, beside demonstrations.py (the datasets of conversations); prepare.py asks `LAYOUTS` for the name that the
user gave. Pure but for the errors' words.
"""

from __future__ import annotations

from typing import Any

from rstar2_train.data.demonstrations import DEMONSTRATIONS
from rstar2_train.data.records import Layout, Removed, Row
from rstar2_train.data.rows import DataError, present_text, text_field

_DAPO_BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem."
)
_DAPO_AFTER = 'Remember to put your answer on its own line after "Answer:".'
_CHECKED = "has_answer_extracted"
"""`problem_type` in OpenMathReasoning of problems whose answer stood in the forum. Else it is what models voted for."""

_IDS = ("id", "unique_id", "problem_idx")
"""What benchmarks call the id of a problem."""


def _dapo(row: dict[str, Any], where: str) -> Row | Removed:
    """`prompt` is a chat message around the problem, the answer `reward_model.ground_truth`.

    In open-r1/DAPO-Math-17k-Processed `prompt` is a text and the answer is in `solution`.
    """
    prompt = row.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], dict):
        prompt = prompt[0].get("content")
    if not isinstance(prompt, str):
        raise DataError(f"{where}: no prompt")
    problem = prompt.strip().removeprefix(_DAPO_BEFORE).removesuffix(_DAPO_AFTER)
    reward = row.get("reward_model")
    if isinstance(reward, dict):
        return _problem(problem, present_text(reward, f"{where}: reward_model", "ground_truth"))
    return _problem(problem, present_text(row, where, "solution"))


def _openmathreasoning(row: dict[str, Any], where: str) -> Row | Removed:
    problem = present_text(row, where, "problem")
    kind = text_field(row, "problem_type", where, default=_CHECKED)
    if kind != _CHECKED:
        return Removed("no-gold-answer", f"problem_type: {kind}")
    return _problem(problem, present_text(row, where, "expected_answer"))


def _project_euler(row: dict[str, Any], where: str) -> Row | Removed:
    problem = present_text(row, where, "question_latex", "problem", "question")
    return _problem(problem, present_text(row, where, "numerical_answer", "answer", "solution"))


def _own_problems(row: dict[str, Any], where: str) -> Row | Removed:
    return _problem(present_text(row, where, "problem", "question"), present_text(row, where, "answer"))


def _benchmark(row: dict[str, Any], where: str) -> Row | Removed:
    """`id`, and what the report groups by, are the benchmark's own where it has them."""
    problem = _own_problems(row, where)
    if isinstance(problem, Removed):
        return problem
    named = next((str(row[name]) for name in _IDS if row.get(name) not in (None, "")), "")
    level = text_field(row, "level", where, default="")
    return problem | ({"id": named} if named else {}) | ({"slice": f"level {level}"} if level else {})


def _problem(problem: str, answer: str) -> Row | Removed:
    problem, answer = problem.strip(), answer.strip()
    if not problem:
        return Removed("no-problem", "the text is empty")
    return {"problem": problem, "answer": answer} if answer else Removed("no-gold-answer", "the answer is empty")


_BENCHMARK_COLUMNS = (*_IDS, "problem", "question", "answer", "level")

LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout(
            "dapo", "BytedTsinghua-SIA/DAPO-Math-17k, open-r1/DAPO-Math-17k-Processed", "training problems",
            ("prompt", "reward_model", "solution"), _dapo,
        ),
        Layout(
            "openmathreasoning", "nvidia/OpenMathReasoning", "training problems",
            ("problem", "problem_type", "expected_answer"), _openmathreasoning, sampled=True,
        ),
        Layout(
            "project-euler", "Project Euler: alexandonian/project-euler, PatrickHaller/pecc", "training problems",
            ("question_latex", "problem", "question", "numerical_answer", "answer", "solution"), _project_euler,
        ),
        Layout(
            "problems", "your own: {problem, answer}", "training problems",
            ("problem", "question", "answer"), _own_problems, sampled=True,
        ),
        Layout("aime", "HuggingFaceH4/aime_2024, opencompass/AIME2025", "benchmark", _BENCHMARK_COLUMNS, _benchmark),
        Layout("math500", "HuggingFaceH4/MATH-500", "benchmark", _BENCHMARK_COLUMNS, _benchmark),
        Layout("benchmark", "any other: {problem, answer, id?, level?}", "benchmark", _BENCHMARK_COLUMNS, _benchmark),
        *DEMONSTRATIONS,
    )
}  # fmt: skip
"""Every layout by its name on the command line."""
