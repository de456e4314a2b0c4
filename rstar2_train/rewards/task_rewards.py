"""The rewards of a job by name: which comparison decides a row, and what its score means.

    rollout.scoring --> TaskRewards.grade --> grade (mathematics, instructions)
                                          |-> quantity (Numeric), text (Exact, Choice)
                                          '-> judge: a user's checker (Program), the answer as a program (Tests)

A score is in [0, 1]; a response is correct from `correctFrom`. A checker that crashes or exceeds a limit is a fault of
the checker: the trajectory is excluded, never scored 0.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rstar2_verify import is_choice
from rstar2_verify import verify as compare_answers

from rstar2_train.api.judge_limits import MAX_OUTPUT_BYTES, MAX_STDIN_BYTES, JudgeLimits
from rstar2_train.api.tasks import RewardSpec
from rstar2_train.rewards.answer_program import answer_program
from rstar2_train.rewards.extract import extract_answer, last_answer
from rstar2_train.rewards.grade import grade
from rstar2_train.rewards.quantity import Quantity, check_unit, equal_quantities, read_quantity
from rstar2_train.rewards.verdict import Grade, Verdict
from rstar2_train.rewards.verify import SnippetResult, SnippetRunner
from rstar2_train.tools.sandbox_program import function_input, function_program, read_sources
from rstar2_train.utils.spelling import spelled

CHECKER_FUNCTION = "score"
"""Name of the function in a checker's file."""
INLINE_TEXT = 8192
"""Characters above which a thread looks for the program of an answer."""
LONG_TEXT = 1 << 18
"""Characters above which a thread compares the output of a program."""
_WORD = re.compile(r"\S+")
_OTHER_TESTS: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *("fn_name", "func_name", "function_name", "method_name", "entry_point", "starter_code"),
            *("test", "test_code", "unit_tests", "asserts", "setup_code", "test_setup_code"),
        ),
        "is of tests that call a function, but Tests run a program on standard input: use a reward of type Program, "
        "or other tests",
    ),
    **dict.fromkeys(
        (
            *("public_tests", "private_tests", "hidden_tests", "generated_tests", "test_cases", "test_list"),
            *("public_test_cases", "private_test_cases", "inputs", "outputs"),
        ),
        "is not run: write all tests in tests",
    ),
    **dict.fromkeys(
        (
            *("checker", "checker_code", "generated_checker", "special_judge", "interactor", "interactive"),
            *("is_interactive", "interaction_format", "tolerance", "float_tolerance", "epsilon", "eps", "precision"),
            *("any_order", "unordered"),
        ),
        "is not used, because outputs are compared word by word: use a reward of type Program",
    ),
    **dict.fromkeys(
        ("input_file", "output_file", "input_mode"),
        "is not used, because a program reads its standard input and writes its standard output: remove the row",
    ),
    **dict.fromkeys(
        (
            *("time_limit", "time_limit_ms", "time_limit_seconds", "memory_limit", "memory_limit_mb"),
            *("memory_limit_bytes", "timeout", "timeout_seconds"),
        ),
        "is not used: set timeoutSeconds of the reward, and remove it",
    ),
}
"""Fields of public data sets, next to `tests`, that Tests do not read -> fault and remedy."""
_KIND_FIELDS, _STANDARD_KINDS = ("testtype", "type"), ("stdin", "stdin_stdout")
"""Fields of a test that name its kind, and their values for standard input and output."""
_STANDARD_FILES = ("stdin", "stdout", "stdio", "standard")
"""Values of a file or mode that are the standard input and output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """The finished response to a row, as a reward sees it."""

    model_text: str
    """Text of all turns that the model wrote."""
    last_turn: str
    row: Mapping[str, Any]
    """Fields of the row: id, problem, answer, and data if it has them."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files of the row."""
    calls: Sequence[Mapping[str, str]] = ()
    """Tool calls: name, code, status and response of each."""

    @property
    def gold(self) -> str:
        """Answer of the row."""
        return str(self.row["answer"])


