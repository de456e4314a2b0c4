"""Reads a known answer strictly: it must have one type and one meaning. For checks of data, before any comparison."""

from __future__ import annotations

import re

from .chemistry import same_formulas
from .compare import same_answer
from .dates import same_moments
from .extract import final_answer
from .texts import choice, choices
from .tokens import Token
from .tree import Undecided, names
from .verifier import MAX_CHARACTERS, Comparison, is_text

MAX_WORDS = 6
"""Longest known answer in words that is not reported."""
TWO_READINGS = (
    "it has two readings: write a denominator in brackets, a unit in `\\text{}`, and lists without marks of thousands"
)
_NUMBER = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?", re.ASCII)


def known_fault(known: str) -> str | None:
    """Return the reason why a known answer cannot be compared by type, or only with a guess; None if it can be.

    A number with marks of thousands (`1,234`) has one reading here.
    """
    if len(known) > MAX_CHARACTERS:
        return f"it has more than {MAX_CHARACTERS} characters"
    text = final_answer(known)
    if _NUMBER.fullmatch(text):
        return None
    comparison = Comparison(text, text)
    tokens = comparison.tokens(text)
    if tokens is None:
        return "it has no type: it has characters that no answer has"
    if (
        same_moments(text, text)
        or choice(tokens) is not None
        or choices(tokens[:-1]) is not None
        or same_formulas(text, text)
    ):
        return None
    if is_text(tokens):
        length = sum(token.kind == "word" for token in tokens)
        return None if length <= MAX_WORDS else "it has no type: it is a sentence, which is compared word by word"
    values = [comparison.value(text, reading) for reading in comparison.readings(tokens, tokens)]
    read = [value for value in dict.fromkeys(values) if value is not None]
    if not read:
        return "it has no type: it is compared as text"
    if read[0].kind == "quantity" and not names(read[0]) and _has_plain_unit(tokens):
        return None
    try:
        if all(same_answer(value, read[0]) for value in read[1:]):
            return None
    except (Undecided, RecursionError, OverflowError, MemoryError):
        pass
    return TWO_READINGS


def _has_plain_unit(tokens: list[Token]) -> bool:
    """Return whether a unit of several letters follows after a blank: `5 m/s`. One letter may be a variable."""
    at = next((at for at, token in enumerate(tokens) if token.kind in ("letter", "word")), 0)
    unit = tokens[at:-1]
    plain = all(
        token.kind in ("letter", "word", "number") or token.text in ("/", "^", "{", "}", "-", "*") for token in unit
    )
    return at > 0 and tokens[at].gap > 0 and len(unit) > 1 and plain
