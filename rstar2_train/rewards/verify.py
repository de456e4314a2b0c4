r"""Decides whether a final answer equals the gold answer: the reward of eq. 3.

Runs after extraction. Two numbers are compared here as text, which decides nearly all training data (the RL set has
only integer answers). Other forms need a parser (`10/2`, `x=5`, `\frac{1}{2}`). They are untrusted input, so the parser
(the package `rstar2_verify`) runs in the judge's sandbox, with its limits. A check that exceeds its limits is
`undecided`, a failure of the judge is `internal`: both are retried once, then the trajectory is excluded, never scored
0. Pure except for `verify`, which calls the given judge. docs/verification.md defines equality.
"""

from __future__ import annotations

import asyncio
import re
from typing import Protocol

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.rewards.equality_program import NO_PACKAGE, program
from rstar2_train.rewards.extract import extract_answer
from rstar2_train.rewards.verdict import EXCLUDED, Grade, Verdict

_NUMBER = re.compile(r"([+-]?)\s*(\d+|\d{1,3}(?:,\d{3})+)?(?:\.(\d*))?", re.ASCII)
_SPACE = r"(?:\\[,;:! ]|~|\{,\})"
_SPACING = re.compile(rf"(?<!\d){_SPACE}|{_SPACE}(?=\D|$|\d{{3}}(?!\d))")
"""A mark for spacing; between digits only ahead of three of them."""
_CHOICE = re.compile(r"\(?([A-J])\)?|\\text\{\s*\(?([A-J])\)?\s*\}")
"""The letter of a choice, alone."""
_MAX_EXTRA_CHARACTERS = 1024
"""An answer with this many more characters than the gold answer is wrong, without a call of the parser."""
PARSER_LIMITS = JudgeLimits(wall_seconds=120)
"""Limits of a parser call. The check counts CPU time (`rstar2_verify.limited`); this one is for a stuck sandbox."""

_PRINTED: dict[str, Verdict] = {"correct": "correct", "wrong": "wrong", "undecided": "undecided"}


class SnippetResult(Protocol):
    """The result of a judge call."""

    @property
    def status(self) -> str:
        """Status that the judge's trusted side reported."""

    @property
    def stdout(self) -> str:
        """Output of the program."""

    @property
    def stderr(self) -> str:
        """Error output of the program."""

    @property
    def exit_code(self) -> int | None:
        """Exit code of the process; minus the signal number if a signal terminated it."""


class SnippetRunner(Protocol):
    """The part of a judge client that `verify` uses."""

    async def run(
        self, code: str, stdin: str = "", *, limits: JudgeLimits | None = None, script: bool = False
    ) -> SnippetResult:
        """Run a snippet in the sandbox; `script`: as `python FILE` does, without the value of a last expression."""


def compare_text(model_text: str, gold: str) -> tuple[Verdict | None, str | None]:
    """Return verdict and answer of a response without a parser: by text or numbers.

    `model_text`: the text of the model, without tool output. The verdict is None if only a parser can decide.
    """
    answer = extract_answer(model_text)
    return ("no_answer" if answer is None else compare(answer, gold)), answer


def compare(answer: str, gold: str) -> Verdict | None:
    """Return `correct` or `wrong` if equal texts, two numbers or two letters decide, else None: a parser must."""
    numbers = canonical_number(answer), canonical_number(gold)
    if answer.strip() == gold.strip() or (numbers[0] or answer) == (numbers[1] or gold):
        return "correct"
    if None not in numbers:
        return "wrong"
    choices = [_CHOICE.fullmatch(text.strip()) for text in (answer, gold)]
    letters = [choice[1] or choice[2] for choice in choices if choice]
    if len(letters) == 2:
        return "correct" if letters[0] == letters[1] else "wrong"
    if len(answer) > len(gold) + _MAX_EXTRA_CHARACTERS:
        return "wrong"
    return None


def canonical_integer(text: str) -> str | None:
    """Return an integer as `-?digits` without leading zeros, or None. Accepts the notations of `canonical_number`."""
    return None if "." in text else canonical_number(text)


def canonical_number(text: str) -> str | None:
    r"""Return an integer or a finite decimal as `-?digits[.digits]` without redundant zeros; None for other texts.

    Accepts signs, surrounding dollars, thousands commas (`1,234.50`, `1{,}234`, `1\,234`) and a Unicode minus. It works
    on text, so that very long numbers are cheap and do not exceed Python's limit on integers.
    """
    plain_text = _SPACING.sub(lambda mark: "," if mark.group() == "{,}" else "", text.strip().strip("$"))
    match = _NUMBER.fullmatch(plain_text.replace("\N{MINUS SIGN}", "-").strip())
    if match is None or not (match[2] or match[3]):
        return None
    whole, part = (match[2] or "").replace(",", "").lstrip("0") or "0", (match[3] or "").rstrip("0")
    digits = f"{whole}.{part}" if part else whole
    return f"-{digits}" if match[1] == "-" and digits != "0" else digits


def numbered_check(number: int) -> tuple[str, str]:
    """Return a program that compares two answers with a parser, and its output, to measure a judge."""
    n = number + 2
    return program(rf"\frac{{{n + 1}}}{{7}} + 2\sqrt{{{n}}}", rf"2\sqrt{{{n}}} + \frac{{{n + 1}}}{{7}}"), "correct\n"


def parser_verdict(result: SnippetResult) -> Verdict:
    """Return the verdict of a finished parser call.

    A check that exceeds its time, memory or stack is `undecided`. A call that could not run the check (its library is
    not installed, or the judge failed) is `internal`.
    """
    if result.status == "ok":
        return _PRINTED.get(result.stdout.strip(), "internal")
    crashed = result.status == "error" and (result.exit_code or 0) < 0
    exceeded = crashed or result.status in ("timeout", "memory", "killed", "output_limit")
    return "undecided" if exceeded else "internal"


async def verify(model_text: str, gold: str, *, judge: SnippetRunner, tries: int = 2) -> Grade:
    """Return the grade of a response; calls the judge's parser only if text and numbers cannot decide.

    An `undecided` or `internal` call is retried in a fresh process, up to `tries` calls in total; then that is the
    verdict and the caller excludes the trajectory. Raises the error of `judge.run` when the judge is unreachable
    (JudgeUnavailable).
    """
    verdict, answer = compare_text(model_text, gold)
    if verdict is not None or answer is None:
        return Grade.exact(verdict or "no_answer", answer)
    parsed: Verdict = "internal"
    for _ in range(tries):
        result = await judge.run(program(answer, gold), limits=PARSER_LIMITS)
        if result.stdout.strip() == NO_PACKAGE:
            source = await asyncio.to_thread(program, answer, gold, with_package=True)  # the first one takes long
            result = await judge.run(source, limits=PARSER_LIMITS)
        parsed = parser_verdict(result)
        if parsed not in EXCLUDED:
            break
    return Grade.exact(parsed, answer)
