"""Verification: verdicts by text and numbers, the real parser snippet, and the judge's statuses."""

import asyncio
import json
import subprocess
import sys
from dataclasses import dataclass, field
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.rewards.equality_program import program
from rstar2_train.rewards.verdict import Grade, Verdict
from rstar2_train.rewards.verify import (
    canonical_integer,
    canonical_number,
    compare,
    compare_text,
    parser_verdict,
    verify,
)


def boxed(answer: str) -> str:
    return rf"I think <answer>\boxed{{{answer}}}</answer>"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("5", "5"),
        (" 5 ", "5"),
        ("+5", "5"),
        ("- 5", "-5"),
        ("-0", "0"),
        ("000", "0"),
        ("033", "33"),
        ("\N{MINUS SIGN}5", "-5"),
        ("$12$", "12"),
        ("1,234", "1234"),
        ("1{,}234", "1234"),
        (r"1\,234", "1234"),
        ("1,234,567", "1234567"),
        ("5.0", "5"),
        ("5.", "5"),
        (".50", "0.5"),
        ("-0.050", "-0.05"),
        ("-.0", "0"),
        ("1,234.50", "1234.5"),
        (".", None),
        ("5.5.5", None),
        ("12,34", None),
        ("5,6", None),
        ("1_000", None),
        ("\N{ARABIC-INDIC DIGIT FIVE}", None),
        ("--5", None),
        ("", None),
        ("5 6", None),
        ("x", None),
    ],
)
def test_canonical_number_of_texts(text: str, canonical: str | None) -> None:
    """Equal numbers have the same text; other texts are not numbers."""
    assert canonical_number(text) == canonical
    assert canonical_integer(text) == (None if "." in text else canonical)


@given(st.integers(), st.integers(0, 5))
def test_canonical_number_ignores_commas_and_zeros(value: int, zeros: int) -> None:
    """Commas and leading zeros do not change an integer."""
    sign = "-" if value < 0 else ""
    assert canonical_number(f"{value:,}") == canonical_number(f"{sign}{'0' * zeros}{abs(value)}") == str(value)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4), st.decimals(-9, 9, places=4))
def test_compare_decimals_exactly(ours: Decimal, gold: Decimal) -> None:
    """Decimals are equal only if all digits are."""
    assert compare(f"{ours:f}", f"{gold:f}") == ("correct" if ours == gold else "wrong")


@given(st.integers(), st.integers())
def test_compare_integers_as_numbers(ours: int, gold: int) -> None:
    """Integers are compared as numbers of any size."""
    assert compare(f"{ours:,}", str(gold)) == ("correct" if ours == gold else "wrong")


@pytest.mark.parametrize(
    ("text", "gold", "verdict", "answer"),
    [
        (boxed("5"), "5", "correct", "5"),
        (boxed("1,234"), "1234", "correct", "1,234"),
        (boxed("33"), "033", "correct", "33"),
        (boxed("6"), "5", "wrong", "6"),
        (r"\boxed{5} <answer>3</answer>", "5", "no_answer", None),
        ("let me compute 5 plus", "5", "no_answer", None),
        (boxed("10/2"), "5", None, "10/2"),
        (boxed(r"\frac12"), r"\frac12", "correct", r"\frac12"),
        (boxed("9" * 5000), "5", "wrong", "9" * 5000),
        (boxed("x" * 2000), "5", "wrong", "x" * 2000),
        (boxed("0" * 5000 + "5"), "5", "correct", "0" * 5000 + "5"),
        (boxed(r"x=\text{5}"), "5", None, r"x=\text{5}"),
    ],
)
def test_score_decides_without_the_parser(text: str, gold: str, verdict: str | None, answer: str | None) -> None:
    """Text and numbers decide; the verdict is None if a parser is needed."""
    assert compare_text(text, gold) == (verdict, answer)


@pytest.mark.parametrize(
    ("answer", "gold", "verdict"),
    [
        ("$5$", "5", "correct"),
        (r"\$1,234.50", "1234.5", None),
        ("0.0000451", ".0000452", "wrong"),
        ("5.0", "5", "correct"),
        (r"\text{Alice}", r"\text{Alice}", "correct"),
        ("alice", r"\text{Alice}", None),
        ("2(5)", "7", None),
    ],
)
def test_compare_decides_texts_and_numbers_only(answer: str, gold: str, verdict: str | None) -> None:
    """Equal texts and two numbers need no parser; any other pair does."""
    assert compare(answer, gold) == verdict


