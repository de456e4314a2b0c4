r"""Compares functions that are given in pieces: `\begin{cases} x & x \ge 0 \\ -x & x < 0 \end{cases}` is `|x|`.

The pieces of both sides cut the real line into regions. Both must agree at each end and at drawn points of each region.
`compare` calls it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction

from mpmath import mp

from .real_sets import REALS, RealInterval, complement, intervals, merged
from .shapes import OTHERWISE
from .tree import Node, TooLarge, Undecided, Undefined, Unknown, integer, names, substituted
from .values import equal_values

_STEPS = (Fraction(3, 7), Fraction(22, 9), Fraction(37, 5), Fraction(101, 6))
"""Distances of the points outside of all ends."""
_SHARES = (Fraction(2, 9), Fraction(5, 11), Fraction(12, 17), Fraction(19, 21))
"""Places of the points between two ends."""
_MAX_DENOMINATOR = 1000
_PARITIES = {"even": 0, "odd": 1}
_OTHERWISE = Node("text", text="otherwise")

Piece = tuple[list[RealInterval], Node]


MAX_PIECES = 40
"""Most pieces of a function that is compared."""


def same_pieces(given: Node, known: Node) -> bool | None:
    """Return whether two functions of one variable agree on all pieces; None for other values."""
    sides = [side.parts[1] if side.kind == "relation" and side.text == "=" else side for side in (given, known)]
    letters = {
        name for side in sides for name in names(side) if not OTHERWISE.fullmatch(name) and name not in _PARITIES
    }
    if not any(_is_cases(side) for side in sides) or len(letters) != 1:
        return None
    (letter,) = letters
    try:
        if any(_parity(row.parts[-1]) is not None for side in sides if _is_cases(side) for row in side.parts):
            return all(itertools.starmap(equal_values, zip(*(_by_parity(side, letter) for side in sides), strict=True)))
        if max(len(side.parts) for side in sides) > MAX_PIECES:
            raise Undecided
        pieces = [list(_pieces(side)) for side in sides]
        points = list(_points([interval for side in pieces for region, _ in side for interval in region]))
        for point in points:
            values = [_value(side, letter, point) for side in pieces]
            if (values[0] is None) != (values[1] is None):
                return False
            if values[0] is not None and values[1] is not None and not equal_values(values[0], values[1]):
                return False
    except (Unknown, TooLarge, Undefined):
        return None
    return True


def _is_cases(node: Node) -> bool:
    return node.kind == "matrix" and node.text == "cases"


def _parity(condition: Node) -> int | None:
    """Return the remainder of the numbers that `n is odd` states; None for other conditions."""
    text = condition.parts[1].text if condition.text == "\\in" else condition.text.removeprefix("is ")
    return _PARITIES.get(text)


def _by_parity(node: Node, letter: str) -> Iterator[Node]:
    """Yield the expressions of an even and of an odd number. Raises Unknown."""
    rows = [(row.parts[0], row.parts[-1]) for row in node.parts] if _is_cases(node) else [(node, _OTHERWISE)]
    for parity in range(2):
        value, condition = next((row for row in rows if _parity(row[1]) in (None, parity)), (node, node))
        if _parity(condition) is None and not OTHERWISE.fullmatch(condition.text):
            raise Unknown("a condition that is no parity")
        number = Node("add", (Node("mul", (integer(2), Node("name", text=letter))), integer(parity)))
        yield substituted(value, {letter: number})


def _pieces(node: Node) -> Iterator[Piece]:
    """Yield the region and the expression of each piece. Raises Unknown."""
    if not _is_cases(node):
        if node.kind in ("relation", "list", "tuple", "set", "interval", "matrix"):
            raise Unknown(node.kind)
        yield REALS, node
        return
    used: list[RealInterval] = []
    for row in node.parts:
        if len(row.parts) != 2:
            raise Unknown("a piece without its condition")
        value, condition = row.parts
        condition = condition.parts[0] if condition.kind == "noted" else condition
        region = complement(used) if OTHERWISE.fullmatch(condition.text) else intervals(condition)
        used = merged([*used, *region])
        yield region, value


def _value(pieces: list[Piece], letter: str, point: Fraction) -> Node | None:
    """Return the value at a point, in the first piece that has it; None outside of all pieces."""
    at = mp.mpf(point.numerator) / point.denominator
    for region, value in pieces:
        for part in region:
            above = at > part.low or (at == part.low and part.low_closed)
            below = at < part.high or (at == part.high and part.high_closed)
            if above and below:
                return substituted(value, {letter: Node("number", number=point)})
    return None


def _points(regions: list[RealInterval]) -> Iterator[Fraction]:
    """Yield the ends of all regions, and points between and outside of them. Raises Unknown for irrational ends."""
    ends = sorted({_fraction(end) for part in regions for end in (part.low, part.high) if mp.isfinite(end)})
    yield from ends or [Fraction(0)]
    low, high = (ends[0], ends[-1]) if ends else (Fraction(0), Fraction(0))
    for step in _STEPS:
        yield from (low - step, high + step)
    for first, second in itertools.pairwise(ends):
        yield from (first + share * (second - first) for share in _SHARES)


def _fraction(value: object) -> Fraction:
    number = Fraction(str(mp.nstr(value, 30))).limit_denominator(_MAX_DENOMINATOR)
    if abs(mp.mpf(number.numerator) / number.denominator - value) > mp.mpf(10) ** -12:
        raise Unknown("an end that is no fraction")
    return number
