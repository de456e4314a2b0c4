"""The entry point inside a sandbox: prints the verdict on one answer, within a limit of CPU time.

The limit counts the CPU time of this process, so that a slow machine decides like a fast one. A check that exceeds it
prints `undecided`, never `wrong`.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import sys
from typing import Any

from .verifier import verify

CPU_SECONDS = 10.0
_GRACE_SECONDS = 5
"""CPU time after which the kernel ends a check that a long operation in C keeps from its signal."""
_PRINTED = {"equal": "correct", "different": "wrong", "undecided": "undecided"}


class LimitExceeded(BaseException):
    """The CPU time is used up. Not an Exception, so that no handler for errors of a comparison catches it."""


def _exceeded(*_: Any) -> None:
    raise LimitExceeded


def main(known: str, answer: str) -> None:
    """Print the verdict on an answer: `correct`, `wrong` or `undecided`."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime + CPU_SECONDS) + _GRACE_SECONDS
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    signal.signal(signal.SIGPROF, _exceeded)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        printed = _PRINTED[verify(known, answer).outcome]
    except LimitExceeded:
        printed = "undecided"
    except Exception as error:  # an error of this package is never a wrong answer
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        printed = "undecided"
    signal.setitimer(signal.ITIMER_PROF, 0)
    print(printed)


def warm_up() -> None:
    """Compare typical answers once, so that a warm interpreter has all caches filled. Sets no limit."""
    for known, answer in (
        ("2.5", r"\frac{7}{3}"),
        (r"6\sqrt{2}", r"3\sqrt{8}"),
        ("x^2+2x+1", "(x+1)^2"),
        (r"2, 1+\sqrt{3}, 1-\sqrt{3}", r"\{1\pm\sqrt{3}, 2\}"),
        (r"1<x\le 2 \text{ or } x\ge 3", r"(1,2]\cup[3,\infty)"),
        (r"\begin{pmatrix} 1 & 2 \\ 3 & \pi \end{pmatrix}", r"\sin^2 t+\ln 2+e^{-t}"),
        (r"5\text{ m/s}", "2x+3y=1"),
    ):
        verify(known, answer)
