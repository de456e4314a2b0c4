r"""Sets of real numbers as sorted intervals: intervals, unions, inequalities and set builders in one letter.

`compare` converts both answers, so that `x>2`, `(2,\infty)` and `\{x : 2<x\}` are the same set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import mpmath
from mpmath import mp

from .expression_grammar import UNNAMED
from .tree import Node, Unknown, integer, names, substituted
from .values import DIGITS, real_value

TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
"""Sign of an inequality -> the sign with both sides exchanged."""
INEQUALITIES = frozenset(["<", ">", "<=", ">=", "!="])


class RealInterval(NamedTuple):
    """An interval of real numbers, or a point."""

    low: Any
    low_closed: bool
    high: Any
    high_closed: bool


COUNTED: dict[str, Callable[[int], bool]] = {
    "\\mathbbZ": lambda _: True, "\\mathbbN": lambda _: True, "\\mathbbZ^+": lambda _: True,
    "even": lambda number: number % 2 == 0, "odd": lambda number: number % 2 == 1,
    "prime": lambda number: number > 1 and all(number % factor for factor in range(2, math.isqrt(number) + 1)),
}  # fmt: skip
"""Name of a set of integers -> whether it has an integer."""
_FROM_ONE = frozenset(["\\mathbbN", "\\mathbbZ^+", "prime"])
_INTEGER_LETTERS = frozenset("ijklmn")
"""Letters of integers that no text declares."""
_MAX_MEMBERS = 1000
"""Most members of a set of integers that is compared with a list."""
REALS = [RealInterval(-mp.inf, False, mp.inf, False)]


def is_set(node: Node) -> bool:
    """Return whether a node is written as a set of real numbers that is not a list of points."""
    if node.kind in ("interval", "union", "intersection", "difference", "reals", "builder"):
        return True
    if node.kind == "relation":
        operators = node.text.split()
        return bool(INEQUALITIES.intersection(operators)) or (
            operators in (["\\in"], ["\\notin"]) and (is_set(node.parts[1]) or operators == ["\\notin"])
        )
    conditions = [part.kind in ("relation", "list") and is_set(part) for part in node.parts]
    if node.kind != "list" or not any(conditions):
        return False
    joined = "or" in node.text.split()  # `x = 1 or 2 < x < 3`
    return all(is_part or (joined and part.text == "=") for is_part, part in zip(conditions, node.parts, strict=True))


def excluded_points(node: Node) -> Node:
    r"""Return `x \ne 1 \text{ and } x \ne -1` for `x \ne \pm 1` and `x \ne 1, -1`; other nodes unchanged."""
    first, *others = node.parts if node.kind == "list" else (node,)
    if first.kind != "relation" or first.text != "!=" or any(part.kind == "relation" for part in others):
        return node
    left, right = first.parts
    points = [right, *others]
    if not others and right.kind == "pm":
        points = [right.parts[0], Node("neg", right.parts)]
    if len(points) == 1:
        return node
    return Node("list", tuple(Node("relation", (left, point), "!=") for point in points), "and " * (len(points) - 1))


def limited_letters(node: Node) -> set[str]:
    """Return the letters that inequalities limit; those of a set builder are bound."""
    parts = node.parts if node.kind == "list" else (node,) if node.kind == "relation" else ()
    return set().union(*map(names, parts)) - {UNNAMED.text}


def intervals(node: Node, letter: str | None = None) -> list[RealInterval]:
    """Return a set's intervals, sorted and merged. A pair in parentheses is an open interval.

    `letter`: the letter of a set builder. Raises Unknown for a set that has letters in its bounds, or in two letters.
    """
    match node.kind:
        case "reals":
            return REALS
        case "empty":
            return []
        case "interval" | "tuple" if len(node.parts) == 2:
            return _interval(node)
        case "set":
            return merged([_point(real_value(part)) for part in node.parts])
        case "union":
            return merged([*intervals(node.parts[0], letter), *intervals(node.parts[1], letter)])
        case "intersection":
            return _intersection(intervals(node.parts[0], letter), intervals(node.parts[1], letter))
        case "difference":
            return _intersection(intervals(node.parts[0], letter), complement(intervals(node.parts[1], letter)))
        case "builder":
            return _built(node)
        case "relation":
            return _relation(node, letter)
        case "list":
            return _conditions(node, letter)
        case _:
            raise Unknown(node.kind)


def _built(node: Node) -> list[RealInterval]:
    r"""Return the set of `\{x : x>2\}`, `\{x\in\mathbb{N} : x<4\}` or `\{2^k : 0\le k\le 3\}`. Raises Unknown."""
    element, condition = node.parts
    conditions = condition.parts if condition.kind == "list" and "or" not in condition.text.split() else (condition,)
    value = element.parts[0] if element.text == "\\in" else element
    targets = [_target(part) for part in (element, *conditions)]
    bounds = [part for part, target in zip(conditions, targets[1:], strict=True) if not target]
    region = intervals(bounds[0]) if len(bounds) == 1 else intervals(_joined(bounds))
    counted = [target for target in targets if target in COUNTED]
    if value.kind == "name" and not counted:
        return _intersection(region, intervals(element.parts[1])) if value is not element else region
    (letter,) = names(value)
    if not counted and letter not in _INTEGER_LETTERS:
        raise Unknown("the values of a function at real numbers")
    points = [int(point.low) for point in _whole_numbers(region, positive=bool(_FROM_ONE.intersection(counted)))]
    kept = [point for point in points if all(COUNTED[target](point) for target in counted)]
    return merged([_point(real_value(substituted(value, {letter: integer(point)}))) for point in kept])


def _joined(conditions: Sequence[Node]) -> Node:
    """Return conditions as one. Raises Unknown without conditions."""
    if not conditions:
        raise Unknown("a set without bounds")
    return Node("list", tuple(conditions), " ".join("and" for _ in conditions[1:]))


def _target(condition: Node) -> str:
    r"""Return the set of integers that `n\in\mathbb{N}` or `n \text{ is even}` states; an empty text for others."""
    if condition.kind == "relation" and condition.text == "\\in":
        return condition.parts[1].text if condition.parts[1].kind == "name" else ""
    word = condition.text.rpartition(" ")[2] if condition.kind == "noted" else ""
    return word if word in COUNTED and condition.parts[0].kind == "name" else ""


def equal_intervals(first: list[RealInterval], second: list[RealInterval]) -> bool:
    """Return whether two merged lists of intervals are the same set."""
    return len(first) == len(second) and all(
        a.low_closed == b.low_closed
        and a.high_closed == b.high_closed
        and _same(a.low, b.low)
        and _same(a.high, b.high)
        for a, b in zip(first, second, strict=True)
    )


def same_integers(given: Node, known: Node, *, listed: bool) -> bool:
    r"""Return whether two sets have the same integers: `n>3` for a known answer `n \ge 4, n\in\mathbb{Z}`.

    `listed`: whether the known answer lists them: `{1,2,3}` for `1 \le n \le 3, n\in\mathbb{Z}`.
    """
    known = Node("set", known.parts) if listed and known.kind == "list" else known
    if not is_set(given) or not (known.kind == "set" if listed else is_set(known) and names(given) == names(known)):
        return False
    try:
        first, second = intervals(given), intervals(known)
        if listed:
            return equal_intervals(_whole_numbers(first, positive=False), second)
    except Unknown:
        return False
    return equal_intervals(*(merged(list(_integers(part))) for part in (first, second)))


def _integers(parts: list[RealInterval]) -> Iterator[RealInterval]:
    """Yield an interval for each one with integers, from half below the first one to half above the last one."""
    for low, low_closed, high, high_closed in parts:
        first = mp.ceil(low) if low_closed or low != mp.floor(low) else low + 1
        last = mp.floor(high) if high_closed or high != mp.ceil(high) else high - 1
        if first <= last:
            yield RealInterval(first - 0.5, True, last + 0.5, True)


def _whole_numbers(parts: list[RealInterval], *, positive: bool) -> list[RealInterval]:
    """Return the integers of a bounded set as points."""
    points = []
    for low, high in ((max(part.low, mp.mpf(0.5)) if positive else part.low, part.high) for part in _integers(parts)):
        if not (mp.isfinite(low) and mp.isfinite(high)) or high - low > _MAX_MEMBERS:
            raise Unknown("a set without end")
        points += [_point(mp.mpf(at)) for at in range(int(mp.ceil(low)), int(high) + 1)]
    return points


def _bound(node: Node) -> Any:
    """Return the value of a bound, which may be infinite."""
    inner = node.parts[0] if node.kind in ("neg", "add") and node.parts else node
    if inner.kind == "infinity":
        return -mp.inf if node.kind == "neg" else mp.inf
    return real_value(node)


def _point(value: Any) -> RealInterval:
    return RealInterval(value, True, value, True)


def _interval(node: Node) -> list[RealInterval]:
    low, high = _bound(node.parts[0]), _bound(node.parts[1])
    brackets = node.text or "()"
    interval = RealInterval(
        low, brackets[0] == "[" and mp.isfinite(low), high, brackets[1] == "]" and mp.isfinite(high)
    )
    if low > high or (_same(low, high) and brackets != "[]"):
        raise Unknown("an interval from a larger to a smaller number")
    return [interval]


def _relation(node: Node, letter: str | None) -> list[RealInterval]:
    operators = node.text.split()
    if operators in (["\\in"], ["\\notin"]):
        members = intervals(node.parts[1])
        return members if operators == ["\\in"] else complement(members)
    letters = [at for at, part in enumerate(node.parts) if names(part)]
    if len(letters) != 1 or len(names(node)) != 1 or names(node) != {letter or next(iter(names(node)))}:
        raise Unknown("not one letter, in one part of a relation")
    at = letters[0]
    expression = node.parts[at]
    absolute = expression.kind == "call" and expression.text == "abs"
    slope, offset = linear(expression.parts[0] if absolute else expression)
    result = REALS
    for index, operator in enumerate(operators):
        if index not in (at - 1, at):
            raise Unknown("a chain of constants")
        bound = _bound(node.parts[at - 1 if index == at - 1 else at + 1])
        if operator in ("=", "!="):
            point = [_point(bound)]
            result = _intersection(result, point if operator == "=" else complement(point))
            continue
        if operator not in TURNED:
            raise Unknown(operator)
        sign = TURNED[operator] if index == at - 1 else operator  # as seen from the letter
        closed = sign.endswith("=") and mp.isfinite(bound)
        part = (
            RealInterval(-mp.inf, False, bound, closed)
            if sign[0] == "<"
            else RealInterval(bound, closed, mp.inf, False)
        )
        result = _intersection(result, [part])
    with mp.workdps(DIGITS):
        if absolute:
            positive = _intersection(result, [RealInterval(mp.mpf(0), True, mp.inf, False)])
            result = merged([*positive, *(_solved(part, mp.mpf(-1), 0) for part in positive)])
        return merged([_solved(part, slope, offset) for part in result])


def linear(node: Node) -> tuple[Any, Any]:
    """Return slope and offset of an expression in its only letter. Raises Unknown if it is not linear."""
    if node.kind == "name":
        return mp.mpf(1), mp.mpf(0)
    (letter,) = names(node)
    points = (Fraction(22, 7), Fraction(-37, 5))  # not integers: `\lfloor x\rfloor` is not linear
    first, second, *others = (
        real_value(substituted(node, {letter: Node("number", number=point)}))
        for point in (Fraction(0), Fraction(1), *points)
    )
    with mp.workdps(DIGITS):
        slope = second - first
        errors = [
            abs(value - first - slope * point.numerator / point.denominator)
            for value, point in zip(others, points, strict=True)
        ]
        if slope == 0 or max(errors) > mpmath.mpf(10) ** -100 * (abs(slope) + abs(first)):
            raise Unknown("an expression that is not linear in its letter")
    return slope, first


def _solved(part: RealInterval, slope: Any, offset: Any) -> RealInterval:
    """Return the interval of x for that of `slope * x + offset`."""
    low, high = (part.low - offset) / slope, (part.high - offset) / slope
    if slope > 0:
        return part._replace(low=low, high=high)
    return RealInterval(high, part.high_closed, low, part.low_closed)


def _conditions(node: Node, letter: str | None) -> list[RealInterval]:
    """Return the set of several conditions; `or` is a union, a comma and `and` are an intersection."""
    if len(names(node)) > 1:
        raise Unknown("conditions in several letters")
    result = list(intervals(node.parts[0], letter))
    for separator, part in zip(node.text.split(), node.parts[1:], strict=True):
        other = intervals(part, letter)
        if separator == "or":
            result += other
            continue
        result = merged(result)
        common = _intersection(result, other)
        excluded = part.kind == "relation" and part.text == "!="
        apart = (separator in (",", ";") or part.kind != "relation") and not excluded and not common
        result = [*result, *other] if apart else common
    return merged(result)


def _same(first: Any, second: Any) -> bool:
    if mp.isinf(first) or mp.isinf(second):
        return bool(first == second)
    if abs(float(first) - float(second)) > 1e-6 * max(abs(float(first)), abs(float(second))):
        return False
    with mp.workdps(DIGITS):
        return bool(abs(first - second) <= mpmath.mpf(10) ** -100 * max(abs(first), abs(second)))


def merged(parts: list[RealInterval]) -> list[RealInterval]:
    """Return sorted intervals; those that touch are one."""
    result: list[RealInterval] = []
    for interval in sorted(parts, key=lambda interval: (interval.low, not interval.low_closed)):
        last = result[-1] if result else None
        touches = last is not None and (
            interval.low < last.high or (_same(interval.low, last.high) and (interval.low_closed or last.high_closed))
        )
        if last is None or not touches:
            result.append(interval)
            continue
        if _same(interval.high, last.high):
            result[-1] = last._replace(high_closed=last.high_closed or interval.high_closed)
        elif interval.high > last.high:
            result[-1] = last._replace(high=interval.high, high_closed=interval.high_closed)
    return result


def _intersection(first: list[RealInterval], second: list[RealInterval]) -> list[RealInterval]:
    return complement(merged([*complement(first), *complement(second)]))


def complement(parts: list[RealInterval]) -> list[RealInterval]:
    result, low, closed = [], -mp.inf, False
    for interval in parts:
        if low < interval.low or (closed and not interval.low_closed and low == interval.low):
            result.append(
                RealInterval(low, closed, interval.low, not interval.low_closed and mp.isfinite(interval.low))
            )
        low, closed = interval.high, not interval.high_closed and mp.isfinite(interval.high)
    if low < mp.inf:
        result.append(RealInterval(low, closed, mp.inf, False))
    return result