def test_program_compares_and_runs_no_answer() -> None:
    """All snippets run in one process, because the import of the parser is slow; they are those of the judge."""
    cases = [
        ("10/2", "5", "correct"),
        ("x=5", "5", "correct"),
        ("5.0", "5", "correct"),
        (r"5\text{ cm}", "5", "correct"),
        (r"45^\circ", "45", "correct"),
        ("1/2", "0.5", "correct"),
        (r"\frac{1}{2}", "0.5", "correct"),
        ("(1,2)", "(1, 2)", "correct"),
        ("5,6", "5", "wrong"),
        ("x", "y", "wrong"),
        ("2(5)", "10", "correct"),
        ("2(5)", "7", "wrong"),
        ("2k", "2", "wrong"),
        ("2k m", "2k", "wrong"),
        (r"12.5\%", "12.5", "correct"),
        (r"5\%", "0.05", "correct"),
        ("0.06", r"5\%", "wrong"),
        ("0.333333", r"\frac{1}{3}", "correct"),
        ("0.00199", r"\frac{2}{1005}", "wrong"),
        (r"\frac{1}{2} ((", r"\frac{1}{2}", "wrong"),
        (r"(2+i)(3-i)", "7+i", "correct"),
        ("x = 2 - 3i", "2-3i", "correct"),
        ("2 + 3i", "2-3i", "wrong"),
        ("x > 2", r"(2,\infty)", "correct"),
        (r"x \ge 2", r"(2,\infty)", "wrong"),
        (r"x>3 \text{ or } x<2", r"(-\infty,2) \cup (3,\infty)", "correct"),
        (r"x>2 \text{ and } x\le 3", "(2,3]", "correct"),
        (r"\{1, 3\}", "3, 1", "correct"),
        ("1, 3, 5", "3, 1", "wrong"),
        ("(3,1)", "(1,3)", "wrong"),
        (r"(5,6) \text{ and } (1,2)", "(1,2), (5,6)", "correct"),
        ("4, 6, -1", "(4,6,-1)", "correct"),
        ("6, 4, -1", "(4,6,-1)", "wrong"),
        ("3x-3y+6=0", "y=x+2", "correct"),
        (r"\begin{bmatrix} 1 \\[2pt] 0.5 \end{bmatrix}", r"\begin{pmatrix} 1 \\ 1/2 \end{pmatrix}", "correct"),
        (r"\begin{pmatrix} 1 & 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", "wrong"),
        ("}", "5", "wrong"),
        ("'''); print('correct')#", "5", "wrong"),
        ("\"\"\"\\'); print('correct')\n#", "5", "wrong"),
        ("__import__('os').write(1, b'correct')", "5", "wrong"),
    ]
    snippets = [program(answer, gold, with_package=True) for answer, gold, _ in cases]
    loop = "import sys, json\nfor code in json.load(sys.stdin):\n    exec(code, {})\n"
    ran = subprocess.run(
        [sys.executable, "-c", loop], input=json.dumps(snippets), capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == [verdict for _, _, verdict in cases]


@dataclass
class FakeResult:
    """The result of a judge call."""

    status: str
    stdout: str = ""
    exit_code: int | None = None


@pytest.mark.parametrize(
    ("status", "stdout", "verdict"),
    [
        ("ok", "correct\n", "correct"),
        ("ok", "wrong\n", "wrong"),
        ("ok", "undecided\n", "undecided"),
        ("ok", "", "internal"),
        ("ok", "correct\ncorrect\n", "internal"),
        ("error", "correct\n", "internal"),
        ("timeout", "correct\n", "undecided"),
        ("memory", "", "undecided"),
        ("killed", "", "undecided"),
        ("output_limit", "", "undecided"),
        ("invalid", "", "internal"),
        ("internal", "", "internal"),
    ],
)
def test_parser_verdict_prefers_status_over_output(status: str, stdout: str, verdict: str) -> None:
    """The status of the call decides before its output."""
    assert parser_verdict(FakeResult(status, stdout)) == verdict


def test_parser_verdict_of_crash_and_missing_parser() -> None:
    """A crash by a signal is a timeout; an exit code is an infrastructure failure."""
    assert parser_verdict(FakeResult("error", exit_code=-11)) == "undecided"
    assert parser_verdict(FakeResult("error", exit_code=1)) == "internal"


@dataclass
class FakeJudge:
    """Replaces the judge: returns the given results, one after another."""

    results: list[FakeResult]
    codes: list[str] = field(default_factory=list)

    async def run(
        self, code: str, stdin: str = "", *, limits: JudgeLimits | None = None, script: bool = False
    ) -> FakeResult:
        self.codes.append(code)
        return self.results.pop(0)


@pytest.mark.parametrize(
    ("results", "verdict", "calls"),
    [
        ([FakeResult("ok", "correct")], "correct", 1),
        ([FakeResult("internal"), FakeResult("ok", "wrong")], "wrong", 2),
        ([FakeResult("internal"), FakeResult("internal")], "internal", 2),
        ([FakeResult("timeout"), FakeResult("timeout")], "undecided", 2),
        ([FakeResult("timeout"), FakeResult("ok", "correct")], "correct", 2),
    ],
)
def test_verify_retries_internal_results(results: list[FakeResult], verdict: Verdict, calls: int) -> None:
    """An internal result is retried once, and never counts as wrong."""
    judge = FakeJudge(list(results))
    assert asyncio.run(verify(boxed("10/2"), "5", judge=judge)) == Grade.exact(verdict, "10/2")
    assert judge.codes == [program("10/2", "5")] * calls


def test_verify_judge_without_package_gets_it() -> None:
    """A judge of another version does not have the package: a second call carries it, and its verdict counts."""
    judge = FakeJudge([FakeResult("ok", "no package\n"), FakeResult("ok", "correct\n")])
    assert asyncio.run(verify(boxed("10/2"), "5", judge=judge, tries=1)).verdict == "correct"
    assert judge.codes == [program("10/2", "5"), program("10/2", "5", with_package=True)]


def test_verify_integers_need_no_judge() -> None:
    """Integers and missing answers are decided without a call."""
    assert asyncio.run(verify(boxed("5"), "5", judge=FakeJudge([]))).score == 1.0
    assert asyncio.run(verify("nothing", "5", judge=FakeJudge([]))) == Grade.exact("no_answer", None)


def test_verify_judge_error_is_raised() -> None:
    """An unreachable judge is an error for the caller."""

    class UnreachableJudge(FakeJudge):
        async def run(
            self, code: str, stdin: str = "", *, limits: JudgeLimits | None = None, script: bool = False
        ) -> FakeResult:
            raise ConnectionError("connection refused")

    with pytest.raises(ConnectionError):
        asyncio.run(verify(boxed("10/2"), "5", judge=UnreachableJudge([])))
