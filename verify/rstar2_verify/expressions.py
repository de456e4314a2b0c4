"""Compares two expressions: equal values, a rounded decimal, or a factor between the sides of two equations.

`compare` calls it for the parts of an answer that are expressions. Uses mpmath.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import mpmath
from mpmath import mp

from .evaluator import evaluate, same_numerically
from .exact import exact
from .tree import Node, NotExact, Undefined, has, names, nodes, substituted
from .values import DIGITS, equal_values, real_value

ROUNDED_DIGITS = 6
"""Decimals, and significant digits, that a rounded decimal must have to stand for an exact value."""
KNOWN_DIGITS = 3
"""Significant digits from which a known decimal may be a rounded value."""
FLOAT_DIGITS = 14
"""Significant digits that must agree when a decimal has more than these: the output of floating-point programs."""


def same_derivatives(first: Node, second: Node) -> bool:
    """Return whether two differential equations differ by a factor that has no unknown function: `mx''=kx`, `x''=kx/m`.

    `first`, `second`: the differences of their sides. The factor must not change with the values of the functions.
    """
    unknown = {name.rstrip("'") for name in names(second) if name.endswith("'")}
    if not unknown or names(first) != names(second):
        return False
    others = {name: Node("name", text=f"{name}_*") for name in names(second) if name.rstrip("'") in unknown}
    pairs = [(first, second), (substituted(first, others), substituted(second, others))]
    with mp.workdps(2 * DIGITS):
        for point in range(3):
            values = [[evaluate(side, point, 2 * DIGITS)[0] for side in pair] for pair in pairs]
            if any(abs(value) < mpmath.mpf(10) ** -DIGITS for pair in values for value in pair):
                return False
            (a, b), (c, d) = values
            if abs(a * d - b * c) > abs(a * d) * mpmath.mpf(10) ** -100:
                return False
    return True


def constant_factor(first: Node, second: Node) -> Any:
    """Return the factor between two expressions that is the same at all sample points; None if there is none."""
    letters = names(first) | names(second)
    if not letters or names(first) != names(second):
        return None
    factor = None
    with mp.workdps(2 * DIGITS):
        for point in range(5):
            a, b = (evaluate(side, point, 2 * DIGITS)[0] for side in (first, second))
            if abs(a) < mpmath.mpf(10) ** -DIGITS or abs(b) < mpmath.mpf(10) ** -DIGITS:
                return None
            if factor is None:
                factor = a / b
            elif abs(a - factor * b) > abs(a) * mpmath.mpf(10) ** -100:
                real = abs(mp.im(a)) + abs(mp.im(b)) == 0
                if real or point < 3:
                    return None
    return factor


def without_denominators(node: Node) -> Node:
    """Return the difference of an equation's sides times all denominators with a letter: `ab-1` for `a-1/b`."""
    for part in nodes(node):
        if part.kind == "div" and names(part.parts[1]):
            node = Node("mul", (node, part.parts[1]))
    return node


def same_expressions(given: Node, known: Node) -> bool:
    """Return whether two expressions are equal, or one is the other one rounded. Raises Unknown and Undecided."""
    ours, theirs = decimal(given), decimal(known)
    if ours is None and theirs is not None and is_rounded(theirs, given, KNOWN_DIGITS):
        return True
    if ours is not None and theirs is None and is_rounded(ours, known):
        return True
    if ours is not None and theirs is not None:
        if max(ours[1], theirs[1]) > FLOAT_DIGITS and abs(ours[0] - theirs[0]) <= abs(theirs[0]) / 10**FLOAT_DIGITS:
            return True
        approximate = given.text == "~"
        return ours[0] == theirs[0] or _is_more_precise(ours, theirs, approximate) or _is_rounded_float(ours, theirs)
    binds = [has("bind", side) for side in (given, known)]
    if binds[0] != binds[1] and len(names(given) | names(known)) <= 1:
        return same_numerically(given, known) or equal_values(given, known)
    return equal_values(given, known)


def decimal(node: Node) -> tuple[Fraction, int] | None:
    r"""Return (value, decimals) of a number that is written as a decimal, such as `-1.5` and `1.5 \cdot 10^{-9}`."""
    if node.kind == "number":
        return None if node.decimals is None else (node.number, node.decimals)
    if node.kind == "neg":
        inner = decimal(node.parts[0])
        return None if inner is None else (-inner[0], inner[1])
    if node.kind in ("mul", "div"):
        inner = decimal(node.parts[0])
        power = _power_of_ten(node.parts[1])
        if inner is None or power is None:
            return None
        power = power if node.kind == "mul" else -power
        return inner[0] * Fraction(10) ** power, inner[1] - power
    return None


def _power_of_ten(node: Node) -> int | None:
    """Return k for `10^k` with a moderate k."""
    if node.kind != "pow" or node.parts[0] != Node("number", number=Fraction(10)):
        return None
    try:
        exponent = exact(node.parts[1])
    except (NotExact, Undefined):
        return None
    return exponent.numerator if exponent.denominator == 1 and abs(exponent) <= 400 else None


def significant(value: tuple[Fraction, int]) -> int:
    """Return the number of significant digits of a decimal."""
    return len(str(abs(value[0]) // Fraction(10) ** -value[1]))


def rounded(value: Fraction, decimals: int) -> Fraction:
    """Return a number with this many decimals; half a unit is rounded away from zero."""
    unit = Fraction(10) ** -decimals
    size = (abs(value) / unit + Fraction(1, 2)).__floor__() * unit
    return size if value > 0 else -size


def _is_more_precise(given: tuple[Fraction, int], known: tuple[Fraction, int], approximate: bool) -> bool:
    """Return whether a known decimal is the answer with fewer digits: `3.1416` for `3.14`, `0.15866` for `0.1587`.

    One more digit is no evidence of rounding, unless the last digit of the known answer changes by it, or the answer is
    approximate: `x \\approx 2.2361` for `2.236`.
    """
    (number, decimals), (other, places) = given, known
    if decimals <= places or significant(known) < KNOWN_DIGITS or rounded(number, places) != other:
        return False
    unit = Fraction(10) ** -places
    return approximate or decimals - places > 1 or abs(number) // unit * unit != abs(other)


def _is_rounded_float(given: tuple[Fraction, int], known: tuple[Fraction, int]) -> bool:
    """Return whether an answer is the output of a floating-point program with fewer digits."""
    enough = significant(known) > FLOAT_DIGITS and min(given[1], significant(given)) >= ROUNDED_DIGITS
    return enough and rounded(known[0], given[1]) == given[0]


def is_rounded(rounded: tuple[Fraction, int], value: Node, least: int = ROUNDED_DIGITS) -> bool:
    """Return whether a decimal with at least `least` digits is the real value of a tree, rounded to its digits."""
    number, decimals = rounded
    if number == 0:
        return False
    unit = Fraction(10) ** -decimals
    digits = significant(rounded)
    if digits < least or (least == ROUNDED_DIGITS and decimals < least):
        return False
    tolerance = unit / 2
    if digits > FLOAT_DIGITS:
        tolerance = max(tolerance, abs(number) / 10**FLOAT_DIGITS)
    real = real_value(value)
    with mp.workdps(DIGITS):
        difference = abs(real - mpmath.mpf(number.numerator) / number.denominator)
        return bool(difference <= mpmath.mpf(tolerance.numerator) / tolerance.denominator)
