"""Decimals without end, and numerals of a base. Standard library only."""

from __future__ import annotations

from fractions import Fraction

from .tree import Node, integer


def repeating(whole: str, start: str, period: str) -> Fraction:
    """Return `whole.start` followed by `period` repeated without end."""
    shift = 10 ** len(start)
    nines = 10 ** len(period) - 1
    return Fraction(int(whole or "0")) + Fraction(int(start or "0"), shift) + Fraction(int(period), shift * nines)


def continued(digits: str) -> tuple[str, str] | None:
    """Return (start, period) of decimals before dots: `1666` is 1 and 6; None if nothing repeats."""
    for length in range(1, len(digits) // 2 + 1):
        period, start, count = digits[-length:], digits, 0
        while start.endswith(period):
            start, count = start[:-length], count + 1
        if count >= 3 or (count >= 2 and (not start or length > 1)):
            return start, period
    return None


def in_tens(node: Node) -> Node:
    """Return the number of a numeral of a base; other nodes unchanged."""
    if node.kind != "based":
        return node
    digits, base = node.text.split("|")
    try:
        return integer(int(digits, int(base)))
    except ValueError:
        return node


def same_numerals(given: Node, known: Node) -> bool:
    """Compare two numerals of a base; a number without a base is the digits."""
    if given.kind == known.kind:
        return given.text == known.text
    numeral, other = (given, known) if given.kind == "based" else (known, given)
    digits, base = numeral.text.split("|")
    if numeral.number:
        return other.kind == "number" and other.number == numeral.number
    if numeral is given and base != "10":
        return False
    return other.kind == "number" and other.number == Fraction(int(digits))
