r"""What a form of answer is, and what the makers of rewritings share. For bench/verify.py.

A form is a pattern over a gold answer (its spaces taken out) and two generators: texts that a careful person would mark
as the same answer, and texts that look like it but are another one. What two careful persons may judge differently (an
angle in radians, `2x = 10` for `x = 5`) is in neither. The generators do not use the parser that is measured.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import NamedTuple

Generator = Callable[[re.Match[str]], Iterator[str]]


class Form(NamedTuple):
    """One kind of answer."""

    name: str
    pattern: re.Pattern[str]
    same: Generator
    other: Generator


def decimal(value: Fraction) -> str | None:
    """A fraction as a finite decimal, or None when it has none."""
    digits = 0
    rest = value.denominator
    while rest % 10 == 0 or rest % 5 == 0 or rest % 2 == 0:
        rest //= 10 if rest % 10 == 0 else 5 if rest % 5 == 0 else 2
        digits += 1
    if rest != 1:
        return None
    scaled = abs(value.numerator) * 10**digits // value.denominator
    text = str(scaled).rjust(digits + 1, "0")
    sign = "-" if value < 0 else ""
    return f"{sign}{text[:-digits]}.{text[-digits:]}" if digits else f"{sign}{text}"


def fraction(value: Fraction, times: int = 1, command: str = r"\frac") -> str:
    """`\\frac{p}{q}`, both multiplied by `times`, the sign in front."""
    sign = "-" if value < 0 else ""
    return f"{sign}{command}{{{abs(value.numerator) * times}}}{{{value.denominator * times}}}"


def parts_of(text: str) -> list[str]:
    """A list's members: commas inside brackets or braces do not part."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "{([") - (character in "})]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts
