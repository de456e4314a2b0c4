"""The tokens of an answer, and the numbers among them: marks of thousands, decimals without end, powers of ten.

`tokens` adds commands, words and signs. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from fractions import Fraction
from typing import NamedTuple

from .numerals import continued, repeating
from .tree import Node, ParseError

MAX_DIGITS = 2000
"""Most digits of a number: Python prints 4,300."""
MAX_EXPONENT = 2000
"""Largest absolute exponent of a number in scientific notation."""
_GROUPED = re.compile(
    r"\d{1,3}(?:(?:\{,\}|\\text\{,\}|,?\\!|,\\!|\\,|\\ |[ _\u2009\u202f\xa0]|\\;)\d{3})+(?!\d| ?\d)(?:\.\d+)?"
    r"|\d{1,3}(?:\{?,\}?\\!\s*\d{3})+(?!\d)(?:\.\d+)?|[1-9]\d{0,2}(?:\.\d{3}){2,}(?![\d.,])"
)
_COMMAS = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?!\d|,\d)(?:\.\d+)?")
_DIGITS = re.compile(r"\d+(?:\.\d+|\.(?!\.|\s*[A-Za-z]{2}))?|\.\d+", re.ASCII)
_DECIMAL_COMMA = re.compile(
    r"(\d{1,3}(?:[. \u202f]\d{3})+|0|\d+(?!(?:,|\{,\})\d{3}(?!\d)))(?:,|\{,\})(\d+)([eE][-+]?\d+)?(?![\d,])", re.ASCII
)
_EXPONENT = re.compile(r"[eE]([-+]?\d+)(?![\w.]|\s*\^)")
_REPEATED = re.compile(
    r"\s*\\(?:overline|bar|dot)\s*(?:\{\s*(\d+)\s*\}|(\d))(?:(\d*)\\dot\s*(?:\{\s*(\d)\s*\}|(\d)))?|\((\d+)\)(?=\s*$)"
)
_DOTS = re.compile(r"\s*(?:\.{3}|…|\\(?:ldots|dots|cdots)(?![a-zA-Z]))")
LITERAL = re.compile(r"0([xX](?=[0-9a-fA-F]{1,64}\b)|[bB](?=[01]{1,64}\b)|[oO](?=[0-7]{1,64}\b))([0-9a-fA-F]+)")


class Token(NamedTuple):
    """A token of an answer."""

    kind: str
    text: str
    gap: int = 0
    """The gap before it: 0 nothing, 1 a blank, 2 a spacing command."""
    node: Node | None = None
    """The value of a number."""
    roman: bool = False
    """Whether it is in a font command for text."""


class Scanner:
    """Reads the numbers of a text into tokens."""

    def __init__(self, text: str, compounds: Collection[str] = (), *, commas: str = ",", depth: int = 0) -> None:
        self.text, self.compounds, self.commas, self.depth = text, compounds, commas, depth
        self.tokens: list[Token] = []
        self.brackets: list[str] = []
        self.gap, self.roman = 0, False

    def _add(self, kind: str, text: str, node: Node | None = None, gap: int | None = None) -> None:
        self.tokens.append(Token(kind, text, self.gap if gap is None else gap, node, self.roman))
        self.gap = 0

    def _sign(self, text: str) -> None:
        if text in ("(", "[", "{", "\\{"):
            self.brackets.append(text)
        elif text in (")", "]", "}", "\\}") and self.brackets:
            self.brackets.pop()
        self._add("sign", text)

    def _number(self, at: int) -> int:
        """Read a number with thousands marks, a repeated part, or a power of ten."""
        index = bool(self.tokens) and self.tokens[-1].text == "_"  # `\\log_2 512`
        decimal = _DECIMAL_COMMA.match(self.text, at) if self.commas == "." and not self.brackets else None
        match = decimal if decimal or index else _GROUPED.match(self.text, at)
        nested = bool(self.brackets) and self.brackets[-1] != "{"
        if match is None:
            match = _COMMAS.match(self.text, at)
            if match and (nested or self.commas != ",") and ",0" not in match[0]:
                match = None
        match = match or _DIGITS.match(self.text, at)
        if match is None:
            raise ParseError("a digit that is not ASCII")
        if match.end() - at > MAX_DIGITS:
            raise ParseError("a number of too many digits")
        written = match[0] if match[0].count(".") < 2 else match[0].replace(".", "")  # `1.000.000`
        whole, point, part = re.sub(r"[^\d.]", "", written).partition(".")
        if decimal:
            whole, point, part = re.sub(r"\D", "", decimal[1]), ".", decimal[2]
        end = match.end()
        repeated, dots = (_REPEATED.match(self.text, end), _DOTS.match(self.text, end)) if point else (None, None)
        period_of = continued(part) if dots else None
        value = Fraction(int(whole or 0) * 10 ** len(part) + int(part or 0), 10 ** len(part))
        decimals: int | None = len(part) if point else None
        if repeated:
            period = "".join(group for group in repeated.groups() if group)
            if len(period) > MAX_DIGITS:
                raise ParseError("a period of too many digits")
            value, end, decimals = repeating(whole, part, period), repeated.end(), None
        elif dots and period_of:
            value, end, decimals = repeating(whole, *period_of), dots.end(), None
        elif dots:
            end = dots.end()
        exponent = _EXPONENT.match(self.text, end) if not (repeated or dots) else None
        if exponent:
            power = int(exponent[1][:6])
            if abs(power) > MAX_EXPONENT:
                raise ParseError("an exponent beyond the limit")
            value, end = value * Fraction(10) ** power, exponent.end()
            decimals = None if decimals is None else decimals - power
        text = match[0] if end == match.end() else ""
        self._add("number", text, Node("number", number=value, decimals=decimals))
        return end

    def _numeral(self, match: re.Match[str]) -> int:
        """Read `0x2A`, whose value counts."""
        base = {"x": 16, "b": 2, "o": 8}[match[1].lower()]
        digits = match[2].upper().lstrip("0") or "0"
        self._add("number", match[0], Node("based", text=f"{digits}|{base}", number=Fraction(int(digits, base))))
        return match.end()
