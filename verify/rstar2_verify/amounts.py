r"""Compares amounts: quantities with units, percent, degrees, and amounts of two units.

A unit may be missing on one side. Two units must be the same, or the amounts must be equal in SI. Percent equal a
fraction of 100; degrees equal radians if the other side has a multiple of pi. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from .exact import exact
from .expressions import KNOWN_DIGITS, decimal, rounded, significant
from .tree import Node, NotExact, Undefined, has, integer, mapped, nodes
from .units import Unit, same_unit, scale, unit_of, written

Same = Callable[[Node, Node], bool]
_PI = Node("constant", text="pi")
_THOUSANDS = {"k": 1000, "K": 1000, "M": 10**6}
_MONEY = ("dollar", "cent", "euro", "yen", "rupee", "yuan", "pound_sterling", "pound")
_ROUNDING = Fraction(1, 50)
"""Part of an amount that it may differ by in another unit: it is rounded in both."""
_INVERSES = ("arcsin", "arccos", "arctan", "arccot")
_ORDERED = ("year month week day h min s", "yd ft in", "mi ft", "lb oz", "pound oz", "km m cm mm", "kg g",
            "gal qt pint cup", "dollar cent")  # fmt: skip


def same_amounts(given: Node, known: Node, same: Same) -> bool | None:
    """Return whether two amounts are equal; None if neither side has a unit, percent or degrees at its top."""
    first, second = _compound(given), _compound(known)
    if first or second:
        return _same_compounds(given, known, first, second, same)
    kinds = {given.kind, known.kind}
    if (
        known.kind == "number"
        and given.kind == "mul"
        and given.parts[1].text in _THOUSANDS
        and given.parts[0].kind == "number"
    ):
        return given.parts[0].number * _THOUSANDS[given.parts[1].text] == known.number
    if "quantity" in kinds:
        return _same_quantities(given, known, same)
    if "percent" in kinds:
        return _same_percents(given, known, same)
    if has("degree", given, known) and not kinds & {
        "relation", "list", "tuple", "set", "noted", "interval", "ratio", "builder", "matrix"
    }:  # fmt: skip
        return _same_angles(given, known, same)
    return None


def approximated(node: Node) -> Node:
    r"""Return the last side of `4.0\times10^{-19} J \approx 2.5 eV`, if it rounds the one before it; else the node."""
    if node.kind != "relation" or not node.text.endswith("~"):
        return node
    *others, before, last = node.parts
    (first, unit), (second, other) = (
        (side.parts[0], side.unit) if side.kind == "quantity" else (side, ()) for side in (before, last)
    )
    written = decimal(second)
    try:
        value = exact(first) * Fraction(scale(unit)[1]) / Fraction(scale(other)[1])
        converted = unit != other and abs(value / exact(second) - 1) < _ROUNDING
    except (NotExact, Undefined, ZeroDivisionError, OverflowError):
        return node
    if scale(unit)[0] != scale(other)[0] or not (converted or (written and rounded(value, written[1]) == written[0])):
        return node
    last = last._replace(text="~") if last.kind == "number" else last
    return Node("relation", (*others, last), node.text.rpartition(" ")[0]) if others else last


def without_units(node: Node) -> Node:
    """Return a tree in which the units of quantities inside of expressions are names."""

    def named(part: Node) -> Node | None:
        if part.kind != "quantity":
            return None
        return Node("mul", (without_units(part.parts[0]), Node("name", text=f"unit {written(part.unit)}")))

    return mapped(node, named)


def in_radians(node: Node) -> Node:
    """Return a tree with radians for degrees."""
    straight = Node("div", (_PI, integer(180)))
    return mapped(node, lambda part: Node("mul", (part.parts[0], straight)) if part.kind == "degree" else None)


def in_numbers(node: Node) -> Node:
    """Return a tree with bare numbers for degrees outside of functions."""
    return mapped(node, lambda part: part if part.kind == "call" else part.parts[0] if part.kind == "degree" else None)


def _same_angles(given: Node, known: Node, same: Same) -> bool | None:
    sides = [has("degree", side) for side in (given, known)]
    turned = [
        any(node == _PI or (node.kind == "call" and node.text in _INVERSES) for node in nodes(side))
        for side in (given, known)
    ]
    first, second = (in_radians, in_radians) if any(turned) else (in_numbers, in_numbers)
    pair = first(given), second(known)
    if pair == (given, known):
        return None
    if same(*pair):
        return True
    return False if all(sides) or not any(turned) else same(in_radians(given), in_radians(known))


def _same_percents(given: Node, known: Node, same: Same) -> bool:
    first, second = (side.parts[0] if side.kind == "percent" else None for side in (given, known))
    if first and second:
        return same(first, second)
    plain, share = (known, first) if first else (given, second)
    assert share is not None
    hundredth = Node("div", (share, Node("pow", (integer(10), integer(2)))))
    if same(hundredth, plain) if first else same(plain, hundredth):
        return True
    try:
        fraction = abs(exact(plain)) < 1 and first is not None
    except (NotExact, Undefined):
        fraction = True
    return not fraction and (same(share, plain) if first else same(plain, share))


def _same_quantities(given: Node, known: Node, same: Same) -> bool | None:
    units = [side.unit if side.kind == "quantity" and side.unit[0][0] != "unit" else () for side in (given, known)]
    if {given.kind, known.kind} & {"relation", "list", "set", "noted", "tuple"}:
        return None
    first, second = (side.parts[0] if side.kind == "quantity" else side for side in (given, known))
    if given.kind == known.kind == "quantity" and not any(units) and given.unit != known.unit:
        return False  # square and cubic units
    if all(units):
        plain = [[factor for factor in unit if factor[0] != "rad"] for unit in units]  # `rad/s` and `s^{-1}`
        if same_unit(*units) or (all(plain) and plain[0] == plain[1]):
            money = len(units[0]) == 1 and units[0][0][0] in _MONEY and decimal(first) and decimal(second)
            return exact(first) == exact(second) if money else same(first, second)
        if _same_prices(*units):
            return same(first, second)
        angles = [_angle(node, unit) for node, unit in ((first, units[0]), (second, units[1]))]
        if all(angles):
            return same(in_radians(angles[0]), in_radians(angles[1]))  # type: ignore[arg-type]
        return _same_sizes(first, units[0], second, units[1], same)
    unit = units[0] or units[1]
    bare = second if units[0] else first
    if unit in ((("degree", 1),), (("rad", 1),)):
        angle = first if units[0] else second
        angle = Node("degree", (angle,)) if unit[0][0] == "degree" else angle
        if unit[0][0] == "rad" and has("degree", bare):
            return same(in_radians(bare), angle)
        return same(angle, second) if units[0] else same(first, angle)
    if bare.kind == "degree":
        temperature = unit[0][0] in ("celsius", "fahrenheit", "C", "F")
        return temperature and same(first if units[0] else first.parts[0], second.parts[0] if units[0] else second)
    if bare.kind == "percent":
        return False
    if same(first, second):
        return True
    if units[0] and unit[0][0] in _THOUSANDS and len(unit) == 1 and known.kind == "number":
        return same(Node("mul", (first, integer(_THOUSANDS[unit[0][0]]))), second)
    return False


def _same_prices(first: Unit, second: Unit) -> bool:
    """Return whether both are amounts of one money, of which one states for how much: `5.4 cents per ounce`."""
    short, long = sorted((first, second), key=len)
    return (
        len(short) == 1
        and short[0][0] in _MONEY
        and short[0] in long
        and all(power < 0 for symbol, power in long if symbol not in _MONEY)
    )


def _angle(node: Node, unit: Unit) -> Node | None:
    if unit == (("degree", 1),):
        return Node("degree", (node,))
    return node if unit == (("rad", 1),) else None


def _same_sizes(first: Node, unit: Unit, second: Node, other: Unit, same: Same) -> bool:
    """Return whether two amounts in different units of one dimension are equal."""
    (dimensions, size), (theirs, known_size) = scale(unit), scale(other)
    if len(unit) == len(other) == 1 and unit[0][0] in _TEMPERATURES and other[0][0] in _TEMPERATURES:
        return _same_temperatures(first, unit[0][0], second, other[0][0])
    if dimensions != theirs or not dimensions:
        return False
    ratio = Fraction(size) / Fraction(known_size)
    return same(Node("mul", (first, Node("number", number=ratio))), second) or _converted(first, second, ratio)


_TEMPERATURES: dict[str, Callable[[Fraction], Fraction]] = {
    "K": lambda value: value,
    "celsius": lambda value: value + Fraction(27315, 100),
    "C": lambda value: value + Fraction(27315, 100),
    "fahrenheit": lambda value: (value - 32) * 5 / 9 + Fraction(27315, 100),
    "F": lambda value: (value - 32) * 5 / 9 + Fraction(27315, 100),
}
"""Symbol of a temperature -> its conversion into kelvins."""


def _same_temperatures(first: Node, unit: str, second: Node, other: str) -> bool:
    """Return whether two temperatures are the same, rounded to whole degrees if one of them is whole."""
    mine, theirs = _written(first), _written(second)
    if mine is None or theirs is None:
        return False
    (given, decimals), (known, places) = mine, theirs
    kelvins = _TEMPERATURES[unit](given), _TEMPERATURES[other](known)
    step = Fraction(1, 10 ** max(min(decimals, places), 0)) / 2
    return kelvins[0] == kelvins[1] or abs(kelvins[0] - kelvins[1]) < step


def _written(node: Node) -> tuple[Fraction, int] | None:
    """Return the value and the decimals of a number as it is written."""
    try:
        return decimal(node) or (exact(node), 0)
    except (NotExact, Undefined):
        return None


def _converted(given: Node, known: Node, ratio: Fraction) -> bool:
    """Return whether one amount is the other one in its unit, rounded to at least three significant digits."""
    first, second = _written(given), _written(known)
    if first is None or second is None:
        return False
    pairs = ((first, second[0] / ratio), (second, first[0] * ratio))
    return any(significant(side) >= KNOWN_DIGITS and rounded(value, side[1]) == side[0] for side, value in pairs)


# Amounts of two units


def _compound(node: Node) -> list[tuple[Node, Unit]]:
    """Return the amounts of `3 h 20 min`; empty for other values."""
    if node.kind != "list" or len(node.parts) > 4 or not set(node.text.split()) <= {"and", ","}:
        return []
    amounts: list[tuple[Node, Unit]] = []
    for part in node.parts:
        if part.kind != "quantity" or len(part.unit) != 1:
            return []
        amounts.append((part.parts[0], part.unit))
    symbols = [unit[0][0] for _, unit in amounts]
    if len(symbols) > 1 and symbols[:2] == ["h", "m"]:
        symbols[1] = "min"
        amounts[1] = (amounts[1][0], unit_of("min") or ())
    order = next((names.split() for names in _ORDERED if set(symbols) <= set(names.split())), [])
    places = [order.index(symbol) for symbol in symbols] if order else []
    return amounts if places and places == sorted(set(places)) else []


def _same_compounds(
    given: Node, known: Node, first: list[tuple[Node, Unit]], second: list[tuple[Node, Unit]], same: Same
) -> bool | None:
    if first and second:
        return _total(first) == _total(second) is not None
    amounts, other = (first, known) if first else (second, given)
    total = _total(amounts)
    if total is None:
        return False
    if other.kind == "ratio" and len(amounts) == len(other.parts):  # `2:15` for `2 h 15 min`
        return total == _total([(node, unit) for node, (_, unit) in zip(other.parts, amounts, strict=True)])
    if other.kind == "quantity":
        if scale(other.unit)[0] != scale(amounts[0][1])[0]:
            return False
        size = scale(other.unit)[1]
    elif amounts[0][1] == (("dollar", 1),):
        size = Fraction(1)
    else:
        return False
    value = other.parts[0] if other.kind == "quantity" else other
    return isinstance(size, Fraction) and same(value, Node("number", number=total / size))


def _total(amounts: list[tuple[Node, Unit]]) -> Fraction | None:
    total: Fraction | float = Fraction(0)
    for node, unit in amounts:
        size = scale(unit)[1]
        try:
            total += exact(node) * size
        except (NotExact, Undefined):
            return None
    return total if isinstance(total, Fraction) else None
