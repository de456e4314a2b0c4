"""The lane of a snippet, from its imports."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2_train.judge.executor import program
from rstar2_train.judge.sandbox.rootfs import LANE_PACKAGES
from rstar2_train.judge.worker.lanes import MAX_SCANNED, choose_lane

LANES = ("bare", "std", "numpy", "sympy")


@pytest.mark.parametrize(
    ("code", "lane"),
    [
        ("print(1)", "bare"),
        ("import math", "bare"),
        ("import numpy", "numpy"),
        ("import numpy.linalg as la", "numpy"),
        ("from numpy import array", "numpy"),
        ("import numpy, sympy", "sympy"),
        ("def f():\n    if 1:\n        from sympy.abc import x", "sympy"),
        ("import mpmath", "sympy"),
        ("import math, random", "std"),
        ("from collections import Counter", "std"),
        ("x = 'import numpy'", "bare"),
        ("# numpy\nimport numpyro", "std"),
        ("from .numpy import x", "bare"),
        ("import numpy\nx = (", "bare"),
        ("import numpy\0", "bare"),
        ("numpy = " + "(" * 500 + ")" * 500, "bare"),
        ("import numpy\n" + "#" * MAX_SCANNED, "bare"),
    ],
)
def test_choose_lane_follows_the_imports(code: str, lane: str) -> None:
    """Imports at any depth count; text that is not an import, or not Python, does not."""
    assert choose_lane(code, LANES) == lane


def test_choose_lane_skips_missing_lanes() -> None:
    """A lane that the sandbox does not have is not chosen."""
    assert choose_lane("import sympy, numpy", ("bare", "numpy")) == "numpy"
    assert choose_lane("import sympy", ("bare",)) == "bare"


@given(st.text(max_size=200))
def test_choose_lane_accepts_any_text(code: str) -> None:
    """No text raises an error."""
    assert choose_lane("numpy\n" + code, LANES) in LANES


def test_lanes_all_have_a_warm_up() -> None:
    """Each lane of the root has a warm-up program."""
    assert set(program.WARM_UP) == set(LANE_PACKAGES)
