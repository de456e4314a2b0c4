"""Prints the rates of the verifier on case files: `python verify/rates.py FILE...`.

A file has one line of JSON per pair, as in tests/cases. The rates of math-verify are printed too if it is installed.
The last lines are the pairs with another verdict than the file.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rstar2_verify import verify


def math_verify() -> Callable[[str, str], bool] | None:
    """Return the comparison of math-verify with its defaults; None if it is not installed."""
    try:
        import math_verify as library
    except ImportError:
        return None

    def equal(known: str, answer: str) -> bool:
        try:
            return bool(library.verify(library.parse(f"${known}$"), library.parse(f"${answer}$")))
        except Exception:  # its parser raises errors of many kinds
            return False

    return equal


def rates(cases: Sequence[dict[str, Any]], equal: Callable[[str, str], bool]) -> tuple[str, list[dict[str, Any]]]:
    """Return a line with the rates and CPU times, and the cases with another verdict."""
    times, wrong = [], []
    for case in cases:
        start = time.process_time()
        if equal(case["known"], case["answer"]) != case["equal"]:
            wrong.append(case)
        times.append((time.process_time() - start) * 1000)
    times.sort()
    parts = []
    for kind, word in ((True, "accepted"), (False, "refused")):
        count = sum(case["equal"] is kind for case in cases)
        missed = sum(case["equal"] is kind for case in wrong)
        parts.append(f"{word} {count - missed} of {count} ({1 - missed / max(count, 1):.2%})")
    p50, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
    return f"{', '.join(parts)}; CPU p50 {p50:.2f} ms, p99 {p99:.1f} ms", wrong


def main(paths: Sequence[str]) -> None:
    """Print the rates of each file."""
    baseline = math_verify()
    for path in paths:
        cases = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
        line, wrong = rates(cases, lambda known, answer: verify(known, answer).outcome == "equal")
        print(f"{path}: {line}")
        if baseline:
            print(f"  math-verify: {rates(cases, baseline)[0]}")
        for case in wrong:
            print(f"  {'not accepted' if case['equal'] else 'accepted'}: {case['answer']!r} for {case['known']!r}")


if __name__ == "__main__":
    main(sys.argv[1:])
