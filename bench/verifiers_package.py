"""Compares pairs of answers with a verifier of PyPI. `bench.verifiers` runs it with the Python of the verifier's venv.

`python verifiers_package.py NAME` reads lines `{known, answer}` and prints a line per pair: whether the verifier
accepts it, or null if it raised an error or ran for more than five seconds, and its CPU time in milliseconds.
"""

import importlib
import importlib.util
import json
import signal
import sys
import time
import types
from collections.abc import Callable
from contextlib import contextmanager, redirect_stdout
from typing import Any

SECONDS = 5
"""Limit of a pair."""
Compare = Callable[[str, str], bool]


def stub_verl() -> None:
    """Replace the packages around verl's scorers: their import needs Ray, PyTorch and Transformers."""
    spec = importlib.util.find_spec("verl")
    assert spec is not None and spec.submodule_search_locations is not None
    (folder,) = spec.submodule_search_locations
    for name in ("verl", "verl.utils", "verl.utils.reward_score"):
        package: Any = types.ModuleType(name)
        package.__path__ = ["/".join((folder, *name.split(".")[1:]))]
        sys.modules[name] = package
    functional: Any = types.ModuleType("verl.utils.py_functional")
    functional.timeout_limit = lambda *_, **__: lambda function: function
    sys.modules[functional.__name__] = functional


def mathruler() -> Compare:
    """The grader of EasyR1: the rules of PRM800K with SymPy."""
    grade = importlib.import_module("mathruler.grader").grade_answer
    return lambda known, answer: bool(grade(answer, known))


def verl_math() -> Compare:
    """verl's scorer of MATH: the texts without their notation."""
    stub_verl()
    return importlib.import_module("verl.utils.reward_score.math_reward").is_equiv


def verl_prime() -> Compare:
    """verl's scorer of PRIME: the rules of PRM800K, then its own comparison with SymPy."""
    stub_verl()
    grade = importlib.import_module("verl.utils.reward_score.prime_math").grade_answer
    return lambda known, answer: bool(grade(answer, known))


def latex2sympy2() -> Compare:
    """SymPy alone: both texts parsed as LaTeX, and their difference simplified."""
    parse = importlib.import_module("latex2sympy2").latex2sympy
    simplify = importlib.import_module("sympy").simplify

    def compare(known: str, answer: str) -> bool:
        first, second = parse(known), parse(answer)
        return bool(first == second or simplify(first - second) == 0)

    return compare


VERIFIERS: dict[str, Callable[[], Compare]] = {
    "mathruler": mathruler,
    "verl math_reward": verl_math,
    "verl prime_math": verl_prime,
    "latex2sympy2": latex2sympy2,
}


class LimitError(BaseException):
    """The time of a pair is used up. No handler of a verifier catches it."""


def _exceeded(*_: object) -> None:
    raise LimitError


@contextmanager
def limited() -> Any:
    """Limit the time of a pair."""
    signal.signal(signal.SIGALRM, _exceeded)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def main(name: str) -> None:
    """Print the verdict and the time of each pair of the standard input."""
    compare = VERIFIERS[name]()
    for line in sys.stdin:
        pair = json.loads(line)
        start = time.process_time()
        accepted: bool | None = None
        try:
            with redirect_stdout(sys.stderr), limited():
                accepted = bool(compare(pair["known"], pair["answer"]))
        except (Exception, LimitError):  # parsers raise errors of many kinds
            accepted = None
        print(json.dumps([accepted, (time.process_time() - start) * 1000]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
