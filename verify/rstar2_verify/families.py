r"""Infinite sets with an integer parameter: `\frac{\pi}{4}+n\pi`, `2k+1, k\in\mathbb{Z}`, `n \equiv 3 \pmod 7`.

`compare` calls it. A family is a slope and an offset: all numbers offset + k * slope. Two lists of families are equal
when their offsets agree modulo a common multiple of all slopes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import mpmath
from mpmath import mp

from .declarations import ANY_PARAMETERS
from .exact import exact
from .real_sets import linear
from .shapes import members
from .tree import MINUS_ONE, Node, Unknown, integer, mapped, names, nodes, substituted
from .values import DIGITS

PARAMETERS = frozenset("klmn")
"""Letters of an integer parameter that no text declares."""
_MAX_OFFSETS = 200


def parameter(node: Node) -> str | None:
    """Return the only name in a tree, the label of an equation apart; None if there is none, or several."""
    used = names(_unlabelled(node))
    return used.pop() if len(used) == 1 else None


def is_periodic(node: Node) -> bool:
    r"""Return whether a tree is a solution with a period that needs no declaration: `\frac{\pi}{4}+n\pi`."""
    letter = parameter(node)
    if letter not in PARAMETERS or not any(part == Node("constant", text="pi") for part in nodes(node)):
        return False
    try:
        with mp.workdps(DIGITS):
            return None not in [_rational(slope / mp.pi) for slope, _ in _families(node)]
    except Unknown:
        return False


def same_families(given: Node, known: Node) -> bool:
    """Return whether two lists of expressions in one integer parameter are the same numbers."""
    if parameter(given) is None or parameter(known) is None:
        return False
    try:
        ours, theirs = _families(given), _families(known)
    except Unknown:
        return False
    with mp.workdps(DIGITS):
        unit = abs(theirs[0][0])
        ratios = [_rational(slope / unit) for slope, _ in (*ours, *theirs)]
        if None in ratios:
            return False
        positive = [abs(ratio) for ratio in ratios if ratio is not None]
        common = Fraction(
            math.lcm(*(ratio.numerator for ratio in positive)), math.gcd(*(ratio.denominator for ratio in positive))
        )
        if sum(common / ratio for ratio in positive) > _MAX_OFFSETS:
            return False
        first, second = (
            _positions(families, sizes, unit, common)
            for families, sizes in ((ours, positive[: len(ours)]), (theirs, positive[len(ours) :]))
        )
        return _covers(first, second) and _covers(second, first)


def _unlabelled(node: Node) -> Node:
    if node.kind == "list":
        return node._replace(parts=tuple(map(_unlabelled, node.parts)))
    if node.kind == "relation" and node.text == "=" and node.parts[0].kind == "name":
        return node.parts[1]
    return node


def _families(node: Node) -> list[tuple[Any, Any]]:
    """Return (slope, offset) of each member. Raises Unknown if a member is not linear in its only letter."""
    parts = list(members(_unlabelled(node)))
    if any(len(names(part)) != 1 for part in parts):
        raise Unknown("a member without a parameter")
    return [family for part in parts for family in _by_parity(part)]


def has_parity(node: Node) -> bool:
    """Return whether a tree has a power of -1."""
    return any(part.kind == "pow" and part.parts[0] == MINUS_ONE for part in nodes(node))


def _by_parity(node: Node) -> list[tuple[Any, Any]]:
    r"""Return (slope, offset) of an expression; of one with `(-1)^n` those of the even and of the odd numbers."""
    if not has_parity(node):
        return [linear(node)]
    (letter,) = names(node)
    families = []
    for parity in range(2):

        def sign(part: Node, parity: int = parity) -> Node | None:
            if part.kind != "pow" or part.parts[0] != MINUS_ONE:
                return None
            exponents = [exact(substituted(part.parts[1], {letter: integer(value)})) for value in (parity, parity + 2)]
            if any(exponent.denominator != 1 for exponent in exponents) or (exponents[1] - exponents[0]) % 2:
                raise Unknown("a power that changes within the even numbers")
            return MINUS_ONE if exponents[0] % 2 else integer(1)

        steps = Node("add", (Node("mul", (integer(2), Node("name", text=letter))), integer(parity)))
        families.append(linear(substituted(mapped(node, sign), {letter: steps})))
    return families


def _rational(value: Any) -> Fraction | None:
    """Return a ratio of small integers that a real number equals."""
    ratio = Fraction(int(mp.nint(value * 2**40)), 2**40).limit_denominator(1000)
    error = abs(value * ratio.denominator - ratio.numerator)
    return ratio if ratio and error < mpmath.mpf(10) ** -90 * abs(ratio.numerator) else None


def _positions(
    families: Sequence[tuple[Any, Any]], sizes: Sequence[Fraction], unit: Any, common: Fraction
) -> list[Any]:
    """Return all offsets in units of the common period, from 0 to 1."""
    positions = []
    for (_, offset), size in zip(families, sizes, strict=True):
        period = unit * common.numerator / common.denominator
        for step in range(int(common / size)):
            start = offset / period + mpmath.mpf((size * step / common).numerator) / (size * step / common).denominator
            positions.append(start - mp.floor(start))
    return positions


def _covers(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Return whether each position of the second list is in the first one; 0 and 1 are the same position."""
    small = mpmath.mpf(10) ** -80
    return all(any(min(abs(a - b), 1 - abs(a - b)) < small for a in first) for b in second)


# Congruences


def same_residues(given: Node, known: Node) -> bool | None:
    r"""Return whether two answers are the same residue classes; None if one of them is none.

    `n \equiv 3 \pmod 7`, `n=7k+3` and `n \equiv 10 \pmod 7` are the same; so are `1, 4 \pmod 5` and `\pm 1 \pmod 5`.
    """
    labels = {part.parts[0].text for side in (given, known) for part in _statements(side) if part.kind == "relation"}
    ours, theirs = _progressions(given), _progressions(known)
    if ours is None or theirs is None:
        return None
    return len(labels) < 2 and same_families(ours, theirs)


def _statements(node: Node) -> tuple[Node, ...]:
    return node.parts if node.kind == "list" else (node,)


def _progressions(node: Node) -> Node | None:
    r"""Return the list of `5k+1, 5k+4` for `1, 4 \pmod 5`; None for values without one modulus or parameter."""
    moduli: list[Node] = []
    values: list[Node] = []
    for part in _statements(node):
        if part.kind == "relation":
            if part.text not in ("=", "\\equiv") or part.parts[0].kind != "name":
                return None
            part = part.parts[1]
        if part.kind == "congruent":
            moduli.append(part.parts[1])
            part = part.parts[0]
        values += members(part)
    if any(modulus != moduli[0] for modulus in moduli) or any(names(modulus) for modulus in moduli):
        return None
    letters = set().union(*map(names, values))
    if not moduli and len(letters) == len(values) == 1 and letters <= ANY_PARAMETERS:
        return values[0]
    if not moduli or letters:
        return None
    period = Node("mul", (*moduli[:1], Node("name", text="k")))
    return Node("list", tuple(Node("add", (value, period)) for value in values))
