"""A position in the tokens of an answer, and the productions that the modules of the grammar share."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from .tokens import Token
from .tree import Node, ParseError, integer

MAX_DEPTH = 40
"""Deepest nesting of groups; each level takes about twelve frames of Python's stack."""
_END = Token("end", "")


class Reading(NamedTuple):
    """How ambiguous texts are read, in both answers alike."""

    compounds: tuple[str, ...] = ()
    """Words that are names, the longest first."""
    derived: Collection[str] = ()
    """Letters of unknown functions."""
    commas: str = ","
    """`,` where a comma can mark thousands, `.` where it can be a decimal point, `;` where it only separates."""
    tight: bool = False
    """Whether a product without signs after `/` belongs to the denominator."""
    vectors: bool = False
    """Whether i, j and k are unit vectors."""
    units: bool = True
    """Whether letters after a number can be a unit."""


class Cursor:
    """A position in a list of tokens. The annotated productions are in the modules above."""

    sequence: Callable[[], Node]
    statement: Callable[[], Node]
    relation: Callable[[], Node]
    sum: Callable[[], Node]
    product: Callable[[], Node]
    factor: Callable[[], Node]
    powered: Callable[[Node], Node]
    over: Callable[[Node], Node]
    operand: Callable[[], Node]
    argument: Callable[..., Node]
    group: Callable[[str], Node]
    mixed_number: Callable[[], tuple[Node, bool]]
    starts_factor: Callable[[], bool]
    note_follows: Callable[[], bool]

    def __init__(self, tokens: list[Token], reading: Reading) -> None:
        self.tokens, self.at, self.bars, self.rows, self.integrals, self.depth, self.signs = tokens, 0, 0, 0, 0, 0, 0
        self.subject: Node | None = None
        self.tight, self.compounds, self.derived = reading.tight, reading.compounds, reading.derived
        self.vectors, self.units = reading.vectors, reading.units

    @property
    def token(self) -> Token:
        """The next token."""
        return self.tokens[self.at]

    def ahead(self, steps: int = 1) -> Token:
        """Return a later token; the end after the last one."""
        return self.tokens[self.at + steps] if self.at + steps < len(self.tokens) else _END

    def take(self) -> Token:
        """Return the next token and move on."""
        token = self.token
        self.at += token.kind != "end"
        return token

    def is_sign(self, *texts: str) -> bool:
        """Return whether the next token is one of these signs."""
        return self.token.kind == "sign" and self.token.text in texts

    def is_word(self, *texts: str) -> bool:
        """Return whether the next token is one of these words, in any case."""
        return self.token.kind == "word" and self.token.text.lower() in texts

    def is_command(self, *texts: str) -> bool:
        """Return whether the next token is one of these commands."""
        return self.token.kind == "command" and self.token.text in texts

    def skip(self, *texts: str) -> bool:
        """Skip one of these signs; return whether it was there."""
        matches = self.is_sign(*texts)
        self.at += matches
        return matches

    def expect(self, *texts: str) -> str:
        """Take one of these signs. Raises ParseError."""
        if not self.is_sign(*texts):
            raise ParseError(f"expected {' or '.join(texts)}, found {self.token.text!r}")
        return self.take().text

    def split_number(self) -> None:
        """Replace a number by its first digit and the others, as LaTeX reads an argument without braces."""
        token = self.token
        parts = [
            token._replace(text=part, gap=gap, node=integer(int(part)))
            for part, gap in ((token.text[0], token.gap), (token.text[1:], 0))
        ]
        self.tokens[self.at : self.at + 1] = parts
