r"""Parses the LaTeX commands of an answer: functions, fractions, roots, accents, derivatives, matrices.

`latex.Parser` adds the grammar between the commands: sums, products, brackets, relations. Standard library only.
"""

from __future__ import annotations

import abc
import re
from fractions import Fraction

from .tokens import FUNCTIONS, Node, ParseError, Token, word_set

GREEK = word_set(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron rho sigma tau upsilon phi chi",
    "psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega hbar ell nabla aleph wp",
)
_ANALYSIS = word_set("int iint iiint oint sum prod lim limsup liminf sup inf bigoplus coprod")
_ACCENTS = word_set("bar overline hat widehat tilde widetilde vec overrightarrow underline mathcal mathscr mathfrak")
_SAME_ACCENTS = {"overline": "bar", "overrightarrow": "vec", "widehat": "hat", "widetilde": "tilde"}
FRACTIONS = word_set("frac dfrac tfrac cfrac")
_BINOMIALS = word_set("binom dbinom tbinom")
_SETS = {"mathbb", "Bbb"}


class Unsupported(ParseError):
    """The text has an operator that this parser does not read: an integral, a sum, a limit."""


class CommandParser(abc.ABC):
    """A position in a list of tokens, and the commands that can be at it."""

    def __init__(self, tokens: list[Token], tight: bool) -> None:
        self.tokens, self.at, self.bars, self.tight = tokens, 0, 0, tight

    @property
    def token(self) -> Token:
        """The next token."""
        return self.tokens[self.at]

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

    @abc.abstractmethod
    def statement(self) -> Node:
        """Parse a relation, a ratio or an expression."""

    @abc.abstractmethod
    def sum(self) -> Node:
        """Parse a sum of signed terms."""

    @abc.abstractmethod
    def mixed_number(self) -> tuple[Node, bool]:
        """Parse a factor or a mixed number; the flag is whether it is a plain number."""

    @abc.abstractmethod
    def starts_factor(self) -> bool:
        """Return whether a factor without a sign in front follows."""

    @abc.abstractmethod
    def argument(self, whole_number: bool = False) -> Node:
        """Parse the argument of a command: a group, or one token."""

    @abc.abstractmethod
    def operand(self) -> Node:
        """Parse a number, a name, a function, a group or a matrix."""

    @abc.abstractmethod
    def name(self, text: str, kind: str = "name") -> Node:
        """Parse a name with its subscripts and primes, and the arguments of a function."""

    def command(self, name: str) -> Node:
        """Parse a command with its arguments."""
        if name in FUNCTIONS:
            return self.function(name)
        if name in FRACTIONS:
            return self._derivative() or Node("div", (self.argument(), self.argument()))
        if name in _BINOMIALS:
            return Node("call", (self.argument(), self.argument()), "binom")
        if name in GREEK:
            return self.name("\\" + name)
        if name in _ACCENTS or name in ("dot", "ddot", "boxed", "fbox"):
            return self._accent(name)
        if name in _SETS:
            letter = self.argument()
            return Node("reals") if letter.text == "R" else self.name(f"\\mathbb{letter.text}")
        if name == "Pr":
            return self.name(name)
        if name.startswith("\\begin "):
            return self._environment(name.removeprefix("\\begin "))
        if name in _ANALYSIS or name == "partial":
            raise Unsupported(f"\\{name}")
        simple = {
            "pi": Node("constant", text="pi"),
            "infty": Node("infinity"),
            "emptyset": Node("empty"),
            "varnothing": Node("empty"),
            "imath": Node("constant", text="i"),
            "R": Node("reals"),
        }
        if name in simple:
            return simple[name]
        if name in ("lfloor", "lceil"):
            node = self.sum()
            if self.take().text != ("rfloor" if name == "lfloor" else "rceil"):
                raise ParseError(f"\\{name} without its end")
            return Node("call", (node,), "floor" if name == "lfloor" else "ceil")
        if name[:-1] in FUNCTIONS or name[:-1] in GREEK or name[:-1] == "pi":
            self.tokens.insert(self.at, Token("letter", name[-1]))  # `\sinx`
            return self.command(name[:-1])
        raise ParseError(f"unknown command \\{name}")

    def _accent(self, name: str) -> Node:
        inner = self.argument()
        if name in ("boxed", "fbox"):
            return inner
        if name in ("dot", "ddot"):
            if inner.kind != "name":
                raise ParseError(f"\\{name} of an expression")
            base, _, subscript = inner.text.partition("_")
            primes = "'" * (1 if name == "dot" else 2)
            node = self.name(base + ("_" + subscript if subscript else ""))
            return node._replace(text=node.text + primes)
        return self.name(f"{_SAME_ACCENTS.get(name, name)} {_flat(inner)}")

    def _derivative(self) -> Node | None:
        r"""Parse `\frac{dy}{dx}` and `\frac{d^2y}{dx^2}` as a name; return None for other fractions."""
        start = self.at
        sides: list[list[Token]] = []
        for _ in range(2):
            if not self.skip("{"):
                break
            side, depth = [], 1
            while depth and self.token.kind != "end":
                token = self.take()
                depth += (token == Token("sign", "{")) - (token == Token("sign", "}"))
                if token.text not in ("{", "}"):
                    side.append(token)
            sides.append(side)
        texts = ["".join("\\" * (token.text in GREEK) + token.text for token in side) for side in sides]
        marks = [re.match(r"d|partial", text) for text in texts]
        if len(sides) == 2 and all(marks) and all(len(side) > 1 for side in sides):
            top = re.fullmatch(r"(?:d|partial)(?:\^(\d))?([a-zA-Z\\]\w*)(?:\(\w\))?", texts[0])
            bottom = re.fullmatch(r"d([a-zA-Z])(?:\^(\d))?", texts[1])
            if top and bottom:
                return Node("name", text=top[2] + "'" * int(top[1] or 1))
            if top and texts[1].startswith("partial"):
                return Node("name", text=f"{texts[0]}/{texts[1]}")
        self.at = start
        return None

    def function(self, name: str) -> Node:
        """Parse the exponent, the base and the argument of a known function."""
        exponent: Node | None = None
        base: Node | None = None
        if name == "sqrt":
            return self._root()
        while self.is_sign("^", "_"):
            if self.take().text == "^":
                exponent = self.argument(whole_number=True)
            else:
                base = self.argument(whole_number=self._starts_operand(self.at + 1))  # `\\log_10 5`, but `\\log_23`
        if not (self.is_sign("(", "[", "{", "|", "-", "+") or self.starts_factor()):
            return Node("text", text=name)  # the word `max`
        if self.is_sign("(", "[", "{", "|"):
            inner = self.operand()
        elif self.is_sign("-", "+"):
            inner = Node("neg", (self._implicit_product(),)) if self.take().text == "-" else self._implicit_product()
        else:
            inner = self._implicit_product()
        parts = inner.parts if inner.kind in ("tuple", "set") else (inner,)
        if name == "lg":
            name, base = "log", integer(10)
        if exponent is not None and _is_minus_one(exponent) and "arc" + name in FUNCTIONS:
            return Node("call", parts, "arc" + name)
        if exponent is not None and _is_minus_one(exponent) and "ar" + name in FUNCTIONS:
            return Node("call", parts, "ar" + name)
        node = Node("call", (*parts, base) if base is not None else parts, name)
        return node if exponent is None else Node("pow", (node, exponent))

    def _starts_operand(self, at: int) -> bool:
        """Return whether the token at a position starts the argument of a function."""
        token = self.tokens[min(at, len(self.tokens) - 1)]
        return token.kind not in ("sign", "end") or token.text in ("(", "[", "{", "|", "^")

    def _implicit_product(self) -> Node:
        """Parse the argument of a function without parentheses: factors up to a sign or another function."""
        node = self.mixed_number()[0]
        while self.starts_factor() and not (self.token.kind == "command" and self.token.text in FUNCTIONS):
            if self.is_sign("(", "[", "|"):
                break
            node = Node("mul", (node, self.mixed_number()[0]))
        return node

    def _root(self) -> Node:
        index = integer(2)
        if self.skip("["):
            index = self.sum()
            self.expect("]")
        inner = self.operand() if self.is_sign("(") else self.argument()
        return Node("root", (inner, index))

    def _environment(self, name: str) -> Node:
        """Parse a matrix, cases, or an aligned list of statements."""
        rows: list[Node] = []
        cells: list[Node] = []
        while True:
            if self.token.kind == "command" and self.token.text == f"\\end {name}":
                self.take()
                if cells:
                    rows.append(Node("row", tuple(cells)))
                break
            if self.skip("\\\\"):
                rows.append(Node("row", tuple(cells)))
                cells = []
            elif not self.skip("&", ","):
                cells.append(self.statement())
        if name == "vmatrix":
            return Node("call", (Node("matrix", tuple(rows), "matrix"),), "det")
        if name.endswith("matrix") or name == "array":
            return Node("matrix", tuple(rows), "matrix")
        if name in ("cases", "aligned", "align", "gathered"):
            statements = [row.parts[0] for row in rows if len(row.parts) == 1 and row.parts[0].kind == "relation"]
            if 1 < len(statements) == len(rows):
                return Node("list", tuple(statements), " ".join(["and"] * (len(rows) - 1)))
            return Node("matrix", tuple(rows), "cases")
        raise ParseError(f"unknown environment {name}")


def integer(value: int) -> Node:
    return Node("number", number=Fraction(value))


def _is_minus_one(node: Node) -> bool:
    return node.kind == "neg" and node.parts[0] == integer(1)


def _flat(node: Node) -> str:
    """Return the names of a node as one text."""
    return node.text + "".join(_flat(part) for part in node.parts) + (str(node.number) if node.kind == "number" else "")
