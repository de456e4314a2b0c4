"""Drawn expressions of SymPy, as its printers write them: each form equals the expression, a changed one does not.

`python tests/printed.py N` draws N expressions of each kind and prints the rates.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import sympy as sp
from rstar2_verify import verify

x, y, n, a, b, t = sp.symbols("x y n a b t")
alpha, theta = sp.symbols("alpha theta")
x_1, v_max = sp.symbols("x_1 v_max")


class Printed(NamedTuple):
    """A form of an expression next to the LaTeX of the known one."""

    kind: str
    printer: str
    known: str
    answer: str
    equal: bool


def _kinds(rng: random.Random) -> dict[str, Callable[[], Any]]:
    def i(low: int = 2, high: int = 9) -> int:
        return rng.randint(low, high)

    def q() -> Any:
        return sp.Rational(i(1, 30), i(2, 30)) * rng.choice([1, -1])

    return {
        "integer": lambda: sp.Integer(rng.choice([1, -1]) * i(2, 10**6)),
        "large integer": lambda: sp.Integer(i(10**9, 10**15)),
        "rational": q,
        "root": lambda: i() * sp.sqrt(i(2, 50)),
        "sum of roots": lambda: sp.sqrt(i(2, 30)) + sp.sqrt(i(31, 60)),
        "quotient of roots": lambda: (i() + sp.sqrt(i(2, 7))) / i(3, 11),
        "cube root": lambda: i() * sp.cbrt(rng.choice([2, 3, 5, 6, 7])),
        "multiple of pi": lambda: q() * sp.pi,
        "power of e": lambda: i() * sp.exp(q()),
        "logarithm": lambda: sp.log(rng.choice([2, 3, 5, 7, 11])) * q(),
        "complex number": lambda: i() * rng.choice([1, -1]) + i() * rng.choice([1, -1]) * sp.I,
        "polynomial": lambda: i() * x**3 - i() * x**2 + i(1) * x - i(),
        "two letters": lambda: i() * x**2 * y - i() * x * y**2 + i(),
        "factored polynomial": lambda: (x - i()) * (x + i()) ** 2,
        "rational function": lambda: (i() * x + i()) / (x**2 + i()),
        "sum of fractions": lambda: i() / (x - i()) + i() / (x + i()),
        "fraction of roots": lambda: i() / sp.sqrt(x**2 + i()),
        "sine and cosine": lambda: i() * sp.sin(i() * x) - sp.cos(x / i()),
        "power of a sine": lambda: sp.sin(x) ** i(2, 5) * i(),
        "tangent and secant": lambda: sp.tan(i() * x) + i() * sp.sec(x),
        "inverse function": lambda: sp.atan(x / i()) * i(),
        "hyperbolic function": lambda: sp.cosh(i() * x) - i() * sp.sinh(x),
        "exponential": lambda: i() * x * sp.exp(-i() * x) + sp.exp(x**2),
        "logarithm of a letter": lambda: sp.log(x + i()) - i() * sp.log(x),
        "absolute value": lambda: sp.Abs(x - i()) * i(),
        "floor": lambda: sp.floor(x / i()) + i(),
        "Greek letters": lambda: i() * sp.cos(theta) ** 2 + alpha / i(),
        "indices": lambda: i() * x_1**2 / v_max + i(),
        "power of n": lambda: i() ** n * n + i(),
        "tuple": lambda: sp.Tuple(q(), sp.sqrt(i(2, 30)), i()),
        "set": lambda: sp.FiniteSet(q(), i(10, 20), -i()),
        "interval": lambda: sp.Interval(-i(), i(), rng.random() < 0.5, rng.random() < 0.5),
        "union": lambda: sp.Union(sp.Interval.open(-sp.oo, -i()), sp.Interval(i(), sp.oo)),
        "matrix": lambda: sp.Matrix([[i(), q()], [-i(), sp.sqrt(i(2, 7))]]),
        "column": lambda: sp.Matrix([i(), -i(), q()]),
        "equation": lambda: sp.Eq(y, i() * x**2 - i()),
        "inequality": lambda: x > q(),
    }


KINDS = tuple(_kinds(random.Random(0)))
PRINTERS: dict[str, Callable[[Any], str]] = {
    "str": str,
    "repr": repr,
    "latex": sp.latex,
    "latex, folded": lambda value: sp.latex(value, fold_short_frac=True, mul_symbol="dot", root_notation=False),
    "pretty": lambda value: sp.pretty(value, use_unicode=True),
}


def _changed(value: Any, rng: random.Random) -> Any:
    """Return the expression with another integer in one place; None if that changes nothing."""
    numbers = [atom for atom in sp.preorder_traversal(value) if isinstance(atom, sp.Integer) and abs(atom) > 1]
    if not numbers:
        return None
    number = rng.choice(numbers)
    try:
        changed = (
            value.subs(number, number + 1) if isinstance(value, sp.MatrixBase) else value.xreplace({number: number + 1})
        )
    except (ValueError, TypeError):
        return None
    if type(changed) is not type(value) or changed == value:
        return None
    if isinstance(value, sp.Expr) and (changed - value).equals(0):
        return None
    return changed


def printed(count: int, seed: int = 0) -> Iterator[Printed]:
    """Yield the printed forms of `count` expressions of each kind, without pictures of several lines."""
    for kind in KINDS:
        rng = random.Random(f"{kind}/{seed}")
        draw = _kinds(rng)[kind]
        for _ in range(count):
            value = draw()
            other = _changed(value, rng)
            known = sp.latex(value)
            for name, printer in PRINTERS.items():
                for equal, drawn in ((True, value), (False, other)):
                    answer = "" if drawn is None else printer(drawn)
                    if answer and "\n" not in answer:
                        yield Printed(kind, name, known, answer, equal)


def main(count: int) -> None:
    """Print the rates of each printer, and the pairs with another verdict."""
    pairs = list(printed(count))
    wrong = [pair for pair in pairs if (verify(pair.known, pair.answer).outcome == "equal") != pair.equal]
    for name in PRINTERS:
        for equal in (True, False):
            tried = sum(pair.printer == name and pair.equal is equal for pair in pairs)
            missed = sum(pair.printer == name and pair.equal is equal for pair in wrong)
            print(f"{name}: {'accepted' if equal else 'refused'} {tried - missed} of {tried}")
    for pair in wrong:
        print(pair)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