class TaskRewards:
    """The rewards of a job."""

    def __init__(self, specs: Sequence[RewardSpec] = ()) -> None:
        """`specs`: `spec.rewards`; the first is that of rows without a name; empty: mathematics.

        Reads the checkers' files. Raises SourceError for a file that cannot be used.
        """
        self._rules = {spec.name: spec for spec in specs}
        self._default = specs[0] if specs else RewardSpec(name="math")
        self.programs = {spec.name: _checker_program(Path(spec.source)) for spec in specs if spec.source}

    @property
    def is_default(self) -> bool:
        """Whether the job sets no rewards: an environment then gives its own."""
        return not self._rules

    def rule(self, name: str) -> RewardSpec:
        """Return the reward of a row that gives this name; empty: the first. Raises ValueError for an unknown name."""
        if not name:
            return self._default
        if name not in self._rules:
            raise ValueError(f"unknown reward {name!r}; the job has {', '.join(self._rules) or 'none'}")
        return self._rules[name]

    def check_row(self, reward: str, answer: str, data: str) -> None:
        """Raise ValueError for a row that its reward cannot grade. `data`: as `Problem.data`."""
        rule = self.rule(reward)
        if rule.type == "Numeric":
            check_unit(_gold_quantity(rule, answer).unit)
        if rule.type == "Choice" and not is_choice(answer):
            raise ValueError(f"reward {rule.name}: the answer must be a letter, got {answer[:80]!r}")
        if rule.type == "Tests":
            _check_tests(rule, data)

    async def grade(self, response: Response, reward: str, *, judge: SnippetRunner) -> Grade:
        """Return the verdict on a complete response by the reward with that name. Raises the error of `judge.run`."""
        rule = self.rule(reward)
        if rule.type == "Math":
            return await grade(response.model_text, response.last_turn, response.gold, judge=judge)
        if rule.type == "Program":
            return await self._run_checker(rule, response, judge)
        if rule.type == "Tests":
            return await _run_tests(rule, response, judge)
        answer = _final_answer(response.model_text)
        if answer is None:
            return _no_answer(rule)
        correct = _COMPARISONS[rule.type](rule, answer, response.gold)
        return _graded(rule, answer, float(correct), "")

    async def _run_checker(self, rule: RewardSpec, response: Response, judge: SnippetRunner) -> Grade:
        """Run a user's checker in the sandbox, at most twice. It also decides on a response without an answer."""
        answer = _final_answer(response.model_text)
        transcript = {"text": response.model_text, "calls": [dict(call) for call in response.calls]}
        arguments = {"row": dict(response.row), "answer": answer, "transcript": transcript}
        stdin = function_input(arguments, response.files)
        limits = JudgeLimits(wall_seconds=rule.timeout_seconds)
        fault = ""
        for _ in range(2):
            result = await judge.run(self.programs[rule.name], stdin, limits=limits, script=True)
            value = _checker_value(result)
            if not isinstance(value, str):
                score, reason = value
                return _graded(rule, answer, score, reason)
            fault = value
        return Grade(verdict="internal", answer=answer, score=0.0, reason=f"reward {rule.name}: {fault}")


def _graded(rule: RewardSpec, answer: str | None, score: float, reason: str) -> Grade:
    verdict: Verdict = "correct" if score >= rule.correct_from else "no_answer" if answer is None else "wrong"
    return Grade(verdict=verdict, answer=answer, score=score, correct_from=rule.correct_from, reason=reason)


def _no_answer(rule: RewardSpec) -> Grade:
    return Grade(verdict="no_answer", answer=None, score=0.0, correct_from=rule.correct_from)


def _final_answer(model_text: str) -> str | None:
    """Return the boxed answer, or the whole last answer block if it has no box; None without a block."""
    boxed = extract_answer(model_text)
    if boxed is not None:
        return boxed
    block = last_answer(model_text)
    return block.strip() or None if block is not None and "\\boxed" not in block else None


def _is_exact(_: RewardSpec, answer: str, gold: str) -> bool:
    """Compare texts apart from white space."""
    return answer.split() == gold.split()


def _is_choice(_: RewardSpec, answer: str, gold: str) -> bool:
    """Compare letters: `B`, `(B)`, `B. Paris`, `\\text{B}`; no answer that names several choices."""
    return compare_answers(gold, answer, "choice").outcome == "equal"


def _is_close(rule: RewardSpec, answer: str, gold: str) -> bool:
    """Compare quantities within the tolerances. Raises ValueError for a gold answer that is not a quantity."""
    ours = read_quantity(answer)
    return ours is not None and equal_quantities(
        ours,
        _gold_quantity(rule, gold),
        relative=rule.relative_tolerance,
        absolute=rule.absolute_tolerance,
        needs_unit=rule.needs_unit,
    )


def _gold_quantity(rule: RewardSpec, gold: str) -> Quantity:
    quantity = read_quantity(gold, strict=True)
    if quantity is None:
        raise ValueError(f"reward {rule.name}: the answer of the row is not a number with a unit: {gold[:80]!r}")
    return quantity


_COMPARISONS = {"Exact": _is_exact, "Choice": _is_choice, "Numeric": _is_close}


