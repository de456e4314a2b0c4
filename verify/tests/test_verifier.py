"""The interface: verdicts with reasons and typed values, kinds, the command, the adapter of math-verify, and limits."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import rstar2_verify
from rstar2_verify import verify
from rstar2_verify.cli import main
from rstar2_verify.math_verify import parse
from rstar2_verify.math_verify import verify as math_verify


def test_verdict_has_typed_values() -> None:
    """A verdict names the outcome, a reason, and the typed value of both sides."""
    verdict = verify("5\\text{ m/s}", "v = 5 m/s")
    assert verdict.outcome == "equal"
    assert verdict.known is not None and verdict.known.unit == (("m", 1), ("s", -1))
    assert verdict.answer is not None and verdict.answer.kind == "relation"


@pytest.mark.parametrize(
    ("kind", "known", "answer", "outcome"),
    [
        ("choice", "B", "Option B", "equal"),
        ("choice", "A", "A or B", "different"),
        ("choice", "A", "A car moves", "different"),
        ("text", "\\text{even}", "Even.", "equal"),
        ("text", "\\text{even}", "odd", "different"),
    ],
)
def test_kind_limits_the_comparison(kind: str, known: str, answer: str, outcome: str) -> None:
    """A kind compares choices or words only."""
    assert verify(known, answer, kind).outcome == outcome


def test_command_explains_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints the outcome, its reason and both values; its exit code is the outcome."""
    assert main(["\\frac12", "0.5", "--explain"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "equal",
        "reason: the values are equal",
        "known:  div(number 1, number 2)",
        "answer: number 1/2",
    ]
    assert main(["\\frac12", "0.6"]) == 1


def test_adapter_has_the_functions_of_math_verify() -> None:
    """`parse` reads the last box, and `verify` compares lists of answers."""
    assert math_verify(parse("\\frac12"), parse("Hence $\\boxed{0.5}$."))
    assert not math_verify(parse("\\frac12"), parse("\\boxed{0.25}"))


HOSTILE = [
    "(" * 10_000,
    "{" * 5_000 + "}" * 5_000,
    "~" * 1_020,
    "\\frac" * 200,
    "9" * 1_000 + "!" * 20,
    "9^{9^{9^{9}}}",
    "e^{10^{14}}-e^{10^{14}}+5",
    "\\prod_{i=1}^{10^9} i",
    "\\sum_{i=1}^{10^9}\\sum_{j=1}^{10^9} ij",
    "\\sqrt{" * 300 + "2" + "}" * 300,
    "\\text{" * 100 + "a" + "}" * 100,
    "1," * 500,
    "x" * 1_000,
    "+-" * 500,
    "\\begin{pmatrix}" * 50,
    "10^{100000}!",
    "\x00\ud800",
]


@pytest.mark.parametrize("answer", HOSTILE, ids=lambda answer: ascii(answer[:20]))
def test_hostile_answers_are_decided_soon(answer: str) -> None:
    """A hostile answer is different, within a second of CPU time and without an exception."""
    start = time.process_time()
    verdict = verify("5", answer)
    assert verdict.outcome == "different"
    assert time.process_time() - start < 5


@pytest.mark.parametrize("mark", ["~", "°", "~ ", "^\\circ"])
def test_repeated_marks_block_no_caller(mark: str) -> None:
    """A box of 1,020 blanks or degrees once took one to two seconds; it takes some milliseconds."""
    for known in ("5", "60^\\circ", "x+1"):
        seconds = []
        for _ in range(3):  # the collection of a large process's garbage can be in one of them
            start = time.process_time()
            assert verify(known, mark * (1_020 // len(mark))).outcome == "different"
            seconds.append(time.process_time() - start)
        assert min(seconds) < 0.5


def test_import_is_quick_and_small() -> None:
    """The package imports neither SymPy nor any package other than mpmath."""
    code = "import sys, rstar2_verify; print(sorted({'sympy', 'antlr4', 'numpy'} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(Path(rstar2_verify.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "[]\n"
