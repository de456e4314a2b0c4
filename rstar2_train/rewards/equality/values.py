"""Values of trees: exact fractions, or complex numbers with many digits at sample points. Compares two values.

Two expressions are equal when their values agree to more than a hundred digits at several points, relative to their
size: no number is too small to differ. Each comparison runs at two precisions: a rest of rounding shrinks
with the precision, a small number does not. Uses mpmath.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import mpmath
from mpmath import mp

from .tokens import Node

DIGITS = 120
"""Digits that must agree; the second evaluation has twice as many."""
MAX_DIGITS = 4000
"""Digits above which a comparison is undecided."""
_MAX_BITS = 200_000
_MAX_POWER = 10**15
_RANGES = ((0.5, 1.5), (1.5, 4.0), (0.05, 0.5), (0.2, 3.0), (0.2, 3.0), (1.1, 2.5), (1.1, 2.5))
POINTS = len(_RANGES)
"""Sample points. In the first three, all names are positive. Each name is negative in one of the points 3 and 4, and
in one of the points 5 and 6, where names are larger than all numbers of both expressions."""
_POSITIVE = 3
_LARGE = 5
_MAX_SCALE = 1e6


class NotExact(Exception):
    """The value is not a fraction, or its fraction is too long."""


class Undefined(Exception):
    """The value does not exist, as of a division by zero."""


class Unknown(Exception):
    """The node has no numeric value: words, dots, a set."""


class TooLarge(Exception):
    """The value is beyond any number that can be computed."""


class Undecided(Exception):
    """The values agree in all digits within the limit, which does not prove equality."""


def nodes(node: Node) -> Iterator[Node]:
    """Yield a tree's nodes."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        stack += current.parts


def names(node: Node) -> set[str]:
    """Return the names in a tree, unknown functions included."""
    return {part.text for part in nodes(node) if part.kind in ("name", "text", "apply")}


def exact(node: Node) -> Fraction:
    """Return the value as a fraction. Raises NotExact, Undefined and TooLarge."""
    kind = node.kind
    if kind == "number":
        return node.number
    if kind in ("add", "mul", "div", "neg", "pow", "root", "degree") or (kind == "call" and node.text in _EXACT):
        parts = [exact(part) for part in node.parts]
        return _bounded(_combine(node, parts))
    raise NotExact


def _bounded(value: Fraction) -> Fraction:
    if value.numerator.bit_length() + value.denominator.bit_length() > _MAX_BITS:
        raise NotExact
    return value


def _combine(node: Node, parts: list[Fraction]) -> Fraction:
    """Return the value of an operation on fractions."""
    match node.kind:
        case "add":
            return sum(parts, Fraction(0))
        case "mul":
            return parts[0] * parts[1]
        case "neg":
            return -parts[0]
        case "degree":
            return parts[0]
        case "div":
            if parts[1] == 0:
                raise Undefined
            return parts[0] / parts[1]
        case "pow":
            return _power(parts[0], parts[1])
        case "root":
            return _root(parts[0], parts[1])
        case _:
            return _EXACT[node.text](*parts)


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        if base < 0:
            raise NotExact
        return _power(_root(base, Fraction(exponent.denominator)), Fraction(exponent.numerator))
    power = exponent.numerator
    if base == 0:
        if power <= 0:
            raise Undefined
        return Fraction(0)
    if abs(base) == 1:
        return base if power % 2 else Fraction(1)
    if (base.numerator.bit_length() + base.denominator.bit_length()) * abs(power) > _MAX_BITS:
        raise NotExact
    return base**power


def _root(value: Fraction, index: Fraction) -> Fraction:
    if index.denominator != 1 or not 2 <= index.numerator <= 1000 or (value < 0 and index.numerator % 2 == 0):
        raise NotExact
    sign, size = (-1 if value < 0 else 1), abs(value)
    top, bottom = _integer_root(size.numerator, index.numerator), _integer_root(size.denominator, index.numerator)
    return Fraction(sign * top, bottom)


