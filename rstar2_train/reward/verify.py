r"""Decides whether a final answer equals the gold answer: the reward of eq. 3.

After extraction. Two integers are compared here, as text, which decides nearly all training data (the RL set has
integer answers only). Whatever needs a parser (`10/2`, `x=5`, `\frac{1}{2}`) is untrusted input to a large library,
so it runs as a snippet in the judge's sandbox, with its limits. A failure of the judge is `internal`: the trajectory
is retried or excluded, never scored 0. Pure apart from `verify`, which calls the judge it is given.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

from rstar2_train.job.roles import JudgeLimits
from rstar2_train.reward.extract import extract_answer
from rstar2_train.reward.verdict import Verdict

_INTEGER = re.compile(r"([+-]?)\s*(\d+|\d{1,3}(?:,\d{3})+)", re.ASCII)
_SPACING = re.compile(r"\\[,;:! ]|~|\{,\}")
_MAX_EXTRA_CHARACTERS = 1024
"""An answer so much longer than the gold one is wrong without asking a parser."""
PARSER_LIMITS = JudgeLimits(wall_seconds=15)
"""Limits of a parser task: importing the parser alone takes seconds where no warm process has it."""

_SNIPPET = r"""
import sympy
from math_verify import LatexExtractionConfig, parse, verify
answer, gold = {answer}, {gold}
try:
    # LaTeX extraction only: the plain-expression one evaluates Python.
    target, truth = (parse("\\boxed{{" + text + "}}", [LatexExtractionConfig()]) for text in (answer, gold))
    same = bool(truth) and bool(target) and verify(truth, target)
except Exception:
    same = False  # what the parser cannot take is not the gold answer
print("correct" if same else "wrong")
"""


class Score(NamedTuple):
    """The verdict on one response, and the answer it was given for."""

    verdict: Verdict | None
    """None: only a parser can tell (`verify` asks one)."""
    answer: str | None
    """The extracted answer; None when there is none."""

    @property
    def reward(self) -> float:
        """1 when correct, else 0 (eq. 3). Meaningless for `internal`, which must be excluded."""
        return float(self.verdict == "correct")


class Ran(Protocol):
    """What is read of a finished judge task."""

    @property
    def status(self) -> str:
        """How it ended, as the judge's trusted side saw it."""

    @property
    def stdout(self) -> str:
        """What it printed."""


class Judge(Protocol):
    """What `verify` needs of a judge client."""

    async def run(self, code: str, stdin: str = "", *, limits: JudgeLimits | None = None) -> Ran:
        """Run a snippet in the sandbox."""


def score(model_text: str, gold: str) -> Score:
    """Verdict on a response without a parser: exact text, or integer against integer.

    `model_text` is what the model wrote, tool output left out. The verdict is None when only a parser can tell.
    """
    answer = extract_answer(model_text)
    if answer is None:
        return Score("no_answer", None)
    return Score(compare(answer, gold), answer)


def compare(answer: str, gold: str) -> Verdict | None:
    """`correct` or `wrong` where text or integers decide, else None: a parser must."""
    if answer.strip() == gold.strip():
        return "correct"
    ours, theirs = canonical_integer(answer), canonical_integer(gold)
    if ours is not None and theirs is not None:
        return "correct" if ours == theirs else "wrong"
    if len(answer) > len(gold) + _MAX_EXTRA_CHARACTERS:
        return "wrong"
    return None


def canonical_integer(text: str) -> str | None:
    r"""An integer as `-?digits` without leading zeros, or None when `text` is not one.

    Takes signs, surrounding dollars, thousands commas (`1,234`, `1{,}234`, `1\,234`), leading zeros, a Unicode
    minus. Text in, text out: an integer of any length costs nothing, and Python's limit on long ones never bites.
    """
    plain = _SPACING.sub(lambda mark: "," if mark.group() == "{,}" else "", text.strip().strip("$"))
    match = _INTEGER.fullmatch(plain.replace("\N{MINUS SIGN}", "-").strip())
    if match is None:
        return None
    digits = match.group(2).replace(",", "").lstrip("0") or "0"
    return f"-{digits}" if match.group(1) == "-" and digits != "0" else digits


def parser_snippet(answer: str, gold: str) -> str:
    """Python that compares both with math-verify and prints `correct` or `wrong`; for the judge, never run here.

    Both strings enter as literals (`repr`), so that nothing in them is code.
    """
    return _SNIPPET.format(answer=repr(answer), gold=repr(gold)).lstrip()


def verdict_of(result: Ran) -> Verdict:
    """The verdict that a finished parser task stands for.

    An answer on which the parser runs out of time, memory or stack is `timeout` (reward 0: it will do so again);
    a task that could not do its work (no parser in the sandbox, judge trouble) is `internal`.
    """
    if result.status == "ok":
        printed = result.stdout.strip()
        if printed == "correct":
            return "correct"
        return "wrong" if printed == "wrong" else "internal"
    return "timeout" if result.status in ("timeout", "memory", "killed", "output_limit") else "internal"


async def verify(model_text: str, gold: str, *, judge: Judge, attempts: int = 2) -> Score:
    """Verdict on a response, asking the judge's parser only where text and integers cannot decide.

    A task that ends `internal` is repeated, `attempts` in all; then the verdict is `internal` and the caller excludes
    the trajectory. Raises what `judge.run` raises when the judge is out of reach (JudgeUnavailable).
    """
    quick = score(model_text, gold)
    if quick.verdict is not None or quick.answer is None:
        return quick
    code = parser_snippet(quick.answer, gold)
    verdict: Verdict = "internal"
    for _ in range(attempts):
        verdict = verdict_of(await judge.run(code, limits=PARSER_LIMITS))
        if verdict != "internal":
            break
    return Score(verdict, quick.answer)
