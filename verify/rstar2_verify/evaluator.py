"""Complex values of trees with many digits, at sample points for their names. Uses mpmath."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import mpmath
from mpmath import mp

from .tree import Node, TooLarge, Undefined, Unknown, nodes

_MAX_POWER = 10**15
_MAX_ZETA = 1000
_MAX_TERMS = 5000
_MAX_MAGNITUDE = 10_000
"""Largest argument of a function in bits: the sine of a number needs all its digits before the point."""
_RANGES = ((0.5, 1.5), (1.5, 4.0), (0.05, 0.5), (0.2, 3.0), (0.2, 3.0), (1.1, 2.5), (1.1, 2.5))
POINTS = len(_RANGES)
"""Sample points. In the first three, all names are positive. Each name is negative in one of the points 3 and 4, and
in one of the points 5 and 6, where names are larger than all numbers of both expressions."""
FIRST_NEGATIVE = 3
FIRST_LARGE = 5


class Evaluator:
    """Computes values at one sample point with mpmath's current precision."""

    def __init__(self, point: int, scale: float = 1.0, integers: Mapping[str, int] | None = None) -> None:
        self.point, self.scale, self.integers = point, scale if point >= FIRST_LARGE else 1.0, integers or {}
        self.spread = 0.0
        """Decimal digits between the largest and the smallest term of a sum."""
        self.in_angle = False
        self.bound: dict[str, Any] = {}
        self.terms = 0
        self.numeric = False
        """Whether sums without end and integrals have their numeric value, with few digits."""

    def value(self, node: Node) -> Any:
        """Return the value. Raises Undefined, TooLarge and Unknown."""
        match node.kind:
            case "number":
                return mpmath.mpf(node.number.numerator) / node.number.denominator
            case "name" | "text":
                return self.bound[node.text] if node.text in self.bound else self._name(node.text)
            case "constant" if node.text in self.bound:
                return self.bound[node.text]
            case "constant":
                return {"pi": mp.pi, "e": mp.e, "i": mp.j}[node.text] * 1
            case "infinity":
                return mp.inf
            case "add":
                return self._sum([self.value(part) for part in node.parts])
            case "neg":
                return -self.value(node.parts[0])
            case "mul":
                return self.value(node.parts[0]) * self.value(node.parts[1])
            case "div":
                return self._divide(self.value(node.parts[0]), self.value(node.parts[1]))
            case "pow" if _is_odd_root(node.parts[1]):
                top, bottom = map(self.value, node.parts[1].parts)
                return self._power(self._root(self.value(node.parts[0]), bottom), top)
            case "pow":
                return self._power(self.value(node.parts[0]), self.value(node.parts[1]))
            case "root":
                return self._root(self.value(node.parts[0]), self.value(node.parts[1]))
            case "degree":
                return self.value(node.parts[0]) * (mp.pi / 180 if self.in_angle else 1)
            case "percent":
                return self.value(node.parts[0]) / 100
            case "bind":
                return self._bind(node)
            case "apply":
                return self._apply(node)
            case "call":
                return self._call(node)
            case _:
                raise Unknown(node.kind)

    def _name(self, name: str) -> Any:
        if name in self.integers:
            return mpmath.mpf(self.integers[name])
        bits, sign = _drawn(name, self.point)
        low, high = _RANGES[self.point]
        return sign * (low + (high - low) * (mpmath.mpf(bits) / 2**160)) * self.scale

    def _sum(self, terms: list[Any]) -> Any:
        sizes = [mp.mag(term) * 0.30103 for term in terms if term != 0 and mp.isfinite(term)]
        if sizes:
            self.spread = max(self.spread, float(max(sizes) - min(sizes)))
        return mp.fsum(terms)

    @staticmethod
    def _divide(top: Any, bottom: Any) -> Any:
        if bottom == 0 or (mp.isinf(top) and mp.isinf(bottom)):
            raise Undefined
        return top / bottom

    @staticmethod
    def _power(base: Any, exponent: Any) -> Any:
        if base == 0:
            if mp.re(exponent) <= 0:
                raise Undefined
            return base * 0
        if mp.isinf(base) or mp.isinf(exponent):
            raise Undefined
        size = abs(exponent)
        if size * max(1, abs(mp.mag(base))) > _MAX_POWER:
            raise TooLarge
        return base**exponent

    @staticmethod
    def _root(value: Any, index: Any) -> Any:
        if index == 0 or mp.isinf(value):
            raise Undefined
        if mp.im(value) == 0 and mp.re(value) < 0 and mp.isint(index) and int(index) % 2:
            return -((-mp.re(value)) ** (1 / index))
        return value ** (1 / index)

    def _bind(self, node: Node) -> Any:
        """Return the value of a finite sum or product; of others a number that depends on all their parts."""
        body, variable, *bounds = node.parts
        low, high = [self.value(bound) for bound in bounds] if bounds else (mp.nan, mp.nan)
        steps = node.text in ("sum", "prod") and mp.isint(low) and (mp.isint(high) or mp.isinf(high))
        if steps and mp.isint(high):
            self.terms += max(int(high - low), 0)
            if self.terms > _MAX_TERMS:
                raise TooLarge
            values = [self._with(variable.text, mpmath.mpf(at), body) for at in range(int(low), int(high) + 1)]
            return mp.fsum(values) if node.text == "sum" else mp.fprod(values)
        if self.numeric and bounds:
            function = functools.partial(self._small, variable.text, body)
            return mp.quad(function, [low, high]) if node.text == "int" else mp.nsum(function, [low, high])
        generator = random.Random(f"{node.text}/{self.point}")
        total = mpmath.mpf(1)
        if any(part.text == variable.text for bound in bounds for part in nodes(bound)):
            total += self._name(variable.text)
        ends = [mpmath.mpf(at) if mp.isinf(bound) else bound for at, bound in enumerate((low, high)) if bounds]
        for at in range(2):
            inner = self._with(variable.text, mpmath.mpf(0.3 + at) + generator.random(), body)
            total = total * (1 + generator.random()) + inner
        for end in ends:
            total = mp.cos(total) + end * generator.random() + total / 3
        if not ends and variable.text not in self.bound:
            total += self._name(variable.text)
        return total

    def _with(self, name: str, value: Any, body: Node) -> Any:
        before = dict(self.bound)
        self.bound[name] = value
        try:
            return self.value(body)
        finally:
            self.bound = before

    def _small(self, name: str, body: Node, value: Any) -> Any:
        """Return the value of an integrand; 0 far from the origin, where it cannot be computed."""
        try:
            return self._with(name, value, body)
        except TooLarge:
            return mpmath.mpf(0)

    def is_derivative(self, body: Node, name: str, integral: Node) -> bool:
        """Return whether an integrand is the derivative of an expression, at two points."""
        return all(
            _close(mp.diff(lambda value: self._with(name, value, integral), point), self._with(name, point, body))
            for point in (mpmath.mpf(7) / 5, mpmath.mpf(11) / 17)
        )

    def _apply(self, node: Node) -> Any:
        """Return the value of an unknown function: smooth, different for each name, without special values."""
        total = mpmath.mpf(1)
        generator = random.Random(f"{node.text}()/{self.point}")
        for part in node.parts:
            total += (0.5 + generator.random()) * self.value(part) + generator.random()
            total = mp.cos(total) + total / (3 + generator.random())
        return total

    def _call(self, node: Node) -> Any:
        if node.text == "det":
            return self._determinant(node.parts[0])
        angle, self.in_angle = self.in_angle, node.text in _ANGLES
        try:
            values = [self.value(part) for part in node.parts]
        finally:
            self.in_angle = angle
        if any(mp.isinf(value) for value in values):
            raise Undefined
        if any(mp.mag(value) > _MAX_MAGNITUDE for value in values if value):
            raise TooLarge
        function = _FUNCTIONS.get(node.text)
        if function is None:
            raise Unknown(node.text)
        try:
            return function(*values)
        except (ValueError, ZeroDivisionError, TypeError):
            raise Undefined from None

    def _determinant(self, matrix: Node) -> Any:
        if matrix.kind != "matrix":
            raise Unknown("det")
        rows = [[self.value(cell) for cell in row.parts] for row in matrix.parts]
        if any(len(row) != len(rows) for row in rows) or len(rows) > 8:
            raise Unknown("det")
        return _minor(rows)


