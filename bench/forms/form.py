r"""The forms of answers, and the shared functions of their generators. For bench/verify.py.

A form has a pattern for a gold answer without spaces, and two generators. `same` yields rewritings that a careful
person would accept, `other` yields similar texts with another answer. Debatable cases, such as an angle in radians or
`2x = 10`
for `x = 5`, are in neither. The generators do not use the measured parser.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import NamedTuple

Generator = Callable[[re.Match[str]], Iterator[str]]


class Form(NamedTuple):
    """One form of answers."""

    name: str
    pattern: re.Pattern[str]
    same: Generator
    """Yields rewritings of the answer."""
    other: Generator
    """Yields near misses: other answers that look similar."""


def decimal(value: Fraction) -> str | None:
    """Return a fraction as a finite decimal, or None if it is infinite."""
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
    """Return `\\frac{p}{q}` with both multiplied by `times` and the sign in front."""
    sign = "-" if value < 0 else ""
    return f"{sign}{command}{{{abs(value.numerator) * times}}}{{{value.denominator * times}}}"


def parts_of(text: str) -> list[str]:
    """Split at the commas outside brackets and braces."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "{([") - (character in "})]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _generic_same(match: re.Match[str]) -> Iterator[str]:
    text = match[0]
    yield from (f"${text}$", f" {text} ", rf"\boxed{{{text}}}", rf"\displaystyle {text}", f"{text}.", rf"\({text}\)")
    yield text.replace(r"\frac", r"\dfrac")
    yield text.replace(" ", "") if "\\" not in text and not re.search("[a-zA-Z] [a-zA-Z]", text) else f"{text} "


def _generic_other(match: re.Match[str]) -> Iterator[str]:
    text = match[0]
    yield from (
        "0" if text.strip(" 0.$") else "1",
        r"\text{none of these}",
        f"{text}, 1009",
        f"1009+{text}",
        f"1009({text})",
    )
    digits = re.search(r"\d", text)
    if digits:
        yield f"{text[: digits.start()]}{(int(digits[0]) + 1) % 10}{text[digits.end() :]}"


GENERIC = Form("other", re.compile(r".*", re.DOTALL), _generic_same, _generic_other)
"""For a gold answer that no form describes: other typesetting, and changes that give another answer in any form."""
