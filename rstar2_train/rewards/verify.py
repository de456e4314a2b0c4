r"""Decides whether a final answer equals the gold answer: the reward of eq. 3.

After extraction. Two numbers, two words or two numerals of a base are compared here, as text, which decides nearly all
training data (the RL set has integer answers only). Whatever needs a parser (`10/2`, `x=5`, `\frac{1}{2}`) is untrusted
input to a large library, so it runs as a snippet in the judge's sandbox, with its limits. A failure of the judge is
`internal`: the trajectory is retried or excluded, never scored 0. Pure apart from `verify`, which calls the judge it is
given. What counts as equal: docs/verification.md.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.rewards.extract import extract_answer
from rstar2_train.rewards.normalize import is_words, normalize, says_more, words
from rstar2_train.rewards.verdict import Verdict

_NUMBER = re.compile(r"([+-]?)\s*(\d+|\d{1,3}(?:,\d{3})+)?(?:\.(\d*))?", re.ASCII)
_SPACING = re.compile(r"\\[,;:! ]|~|\{,\}")
_MAX_EXTRA_CHARACTERS = 1024
"""An answer so much longer than the gold one is wrong without asking a parser."""
PARSER_LIMITS = JudgeLimits(wall_seconds=15)
"""Limits of a parser task: importing the parser alone takes seconds where no warm process has it."""

_TASK = Path(__file__).with_name("math_verify_snippet.py")
_PRINTED: dict[str, Verdict] = {"correct": "correct", "wrong": "wrong", "timeout": "timeout"}


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


class SnippetResult(Protocol):
    """What is read of a finished judge task."""

    @property
    def status(self) -> str:
        """How it ended, as the judge's trusted side saw it."""

    @property
    def stdout(self) -> str:
        """What it printed."""

    @property
    def exit_code(self) -> int | None:
        """Exit status of its process, minus the signal number when a signal ended it."""


class SnippetRunner(Protocol):
    """What `verify` needs of a judge client."""

    async def run(self, code: str, stdin: str = "", *, limits: JudgeLimits | None = None) -> SnippetResult:
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
    """`correct` or `wrong` where text or numbers decide, else None: a parser must."""
    if answer.strip() == gold.strip() or (number(answer) or answer) == (number(gold) or gold):
        return "correct"
    if len(answer) > len(gold) + _MAX_EXTRA_CHARACTERS:
        return "wrong"
    ours, theirs = normalize(answer), normalize(gold)
    if is_words(gold):
        return "correct" if words(answer) == words(gold) else "wrong"
    if ours.base or theirs.base:
        same = ours.base in (theirs.base or "10", "") and (number(ours.value) or ours.value) == theirs.value
        return "correct" if same else "wrong"
    if ours.unit and theirs.unit and ours.unit != theirs.unit:
        return "wrong"
    if ours.value == theirs.value:
        return "correct"
    if says_more(ours.value) and not says_more(theirs.value):
        return "wrong"
    first, second = number(ours.value), number(theirs.value)
    if first is not None and first == second:
        return "correct"
    if first is None or second is None or "%" in (ours.unit, theirs.unit):
        return None
    return "wrong"


def canonical_integer(text: str) -> str | None:
    """An integer as `-?digits` without leading zeros, or None when `text` is not one. Written as `number` takes it."""
    return None if "." in text else number(text)


def number(text: str) -> str | None:
    r"""An integer or a finite decimal as `-?digits[.digits]` without needless zeros, or None when `text` is neither.

    Takes signs, surrounding dollars, thousands commas (`1,234.50`, `1{,}234`, `1\,234`), a Unicode minus. Text in, text
    out: a number of any length costs nothing, and Python's limit on long ones never bites.
    """
    plain_text = _SPACING.sub(lambda mark: "," if mark.group() == "{,}" else "", text.strip().strip("$"))
    match = _NUMBER.fullmatch(plain_text.replace("\N{MINUS SIGN}", "-").strip())
    if match is None or not (match[2] or match[3]):
        return None
    whole, part = (match[2] or "").replace(",", "").lstrip("0") or "0", (match[3] or "").rstrip("0")
    digits = f"{whole}.{part}" if part else whole
    return f"-{digits}" if match[1] == "-" and digits != "0" else digits


def parser_snippet(answer: str, gold: str) -> str:
    """Python that compares both with math-verify and prints `correct`, `wrong` or `timeout`; for the judge alone.

    Both strings enter as literals (`repr`), so that nothing in them is code. Where one has a percent sign and the other
    has none, 5 % may stand for 5 and for 5/100.
    """
    ours, theirs = normalize(answer), normalize(gold)
    pairs = [(ours.value, theirs.value)]
    if ours.unit == "%" != theirs.unit:
        pairs.append((rf"\frac{{{ours.value}}}{{100}}", theirs.value))
    elif theirs.unit == "%" != ours.unit:
        pairs.append((ours.value, rf"\frac{{{theirs.value}}}{{100}}"))
    return f"{_task()}\n\nmain({pairs!r})\n"


@cache
def _task() -> str:
    return _TASK.read_text(encoding="utf-8")


def verdict_of(result: SnippetResult) -> Verdict:
    """The verdict that a finished parser task stands for.

    An answer on which the parser runs out of time, memory or stack is `timeout` (reward 0: it will do so again);
    a task that could not do its work (no parser in the sandbox, judge trouble) is `internal`.
    """
    if result.status == "ok":
        return _PRINTED.get(result.stdout.strip(), "internal")
    crashed = result.status == "error" and (result.exit_code or 0) < 0
    return "timeout" if crashed or result.status in ("timeout", "memory", "killed", "output_limit") else "internal"


async def verify(model_text: str, gold: str, *, judge: SnippetRunner, attempts: int = 2) -> Score:
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