def _integer_root(value: int, index: int) -> int:
    if value < 2:
        return value
    low, high = 1, 1 << -(-value.bit_length() // index)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**index <= value else (low, middle - 1)
    if low**index != value:
        raise NotExact
    return low


def _whole(*values: Fraction) -> list[int]:
    if any(value.denominator != 1 for value in values):
        raise NotExact
    return [value.numerator for value in values]


def _factorial(value: Fraction) -> Fraction:
    (number,) = _whole(value)
    if number < 0:
        raise Undefined
    if number > 10_000:
        raise NotExact
    return Fraction(math.factorial(number))


def _binomial(upper: Fraction, lower: Fraction) -> Fraction:
    n, k = _whole(upper, lower)
    if n < 0 or k < 0 or n > 10_000:
        raise NotExact
    return Fraction(math.comb(n, k))


_EXACT: Mapping[str, Callable[..., Fraction]] = {
    "factorial": _factorial,
    "binom": _binomial,
    "abs": abs,
    "floor": lambda value: Fraction(math.floor(value)),
    "ceil": lambda value: Fraction(math.ceil(value)),
    "max": max,
    "min": min,
    "gcd": lambda *values: Fraction(math.gcd(*_whole(*values))),
    "lcm": lambda *values: Fraction(math.lcm(*_whole(*values))),
}


class Evaluator:
    """Computes values at one sample point with mpmath's current precision."""

    def __init__(self, point: int, scale: float = 1.0, integers: Mapping[str, int] | None = None) -> None:
        self.point, self.scale, self.integers = point, scale if point >= _LARGE else 1.0, integers or {}
        self.spread = 0.0
        """Decimal digits between the largest and the smallest term of a sum."""
        self.in_angle = False

    def value(self, node: Node) -> Any:
        """Return the value. Raises Undefined, TooLarge and Unknown."""
        match node.kind:
            case "number":
                return mpmath.mpf(node.number.numerator) / node.number.denominator
            case "name" | "text":
                return self._name(node.text)
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
            case "pow":
                return self._power(self.value(node.parts[0]), self.value(node.parts[1]))
            case "root":
                return self._root(self.value(node.parts[0]), self.value(node.parts[1]))
            case "degree":
                return self.value(node.parts[0]) * (mp.pi / 180 if self.in_angle else 1)
            case "apply":
                return self._apply(node)
            case "call":
                return self._call(node)
            case _:
                raise Unknown(node.kind)

    def _name(self, name: str) -> Any:
        if name in self.integers:
            return mpmath.mpf(self.integers[name])
        low, high = _RANGES[self.point]
        share = mpmath.mpf(random.Random(f"{name}/{self.point}").getrandbits(160)) / 2**160
        size = (low + (high - low) * share) * self.scale
        turned = random.Random(f"{name}/{self.point >= _LARGE}").random() < 0.5
        negative = self.point >= _POSITIVE and turned != (self.point in (_POSITIVE, _LARGE))
        return -size if negative else size

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


def _exponential(value: Any) -> Any:
    if abs(value) > _MAX_POWER:
        raise TooLarge
    return mp.exp(value)


def _gamma(value: Any) -> Any:
    if abs(value) > _MAX_POWER:
        raise TooLarge
    return mp.gamma(value + 1)


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


_TRIGONOMETRIC = ("sin", "cos", "tan", "cot", "sec", "csc")
_ANGLES = (*_TRIGONOMETRIC, "cis")
_HYPERBOLIC = ("sinh", "cosh", "tanh", "coth", "sech", "csch")
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(mp, name) for name in (*_TRIGONOMETRIC, *_HYPERBOLIC)},
    **{f"arc{name}": getattr(mp, f"a{name}") for name in _TRIGONOMETRIC},
    **{f"ar{name}": getattr(mp, f"a{name}") for name in _HYPERBOLIC[:3]},
    "ln": _logarithm,
    "log": _logarithm,
    "exp": _exponential,
    "cis": lambda value: mp.expj(value),
    "abs": abs,
    "sgn": _real(mp.sign),
    "floor": _real(mp.floor),
    "ceil": _real(mp.ceil),
    "max": _real(max),
    "min": _real(min),
    "factorial": _gamma,
    "binom": mp.binomial,
    "Re": mp.re,
    "Im": mp.im,
    "arg": mp.arg,
    "gcd": _whole_numbers(math.gcd),
    "lcm": _whole_numbers(math.lcm),
}


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


