"""Compares the values of two trees: exact fractions, or complex numbers with many digits at sample points.

Two expressions are equal when their values agree to more than a hundred digits at several points, relative to their
size: no number is too small to differ. Each comparison runs at two precisions: a rest of rounding shrinks
with the precision, a small number does not. Uses mpmath.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mpmath
from mpmath import mp

from .evaluator import FIRST_LARGE, FIRST_NEGATIVE, POINTS, TRIGONOMETRIC, evaluate
from .exact import exact
from .tree import Node, NotExact, TooLarge, Undecided, Undefined, Unknown, integer, names, nodes, substituted

DIGITS = 120
"""Digits that must agree; the second evaluation has twice as many."""
_ROUNDING = 10
"""Digits in which a rest of rounding may differ from the precision."""
_AGREEING = 100
"""Digits that agree after points at which twice as many were computed."""
_TWICE = 2
"""Points at which values that agree are computed with twice as many digits."""
MAX_DIGITS = 4000
"""Digits above which a comparison is undecided."""
_MAX_SCALE = 1e6
_VARIABLES = frozenset("xyztn")
"""Letters that may have any sign."""
_STEPS = 199
"""Integers at which expressions with steps are compared, plus one; a prime number."""


Values = list[tuple[Any, float]]
"""The values of two trees at a point, with the spreads of their sums."""


def _agree(
    first: Node,
    second: Node,
    point: int,
    scale: float,
    integers: Mapping[str, int] | None = None,
    *,
    values: Values | None = None,
    twice: bool = True,
) -> bool | None:
    """Return whether the values at a point are equal; None if one is not real where a name is negative.

    `values`: the values with DIGITS digits. `twice`: whether values that agree are computed with twice as many digits.
    """
    digits = DIGITS
    while True:
        (a, spread_a), (b, spread_b) = values or [
            evaluate(node, point, digits, scale=scale, integers=integers) for node in (first, second)
        ]
        values = None
        if mp.isinf(a) or mp.isinf(b):
            return bool(a == b)
        spread = max(spread_a, spread_b)
        needed = spread + DIGITS / 2
        if needed <= digits or (DIGITS < digits < spread + _ROUNDING <= MAX_DIGITS):
            break  # enough digits, or the smallest term is a rest of rounding: it shrank with the digits
        if needed > MAX_DIGITS:
            if min(spread_a, spread_b) < DIGITS:
                return False  # only terms that cancel could make it equal: `e^{10^{14}}-e^{10^{14}}+5`
            raise Undecided
        digits = int(needed) + 10
    with mp.workdps(2 * digits):
        rounding = mpmath.mpf(10) ** -(digits // 2)
        small = mpmath.mpf(10) ** -30
        sure = abs(a) > small and abs(b) > small and abs(a - b) > small * max(abs(a), abs(b))
        if not (sure or twice) and abs(a - b) <= mpmath.mpf(10) ** -_AGREEING * max(abs(a), abs(b)):
            return True
        if not sure:
            c, d = (evaluate(node, point, 2 * digits, scale=scale, integers=integers)[0] for node in (first, second))
            zero = [abs(new) <= abs(old) * rounding for old, new in ((a, c), (b, d))]
            if all(zero) or (not any(zero) and abs(c - d) <= max(abs(c), abs(d)) * mpmath.mpf(10) ** -digits):
                return True
        real = all(abs(mp.im(value)) <= small * (1 + abs(value)) for value in (a, b))
    return False if real or point < FIRST_NEGATIVE else None


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
        values: Values = []
        missing = 0
        for side in (first, second):
            try:
                values.append(evaluate(side, point, DIGITS, scale=scale))
            except Undefined:
                missing += 1
            except TooLarge:
                if point < FIRST_LARGE:
                    raise
        if len(values) + missing < 2:
            continue
        if missing:
            if values:
                return False
            undefined += 1
            continue
        agree = _agree(first, second, point, scale, values=values, twice=compared < _TWICE)
        if agree is None and complex_:
            agree = False
        if agree is False and point >= FIRST_NEGATIVE and compared and _are_roots_of_quantities(first, second, letters):
            continue
        if agree is False:
            return _equal_at_integers(first, second, letters)
        compared += agree is True
    if undefined and not compared:
        return _equal_at_integers(first, second, letters)
    return compared >= min(2, POINTS if letters else 1) and _same_steps(first, second, letters)


def _are_roots_of_quantities(first: Node, second: Node, letters: set[str]) -> bool:
    r"""Return whether both have a root and only letters of quantities, which are positive: `\\sqrt{gR^2/h}`."""
    return (
        all(any(_is_root(node) for node in nodes(side)) for side in (first, second))
        and not letters & _VARIABLES
        and not any(node == Node("call", node.parts, "abs") for node in (*nodes(first), *nodes(second)))
    )


def _is_root(node: Node) -> bool:
    return node.kind == "root" or (node.kind == "pow" and node.parts[1].kind == "div")


def _same_steps(first: Node, second: Node, letters: set[str]) -> bool:
    r"""Return whether two expressions with `\lfloor n/2\rfloor` agree at integers: few points miss most steps."""
    if not any(
        node.kind == "call" and node.text in ("floor", "ceil") for side in (first, second) for node in nodes(side)
    ):
        return True
    for step in range(1, _STEPS):
        values = {name: integer(step * (2 * at + 1) % _STEPS) for at, name in enumerate(sorted(letters))}
        try:
            if exact(substituted(first, values)) != exact(substituted(second, values)):
                return False
        except (NotExact, Undefined):
            continue
    return True


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
    if node.kind == "bind" or (node.kind == "call" and node.text in ("gcd", "lcm")):
        return True
    circle = node.kind == "call" and node.text in TRIGONOMETRIC
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