@functools.lru_cache(maxsize=4096)
def _drawn(name: str, point: int) -> tuple[int, int]:
    """Return the bits and the sign of the value of a name at a point."""
    bits = random.Random(f"{name}/{point}").getrandbits(160)
    turned = random.Random(f"{name}/{point >= FIRST_LARGE}").random() < 0.5
    negative = point >= FIRST_NEGATIVE and turned != (point in (FIRST_NEGATIVE, FIRST_LARGE))
    return bits, -1 if negative else 1


def _is_odd_root(exponent: Node) -> bool:
    """Return whether an exponent is a fraction with an odd denominator: `x^{2/3}` is real for negative x."""
    inner = exponent.parts if exponent.kind == "div" else ()
    whole = all(part.kind == "number" and part.number.denominator == 1 for part in inner)
    return bool(inner) and whole and inner[1].number % 2 == 1


def _minor(rows: list[list[Any]]) -> Any:
    """Return a determinant by cofactors, which keeps zero exactly zero."""
    if len(rows) == 1:
        return rows[0][0]
    total = mpmath.mpf(0)
    for at, cell in enumerate(rows[0]):
        total += (-1) ** at * cell * _minor([row[:at] + row[at + 1 :] for row in rows[1:]])
    return total


def _logarithm(value: Any, base: Any = None) -> Any:
    if value == 0 or base in (0, 1):
        raise Undefined
    return mp.log(value) if base is None else mp.log(value) / mp.log(base)