async def _run_tests(rule: RewardSpec, response: Response, judge: SnippetRunner) -> Grade:
    """Run the answer, a program, as a script on each test of the row. The score is the share of passed tests.

    The outputs are compared here: the program cannot write its own result. `data` of the row is `{tests: [{input,
    output}]}`.
    """
    text = response.model_text
    code = _program(text) if len(text) <= INLINE_TEXT else await asyncio.to_thread(_program, text)
    if not code:
        return _no_answer(rule)
    tests = response.row["data"]["tests"]
    failed = []
    for number, test in enumerate(tests, start=1):
        most_bytes = max(JudgeLimits().output_bytes, 2 * len(test["output"].encode()))
        limits = JudgeLimits(wall_seconds=rule.timeout_seconds, output_bytes=most_bytes)
        result = await judge.run(code, test["input"], limits=limits, script=True)
        if result.status != "ok":
            failed.append(f"test {number}: {result.status}")
        elif not await _has_same_words(result.stdout, test["output"]):
            failed.append(f"test {number}: wrong output")
    answer = _final_answer(text) or code
    return _graded(rule, answer, 1 - len(failed) / len(tests), "; ".join(failed[:4]))


def _program(model_text: str) -> str | None:
    """Return the program of the answer; None without an answer. White space at its start has a meaning.

    A brace in the program may have ended the box too early, or left it open: then the block has the whole program.
    """
    boxed, block = extract_answer(model_text), last_answer(model_text) or ""
    in_block, in_box = answer_program(block), answer_program(boxed) if boxed else None
    if in_box and not (in_block or "").startswith(in_box.rstrip("\n")):
        return in_box
    whole = textwrap.dedent(block).strip() if "\\boxed" not in block else None
    return in_block or boxed or whole


def _check_tests(rule: RewardSpec, data: str) -> None:
    """Raise ValueError unless `data` has tests that a program can pass by its standard input and output."""
    fields: Any = json.loads(data) if data.startswith("{") else {}
    tests = fields.get("tests")
    shape = isinstance(tests, list) and all(isinstance(test, dict) for test in tests)
    texts = [test.get(name) for test in tests for name in ("input", "output")] if tests and shape else [None]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"reward {rule.name}: data.tests must be a list of {{input, output}}, both texts")
    for name, known in spelled(fields, tuple(_OTHER_TESTS)):
        if fields[name] and fields[name] not in _STANDARD_FILES:
            raise ValueError(f"reward {rule.name}: data.{name} {_OTHER_TESTS[known]}")
    if not any(test["output"].strip() for test in tests):
        raise ValueError(f"reward {rule.name}: no test has an output, so that a program without any passes: add a test")
    for number, test in enumerate(tests, start=1):
        for name, value in test.items():
            is_kind = name in _KIND_FIELDS and value in _STANDARD_KINDS
            if name not in ("input", "output") and value is not None and not is_kind:
                raise ValueError(
                    f"reward {rule.name}: {name} of test {number} is {value!r}: a test has only input and output, for "
                    "standard input and output; the time limit is timeoutSeconds of the reward"
                )
        for name, limit in (("input", MAX_STDIN_BYTES), ("output", MAX_OUTPUT_BYTES // 2)):
            if (size := len(test[name].encode(errors="replace"))) > limit:
                raise ValueError(
                    f"reward {rule.name}: the {name} of test {number} has {size:,} bytes; the limit is {limit:,}: "
                    "remove the test"
                )


async def _has_same_words(output: str, expected: str) -> bool:
    """Return whether texts are equal apart from white space. A thread compares long ones, in short steps."""
    if len(output) + len(expected) <= LONG_TEXT:
        return output.split() == expected.split()
    return await asyncio.to_thread(_same_words, output, expected)


def _same_words(first: str, second: str) -> bool:
    pairs = itertools.zip_longest(_WORD.finditer(first), _WORD.finditer(second))
    return all(match and other and match[0] == other[0] for match, other in pairs)


def _checker_program(path: Path) -> str:
    module, sources = read_sources(path)
    return function_program(module, sources, CHECKER_FUNCTION, scores=True)


def _checker_value(result: SnippetResult) -> tuple[float, str] | str:
    """Return score and reason of a finished checker, or its fault in words."""
    if result.status != "ok":
        return f"the checker ended with status {result.status}: {result.stderr.strip()[-300:]}"
    try:
        value = json.loads(result.stdout)
        score, reason = float(value["score"]), str(value["reason"])
    except (ValueError, TypeError, KeyError):
        return f"the checker printed no score: {result.stdout[:100]!r}"
    if not (math.isfinite(score) and 0 <= score <= 1):
        return f"the checker returned {score}; a score must be in [0, 1]"
    return score, reason[:500]
