"""A position in the tokens of an answer, and the productions that the modules of the grammar share."""

from __future__ import annotations

from collections.abc import Collection

from .tokens import Token
from .tree import Node, ParseError, integer

MAX_DEPTH = 40
"""Deepest nesting of groups; each level takes about twelve frames of Python's stack."""
_END = Token("end", "")


class Reading:
    """How ambiguous texts are read, in both answers alike.

    `commas`: `,` where a comma can mark thousands, `.` where it can be a decimal point, `;` where it only separates.
    """

    def __init__(
        self,
        compounds: Collection[str] = (),
        derived: Collection[str] = (),
        *,
        commas: str = ",",
        tight: bool = False,
        vectors: bool = False,
        units: bool = True,
    ) -> None:
        self.compounds = sorted(compounds, key=len, reverse=True)
        self.derived, self.commas, self.tight, self.vectors, self.units = derived, commas, tight, vectors, units


class Cursor:
    """A position in a list of tokens."""

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

    # Productions of the modules above

    def sequence(self) -> Node:
        """Parse statements and the separators between them."""
        raise NotImplementedError

    def statement(self) -> Node:
        """Parse a relation with the words around it."""
        raise NotImplementedError

    def relation(self) -> Node:
        """Parse a chain of relations."""
        raise NotImplementedError

    def sum(self) -> Node:
        """Parse a sum of signed terms."""
        raise NotImplementedError

    def product(self) -> Node:
        """Parse factors and their unit."""
        raise NotImplementedError

    def factor(self) -> Node:
        """Parse an operand with its powers."""
        raise NotImplementedError

    def powered(self, node: Node) -> Node:
        """Parse the powers after an operand."""
        raise NotImplementedError

    def over(self, top: Node) -> Node:
        r"""Parse `\over 6` after its first part."""
        raise NotImplementedError

    def operand(self) -> Node:
        """Parse a number, a name, a function, a group or a matrix."""
        raise NotImplementedError

    def argument(self, whole_number: bool = False) -> Node:
        """Parse the argument of a command."""
        raise NotImplementedError

    def group(self, closing: str) -> Node:
        """Parse the content of a group."""
        raise NotImplementedError

    def mixed_number(self) -> tuple[Node, bool]:
        """Parse a factor or a mixed number."""
        raise NotImplementedError

    def starts_factor(self) -> bool:
        """Return whether a factor without a sign in front follows."""
        raise NotImplementedError

    def note_follows(self) -> bool:
        """Return whether a bracket has words."""
        raise NotImplementedError
