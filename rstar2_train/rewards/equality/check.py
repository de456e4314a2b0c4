"""The entry point inside the sandbox: compares pairs of an answer and a gold answer, within a limit of CPU time.

The program of `rewards.equality_program` calls `main`. The limit counts the CPU time of this process, so that a slow
machine decides like a fast one. A check that exceeds it prints `undecided`, never `wrong`.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import sys
from collections.abc import Sequence
from typing import Any

from .commands import Unsupported
from .compare import equal
from .values import Undecided

CPU_SECONDS = 10.0
"""CPU time of all pairs together."""
_GRACE_SECONDS = 5
"""CPU time after which the kernel ends a check that a long operation in C keeps from its signal."""
_DEPTH = 20_000


class LimitExceeded(BaseException):
    """The CPU time is used up. Not an Exception, so that no handler for errors of a comparison catches it."""


def _exceeded(*_: Any) -> None:
    raise LimitExceeded


def verdict(pairs: Sequence[tuple[str, str]]) -> str:
    """Return `correct` if one of the (answer, gold) pairs is equal, `wrong` if none is, else `undecided`."""
    undecided = False
    for answer, gold in pairs:
        try:
            if compared(answer, gold):
                return "correct"
        except Undecided:
            undecided = True
        except Exception as error:  # too deep, too long, or an error of this package: never a wrong answer
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            undecided = True
    return "undecided" if undecided else "wrong"


def compared(answer: str, gold: str) -> bool:
    """Return whether two answers are equal; math-verify reads those with an operator of analysis."""
    try:
        return equal(answer, gold)
    except Unsupported:
        return _equal_by_library(answer, gold)


def _equal_by_library(answer: str, gold: str) -> bool:
    """Return whether the exact difference of both is zero, as math-verify's parser reads them."""
    import math_verify
    import sympy

    config = [math_verify.LatexExtractionConfig(boxed_match_priority=0)]
    sides = []
    for text in (answer, gold):
        read = math_verify.parse("\\boxed{" + text + "}", config, parsing_timeout=None, fallback_mode="no_fallback")
        if not read:
            return False
        sides.append(read[0])
    try:
        return bool(sides[0] == sides[1] or sympy.simplify((sides[0] - sides[1]).doit()) == 0)
    except (TypeError, ValueError, AttributeError, NotImplementedError):
        return False


def main(pairs: Sequence[tuple[str, str]]) -> None:
    """Print the verdict on the (answer, gold) pairs: `correct`, `wrong` or `undecided`."""
    sys.setrecursionlimit(_DEPTH)
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime + CPU_SECONDS) + _GRACE_SECONDS
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    signal.signal(signal.SIGPROF, _exceeded)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        printed = verdict(pairs)
    except LimitExceeded:
        printed = "undecided"
    signal.setitimer(signal.ITIMER_PROF, 0)
    print(printed)


def warm_up() -> None:
    """Compare typical answers once, so that a warm interpreter has all caches filled. Sets no limit."""
    for answer, gold in (
        (r"\frac{7}{3}", "2.5"),
        (r"3\sqrt{8}", r"6\sqrt{2}"),
        ("(x+1)^2", "x^2+2x+1"),
        (r"\{1\pm\sqrt{3}, 2\}", r"2, 1+\sqrt{3}, 1-\sqrt{3}"),
        (r"(1,2]\cup[3,\infty)", r"1<x\le 2 \text{ or } x\ge 3"),
        (r"\sin^2 t+\ln 2+e^{-t}", r"\begin{pmatrix} 1 & 2 \\ 3 & \pi \end{pmatrix}"),
        ("2x+3y=1", "4x+6y=2"),
    ):
        verdict([(answer, gold)])
