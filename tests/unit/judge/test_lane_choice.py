"""The lane of a snippet, from its imports."""

import base64
import time
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2_train.judge.executor import program
from rstar2_train.judge.loadgen import rstar_template
from rstar2_train.judge.sandbox.rootfs import LANE_PACKAGES
from rstar2_train.judge.worker.lanes import MAX_SCANNED, choose_lane

LANES = ("bare", "std", "numpy", "sympy")


def encoded(code: str) -> str:
    """Return a program in base64."""
    return base64.b64encode(code.encode()).decode()


SYMPY = "from sympy import symbols\nprint(symbols('x'))"
COMPRESSED = base64.b64encode(zlib.compress(SYMPY.encode())).decode()


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
        ("import mpmath", "std"),
        ("import math, random", "std"),
        ("from collections import Counter", "std"),
        ("x = 'import numpy'", "bare"),
        ("# numpy\nimport numpyro", "std"),
        ("from .numpy import x", "bare"),
        ("import numpy\nx = (", "numpy"),  # the interpreter reports the error
        ("x = 1; import numpy", "numpy"),
        ("def f(): import numpy", "numpy"),
        ("important(numpy)\nfrom_numpy = 1", "bare"),
        ("raise E from e\nx = (yield from numpy)", "bare"),
        ("x = '''\nimport numpy\n'''", "bare"),
        ("x = '\\'import numpy'", "bare"),
        ("x = 'open\nimport numpy", "numpy"),
        ("numpy = " + "(" * 500 + ")" * 500, "bare"),
        ("import numpy\n" + "#" * MAX_SCANNED, "std"),
        ("exec('import numpy')", "numpy"),
        ("import textwrap\nexec(textwrap.dedent('    import sympy\\n    1'))", "sympy"),
        ("import base64\nexec(base64.b64decode('" + encoded(SYMPY) + "'))", "sympy"),
        ("import base64, zlib\nexec(zlib.decompress(base64.b64decode('" + COMPRESSED + "')))", "sympy"),
        ("code = bytes.fromhex('" + SYMPY.encode().hex() + "')\nexec(code)", "sympy"),
        ("exec(" + repr("exec(" + repr(SYMPY) + ")") + ")", "sympy"),
        ("exec('" + encoded("not a program, important numpy") + "')", "bare"),
        ("__import__('sympy').Symbol('x')", "sympy"),
        ("import importlib\nimportlib.import_module('numpy.linalg')", "numpy"),
        ("import base64\nbase64.b64decode('" + encoded(SYMPY) + "')", "std"),  # it decodes the text and does not run it
    ],
)
def test_choose_lane_follows_the_imports(code: str, lane: str) -> None:
    """Imports at any depth count; text that is not an import, or not Python, does not."""
    assert choose_lane(code, LANES) == lane


def test_choose_lane_skips_missing_lanes() -> None:
    """A lane that the sandbox does not have is not chosen."""
    assert choose_lane("import sympy, numpy", ("bare", "numpy")) == "numpy"
    assert choose_lane("import sympy", ("bare",)) == "bare"


def test_choose_lane_reads_the_template_of_a_client() -> None:
    """The code and the earlier cells in the template of rStar2-Agent decide the lane."""
    for code, lane in ((SYMPY, "sympy"), ("import numpy", "numpy"), ("print(1)", "std")):
        assert choose_lane(rstar_template(code), LANES) == lane
    assert choose_lane(rstar_template("print(1)", history=[SYMPY]), LANES) == "sympy"


@given(st.text(max_size=200))
def test_choose_lane_accepts_any_text(code: str) -> None:
    """No text raises an error."""
    assert choose_lane("numpy\n" + code, LANES) in LANES


def nested(inner: str, *, texts: int, depth: int) -> str:
    """Return a program with this many compressed texts, each of which is such a program."""
    for _ in range(depth):
        text = base64.b64encode(zlib.compress(inner.encode(), 9)).decode()
        inner = "exec(z)\n" + f"{text!r}\n" * texts + "#import"
    return inner


BOMBS = {
    "many-texts": nested("import a\n" * 5000, texts=64, depth=1),
    "nested-texts": nested("import a\n" * 500, texts=64, depth=3),
    "nested-evenly": nested("x = 1 # import\n", texts=30, depth=6),
    "unpacked": "exec('" + base64.b64encode(zlib.compress(b"import a\n" * 5_000_000, 9)).decode() + "')",
    "base64-spaces": "exec('')\nz = '" + "A" * 20 + " " * 65_000 + "!'\n#import",
    "hexadecimal": "exec('" + "ab" * 32_000 + "g')",
    "open-strings": "exec(" + "'" * 65_000,
    "open-long-strings": "exec(" + '"""\\' * 16_000,
    "escapes": "exec('" + "\\x" * 32_000 + "import'",
    "from": "from " * 13_000,
    "from-dots": "exec('import')\nfrom " + "a." * 32_000,
    "spaces": "import" + " " * 65_000,
    "calls": "exec (" * 10_000,
    "deep": "import a\nx = " + "(" * 60_000,
    "signs": "import a\nx = " + "-" * 60_000 + "1",
    "long": "import a\nexec('" + "A" * (1 << 20) + "')",
}
"""Programs of which a scan without limits takes seconds."""


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_choose_lane_bomb_takes_little_time(bomb: str) -> None:
    """No program holds a processor for more than 50 ms, for any size, depth and number of texts."""
    seconds = []
    for _ in range(5):
        start = time.thread_time()
        choose_lane(bomb, LANES)
        seconds.append(time.thread_time() - start)
    assert min(seconds) < 0.05


def test_lanes_all_have_a_warm_up() -> None:
    """Each lane of the root has a warm-up program."""
    assert set(program.WARM_UP) == set(LANE_PACKAGES)
