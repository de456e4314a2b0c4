"""Exact values of trees as fractions.

`values` compares the fractions of two trees where both have one. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction

from .tree import Node, NotExact, Undefined

_MAX_BITS = 200_000
_MAX_TOTIENT = 10**10


def exact(node: Node) -> Fraction:
    """Return the value as a fraction. Raises NotExact, Undefined and TooLarge."""
    kind = node.kind
    if kind == "number":
        return node.number
    if kind == "percent":
        return exact(node.parts[0]) / 100
    if kind in ("add", "mul", "div", "neg", "pow", "root") or (kind == "call" and node.text in _EXACT):
        parts = [exact(part) for part in node.parts]
        value = _combine(node, parts)
        if value.numerator.bit_length() + value.denominator.bit_length() <= _MAX_BITS:
            return value
    raise NotExact


def _combine(node: Node, parts: list[Fraction]) -> Fraction:
    """Return the value of an operation on fractions."""
    match node.kind:
        case "add":
            return sum(parts, Fraction(0))
        case "mul":
            return parts[0] * parts[1]
        case "neg":
            return -parts[0]
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


def _chosen(upper: Fraction, lower: Fraction, count: Callable[[int, int], int]) -> Fraction:
    n, k = _whole(upper, lower)
    if n < 0 or k < 0 or n > 10_000:
        raise NotExact
    return Fraction(count(n, k))


def _totient(value: Fraction) -> Fraction:
    (number,) = _whole(value)
    if not 0 < number <= _MAX_TOTIENT:
        raise NotExact
    count, rest, prime = number, number, 2
    while rest > 1:
        if rest % prime == 0:
            count -= count // prime
            while rest % prime == 0:
                rest //= prime
        prime = prime + 1 if prime * prime < rest else max(rest, prime + 1)
    return Fraction(count)


_EXACT: Mapping[str, Callable[..., Fraction]] = {
    "factorial": lambda value: _chosen(value, value, math.perm),
    "binom": lambda upper, lower: _chosen(upper, lower, math.comb),
    "permutations": lambda upper, lower: _chosen(upper, lower, math.perm),
    "totient": _totient,
    "abs": abs,
    "floor": lambda value: Fraction(math.floor(value)),
    "ceil": lambda value: Fraction(math.ceil(value)),
    "max": lambda *values: max(values),
    "min": lambda *values: min(values),
    "gcd": lambda *values: Fraction(math.gcd(*_whole(*values))),
    "lcm": lambda *values: Fraction(math.lcm(*_whole(*values))),
}