def _agree(
    first: Node, second: Node, point: int, scale: float, integers: Mapping[str, int] | None = None
) -> bool | None:
    """Return whether the values at a point are equal; None if one is not real where a name is negative."""
    digits = DIGITS
    while True:
        (a, spread_a), (b, spread_b) = (
            evaluate(node, point, digits, scale=scale, integers=integers) for node in (first, second)
        )
        if mp.isinf(a) or mp.isinf(b):
            return bool(a == b)
        needed = max(spread_a, spread_b) + DIGITS / 2
        if needed <= digits:
            break
        if needed > MAX_DIGITS:
            raise Undecided
        digits = int(needed) + 10
    with mp.workdps(2 * digits):
        rounding = mpmath.mpf(10) ** -(digits // 2)
        small = mpmath.mpf(10) ** -30
        sure = abs(a) > small and abs(b) > small and abs(a - b) > small * max(abs(a), abs(b))
        if not sure:
            c, d = (evaluate(node, point, 2 * digits, scale=scale, integers=integers)[0] for node in (first, second))
            zero = [abs(new) <= abs(old) * rounding for old, new in ((a, c), (b, d))]
            if all(zero) or (not any(zero) and abs(c - d) <= max(abs(c), abs(d)) * mpmath.mpf(10) ** -digits):
                return True
        real = all(abs(mp.im(value)) <= small * (1 + abs(value)) for value in (a, b))
    return False if real or point < _POSITIVE else None


def structure(node: Node) -> Node:
    """Return a tree without the way its numbers were written."""
    return node._replace(parts=tuple(structure(part) for part in node.parts), decimals=None)


def equal_values(first: Node, second: Node) -> bool:
    """Return whether two expressions are equal. Raises Unknown if one is not an expression, and Undecided."""
    try:
        return exact(first) == exact(second)
    except NotExact:
        pass
    except Undefined:
        return structure(first) == structure(second)
    if structure(first) == structure(second):
        return True
    try:
        return _equal_at_points(first, second)
    except TooLarge:
        sizes = [_is_moderate(node) for node in (first, second)]
        if sizes[0] != sizes[1]:
            return False
        raise Undecided from None


def _is_moderate(node: Node) -> bool:
    """Return whether the value can be computed."""
    try:
        evaluate(node, 0, DIGITS)
    except TooLarge:
        return False
    except Undefined:
        return True
    return True


def _equal_at_points(first: Node, second: Node) -> bool:
    letters = names(first) | names(second)
    complex_ = any(node.kind == "constant" and node.text == "i" for side in (first, second) for node in nodes(side))
    scale = _scale(first, second)
    compared = undefined = 0
    for point in range(POINTS if letters else 1):
        defined = []
        for side in (first, second):
            try:
                evaluate(side, point, 20, scale=scale)
                defined.append(True)
            except Undefined:
                defined.append(False)
            except TooLarge:
                if point < _LARGE:
                    raise
        if len(defined) < 2:
            continue
        if not all(defined):
            if any(defined):
                return False
            undefined += 1
            continue
        agree = _agree(first, second, point, scale)
        if agree is None and complex_:
            agree = False
        if agree is False:
            return _equal_at_integers(first, second, letters)
        compared += agree is True
    if undefined and not compared:
        return _equal_at_integers(first, second, letters)
    return compared >= min(2, POINTS if letters else 1)


def _scale(first: Node, second: Node) -> float:
    """Return a number above all numbers of both expressions, within a limit."""
    sizes = [abs(node.number) for side in (first, second) for node in nodes(side) if node.kind == "number"]
    return min(float(max([size for size in sizes if size < _MAX_SCALE], default=0)) + 1, _MAX_SCALE)


_INTEGER_LETTERS = frozenset("nkmjlN")


def _equal_at_integers(first: Node, second: Node, letters: set[str]) -> bool:
    """Return whether two expressions agree at integers: `(-1)^n` and `\\cos(n\\pi)`, greatest common divisors."""
    integer_names = sorted(name for name in letters if name[:1] in _INTEGER_LETTERS)
    if not integer_names or len(integer_names) != len(letters):
        return False
    if not any(_is_integer_function(node) for side in (first, second) for node in nodes(side)):
        return False
    for step in range(1, 13):
        integers = {name: step + 3 * at for at, name in enumerate(integer_names)}
        try:
            if _agree(first, second, 0, 1.0, integers) is not True:
                return False
        except Undefined:
            return False
    return True


def _is_integer_function(node: Node) -> bool:
    if node.kind == "pow":
        base, exponent = node.parts
        return base.kind == "neg" and bool(names(exponent))
    if node.kind == "call" and node.text in ("gcd", "lcm"):
        return True
    circle = node.kind == "call" and node.text in _TRIGONOMETRIC
    return circle and any(part == Node("constant", text="pi") for part in nodes(node)) and bool(names(node))


def real_value(node: Node) -> Any:
    """Return the real value of a constant with DIGITS digits. Raises Unknown if it is not real, or has names."""
    if names(node):
        raise Unknown("a name")
    try:
        value, _ = evaluate(node, 0, DIGITS)
    except (Undefined, TooLarge):
        raise Unknown("no value") from None
    with mp.workdps(DIGITS):
        if abs(mp.im(value)) > mpmath.mpf(10) ** -50 * (1 + abs(value)):
            raise Unknown("not real")
        return mp.re(value)