def _limited(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def checked(value: Any) -> Any:
        if abs(value) > _MAX_POWER:
            raise TooLarge
        return function(value)

    return checked


def _zeta(value: Any) -> Any:
    if value == 1 or abs(value) > _MAX_ZETA:
        raise Undefined
    return mp.zeta(value)


def _real(function: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*values: Any) -> Any:
        if any(mp.im(value) != 0 for value in values):
            raise Undefined
        return function(*(mp.re(value) for value in values))

    return checked


def _whole_numbers(function: Callable[..., int]) -> Callable[..., Any]:
    def checked(*values: Any) -> Any:
        if not all(mp.isint(value) for value in values):
            raise Undefined
        return mpmath.mpf(function(*(int(value) for value in values)))

    return checked


TRIGONOMETRIC = ("sin", "cos", "tan", "cot", "sec", "csc")
_ANGLES = (*TRIGONOMETRIC, "cis")
_HYPERBOLIC = ("sinh", "cosh", "tanh", "coth", "sech", "csch")
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(mp, name) for name in (*TRIGONOMETRIC, *_HYPERBOLIC)},
    **{f"arc{name}": getattr(mp, f"a{name}") for name in TRIGONOMETRIC},
    **{f"ar{name}": getattr(mp, f"a{name}") for name in _HYPERBOLIC[:3]},
    "ln": _logarithm,
    "log": _logarithm,
    "exp": _limited(mp.exp),
    "cis": lambda value: mp.expj(value),
    "abs": abs,
    "sgn": _real(mp.sign),
    "floor": _real(mp.floor),
    "ceil": _real(mp.ceil),
    "max": _real(max),
    "min": _real(min),
    "factorial": _limited(mp.factorial),
    "Gamma": _limited(mp.gamma),
    "zeta": _zeta,
    "binom": mp.binomial,
    "Re": mp.re,
    "Im": mp.im,
    "arg": mp.arg,
    "gcd": _whole_numbers(math.gcd),
    "lcm": _whole_numbers(math.lcm),
}


def same_numerically(first: Node, second: Node) -> bool:
    """Return whether two constants of which one is an integral or a sum without end agree in twelve digits.

    Of an indefinite integral and an expression, the integrand and the derivative are compared.
    """
    with mp.workdps(20):
        evaluator = Evaluator(0)
        evaluator.numeric = True
        try:
            for side, other in ((first, second), (second, first)):
                if side.kind == "bind" and side.text == "int" and len(side.parts) == 2:
                    return evaluator.is_derivative(side.parts[0], side.parts[1].text, other)
            return _close(evaluator.value(first), evaluator.value(second))
        except (ValueError, ZeroDivisionError, OverflowError, TypeError, mp.NoConvergence):
            return False


def _close(first: Any, second: Any) -> bool:
    return bool(abs(first - second) <= mpmath.mpf(10) ** -12 * max(abs(first), abs(second)))


def evaluate(
    node: Node, point: int, digits: int, *, scale: float = 1.0, integers: Mapping[str, int] | None = None
) -> tuple[Any, float]:
    """Return the value at a point with `digits` digits, and the spread of its sums. Raises as `Evaluator.value`."""
    evaluator = Evaluator(point, scale, integers)
    with mp.workdps(digits):
        try:
            value = evaluator.value(node)
        except (OverflowError, MemoryError):
            raise TooLarge from None
        except ZeroDivisionError:
            raise Undefined from None
        if mp.isnan(value):
            raise Undefined
        return value, evaluator.spread
