r"""Parses the LaTeX of an answer into a tree of nodes. Evaluates nothing, and takes linear time.

It also reads plain notation (`sqrt(5)`, `2*x`, `1e-5`). Case matters, and so do subscripts: `I_1` is a name. A text
that the grammar does not cover is a ParseError; an operator of analysis is Unsupported (another parser may read it).
Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from fractions import Fraction

from .tokens import FUNCTIONS, Lexer, Node, ParseError, Token, names

_GREEK = names(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron rho sigma tau upsilon phi chi",
    "psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega hbar ell nabla aleph wp",
)
_ANALYSIS = names("int iint iiint oint sum prod lim limsup liminf sup inf bigoplus coprod")
_ACCENTS = names("bar overline hat widehat tilde widetilde vec overrightarrow underline mathcal mathscr mathfrak")
_FRACTIONS = names("frac dfrac tfrac cfrac")
_BINOMIALS = names("binom dbinom tbinom")
_SETS = {"mathbb", "Bbb"}
_RELATIONS = frozenset(["=", "<", ">", "<=", ">=", "!=", "~", "\\in", "\\equiv", "\\to"])
_FUNCTION_LETTERS = frozenset("fFhH")
"""Letters that are a function when an argument in parentheses follows; another letter is a factor."""


class Unsupported(ParseError):
    """The text has an operator that this parser does not read: an integral, a sum, a limit."""


class Parser:
    """Builds the tree of a list of tokens by recursive descent."""

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

    def answer(self) -> Node:
        """Parse everything."""
        node = self.sequence()
        if self.token.kind != "end":
            raise ParseError(f"unexpected {self.token.text!r}")
        return node

    def sequence(self) -> Node:
        """Parse statements separated by commas, semicolons, `and` or `or`; several are a list."""
        items, separators = [self.statement()], []
        while self.is_sign(",", ";", "and", "or"):
            separator = self.take().text
            while self.is_sign("and", "or", ","):
                separator = self.take().text
            if self.token.kind == "end" and separator in ",;":
                break
            separators.append(separator)
            items.append(self.statement())
        return items[0] if len(items) == 1 else Node("list", tuple(items), " ".join(separators))

    def statement(self) -> Node:
        """Parse a relation, a ratio or an expression."""
        self.skip("=", "\\to", "~")
        operands, operators = [self.sets()], []
        while self.token.kind == "sign" and self.token.text in _RELATIONS:
            operators.append(self.take().text)
            operands.append(self.sets())
        if self.token.kind == "command" and self.token.text in ("pmod", "bmod", "mod"):
            braced = self.take().text == "pmod"
            modulus = self.argument() if braced and self.is_sign("{") else self.sum()
            last = Node("congruent", (operands[-1], modulus))
            operands[-1] = last
        if not operators:
            return operands[0]
        return Node("relation", tuple(operands), " ".join(operators))

    def sets(self) -> Node:
        """Parse unions, intersections and differences of sets, and ratios."""
        node = self.sum()
        kinds = {"\\cup": "union", "\\cap": "intersection", "\\setminus": "difference"}
        while self.is_sign(*kinds):
            kind = kinds[self.take().text]
            node = Node(kind, (node, self.sum()))
        if self.is_sign(":") and not self.bars:
            parts = [node]
            while self.skip(":"):
                parts.append(self.sum())
            node = Node("ratio", tuple(parts))
        return node

    def sum(self) -> Node:
        """Parse a sum of signed terms."""
        terms: list[Node] = []
        while True:
            sign = self.take().text if self.is_sign("+", "-", "\\pm", "\\mp") else ""
            if not sign and terms:
                break
            if sign in ("\\pm", "\\mp"):
                term = Node("pm", (self.product(),), sign[1:])
            else:
                term = self.product()
                term = Node("neg", (term,)) if sign == "-" else term
            terms.append(term)
        return terms[0] if len(terms) == 1 else Node("add", tuple(terms))

    def product(self) -> Node:
        """Parse factors with and without signs between them, from left to right."""
        if self.is_sign("+", "-", "\\pm", "\\mp"):
            return self._signed()
        node, plain = self._mixed_number()
        while True:
            if self.skip("*"):
                node, plain = Node("mul", (node, self._signed())), False
            elif self.skip("/"):
                divisor = self._signed()
                while self.tight and self.starts_factor():
                    divisor = Node("mul", (divisor, self._mixed_number()[0]))
                node, plain = Node("div", (node, divisor)), False
            elif self.starts_factor():
                if self.token.kind == "number" and (plain or node.kind == "div"):
                    raise ParseError("a number directly after another one")
                factor, plain = self._mixed_number()
                node = Node("mul", (node, factor))
            else:
                return node

    def _signed(self) -> Node:
        """Parse a factor that may have a sign."""
        if self.skip("-"):
            return Node("neg", (self._signed(),))
        if self.is_sign("\\pm", "\\mp"):
            sign = self.take().text[1:]
            return Node("pm", (self._signed(),), sign)
        self.skip("+")
        return self._mixed_number()[0]

    def _mixed_number(self) -> tuple[Node, bool]:
        """Parse a factor; an integer before a proper fraction of integers is a mixed number."""
        integer = self.token.kind == "number" and self.token.text.isdigit()
        node = self.factor()
        fraction = self.token.kind == "command" and self.token.text in _FRACTIONS
        if integer and node.kind == "number" and fraction:
            start = self.at
            part = self.factor()
            integers = all(side.kind == "number" and side.decimals is None for side in part.parts)
            if part.kind == "div" and integers and part.parts[0].number < part.parts[1].number:
                return Node("add", (node, part)), False
            self.at = start
        return node, node.kind == "number"

    def starts_factor(self) -> bool:
        """Return whether a factor without a sign in front follows."""
        token = self.token
        if token.kind == "sign":
            if token.text == "[" and self._closes():
                return False
            return token.text in ("(", "[", "{", "\\{", "\\langle") or (token.text == "|" and not self.bars)
        if token.kind == "command":
            return token.text not in ("over", "choose", "rfloor", "rceil", "pmod", "bmod", "mod", "atop") and not (
                token.text.startswith("\\end ")
            )
        return token.kind != "end"

    def _closes(self) -> bool:
        """Return whether the next bracket is the end of an interval such as `[2,5[`."""
        token = self.tokens[self.at + 1]
        return token.kind == "end" or (token.kind == "sign" and token.text in ("\\cup", "\\cap", ",", ";", "or", "and"))

    def factor(self) -> Node:
        """Parse an operand with its powers, factorials and degrees."""
        node = self.operand()
        while True:
            if self.is_sign("^"):
                node = self._power(node)
            elif self.is_sign("!"):
                self.take()
                node = Node("call", (node,), "factorial")
            elif self.is_sign("%"):
                self.take()
                node = Node("div", (node, _integer(100)))
            elif self.is_sign("\\degree"):
                self.take()
                node = Node("degree", (node,))
            elif self.is_sign("_") and node.kind in ("name", "constant"):
                node = self.name(node.text)
            elif self.is_sign("_") and node.kind == "pow" and node.parts[0].kind in ("name", "constant"):
                base, exponent = node.parts
                node = Node("pow", (Node("name", text=f"{base.text}_{self.subscript()}"), exponent))
            else:
                return node

    def _power(self, base: Node) -> Node:
        self.take()
        braced = self.is_sign("{")
        if braced and self.tokens[self.at + 1] == Token("sign", "\\degree"):
            self.at += 2
            self.expect("}")
            return Node("degree", (base,))
        if self.skip("\\degree"):
            return Node("degree", (base,))
        if braced and self.tokens[self.at + 1] == Token("sign", "*"):
            raise ParseError("a star as an exponent")
        exponent = self.argument(whole_number=True)
        return Node("pow", (base, exponent))

    def argument(self, whole_number: bool = False) -> Node:
        """Parse the argument of a command: a group, or one token. Of an unbraced number it is the first digit."""
        if self.skip("{"):
            return self.group("}")
        if self.is_sign("-", "+"):
            sign = self.take().text
            inner = self.argument(whole_number)
            return Node("neg", (inner,)) if sign == "-" else inner
        token = self.token
        if token.kind == "number" and not whole_number and len(token.text) > 1 and token.text.isdigit():
            rest = token.text[1:]
            self.tokens[self.at] = Token("number", rest, _integer(int(rest)))
            return _integer(int(token.text[0]))
        return self.operand()

    def group(self, closing: str) -> Node:
        """Parse the content of a group up to its closing brace."""
        bars, self.bars = self.bars, 0
        node = self.sequence()
        if self.token.kind == "command" and self.token.text in ("over", "choose"):
            command = self.take().text
            rest = self.sequence()
            node = Node("div", (node, rest)) if command == "over" else Node("call", (node, rest), "binom")
        self.expect(closing)
        self.bars = bars
        return node._replace(kind="set") if node.kind == "list" and closing == "}" else node

    def operand(self) -> Node:
        """Parse a number, a name, a function, a group or a matrix."""
        token = self.take()
        if token.kind == "number":
            assert token.node is not None
            return token.node
        if token.kind == "letter":
            return self.name(token.text)
        if token.kind == "word":
            return self.name(token.text, kind="text")
        if token.kind == "command":
            return self.command(token.text)
        if token.kind == "sign":
            return self.bracket(token.text)
        raise ParseError("an operand is missing")

    def bracket(self, opening: str) -> Node:
        """Parse a group in brackets of any kind."""
        if opening == "{":
            if self.skip("}"):
                return self.operand()
            return self.group("}")
        if opening == "\\{":
            return self._set()
        if opening == "|":
            self.bars += 1
            node = self.sum()
            self.expect("|")
            self.bars -= 1
            return Node("call", (node,), "abs")
        if opening == "\\langle":
            node = self.sequence()
            self.expect("\\rangle")
            return Node("tuple", node.parts if node.kind == "list" else (node,))
        if opening == "...":
            return Node("dots")
        if opening not in ("(", "[", "]"):
            raise ParseError(f"unexpected {opening!r}")
        bars, self.bars = self.bars, 0
        node = self.sequence()
        closing = self.expect(")", "]", "[") if opening == "]" or node.kind == "list" else self.expect(")", "]")
        self.bars = bars
        return _bracketed(opening, node, closing)

    def _set(self) -> Node:
        bars, self.bars = self.bars, 1
        if self.skip("\\}"):
            self.bars = bars
            return Node("empty")
        node = self.sequence()
        if self.skip("|", ":"):
            self.bars = bars
            condition = self.sequence()
            self.expect("\\}")
            return Node("builder", (node, condition))
        self.expect("\\}")
        self.bars = bars
        return Node("set", node.parts if node.kind == "list" else (node,))

    def subscript(self) -> str:
        """Return the text of a subscript without spaces, braces and fonts."""
        self.expect("_")
        if not self.skip("{"):
            token = self.take()
            if token.kind == "number" and len(token.text) > 1 and token.text.isdigit():
                self.at -= 1
                self.tokens[self.at] = Token("number", token.text[1:], _integer(int(token.text[1:])))
                return token.text[0]
            return token.text
        texts, depth = [], 1
        while depth:
            token = self.take()
            if token.kind == "end":
                raise ParseError("a subscript without its end")
            depth += (token == Token("sign", "{")) - (token == Token("sign", "}"))
            if token.text not in ("{", "}"):
                texts.append(token.text.replace(" ", ""))
        return "".join(texts)

    def name(self, text: str, kind: str = "name") -> Node:
        """Parse a name with its subscripts and primes, and the arguments of a function."""
        subscript, primes = "", 0
        while True:
            if self.is_sign("_"):
                subscript += "_" + self.subscript()
            elif self.is_sign("'"):
                self.take()
                primes += 1
            elif self.is_sign("^") and self._primes():
                primes += self._primes(take=True)
            else:
                break
        full = text + subscript + "'" * primes
        if kind == "name" and full in ("e", "i"):
            return Node("constant", text=full)
        if self.is_sign("("):
            start = self.at
            arguments = self.operand()
            several = arguments.kind == "tuple"
            zero = arguments.kind == "number" and arguments.number == 0
            if several or zero or primes or text in _FUNCTION_LETTERS:
                inner = arguments.parts if several else (arguments,)
                if primes and inner[0].kind == "name":
                    return Node("name", text=full)  # the argument of a derivative
                return Node("apply", inner, full)
            self.at = start
        return Node(kind if full == text else "name", text=full)

    def _primes(self, take: bool = False) -> int:
        """Return the number of primes in the exponent that follows."""
        at, braced = self.at + 1, self.tokens[self.at + 1] == Token("sign", "{")
        at += braced
        count = 0
        while self.tokens[at] == Token("sign", "'"):
            at, count = at + 1, count + 1
        if not count or (braced and self.tokens[at] != Token("sign", "}")):
            return 0
        if take:
            self.at = at + braced
        return count

    def command(self, name: str) -> Node:
        """Parse a command with its arguments."""
        if name in FUNCTIONS:
            return self.function(name)
        if name in _FRACTIONS:
            return self._derivative() or Node("div", (self.argument(), self.argument()))
        if name in _BINOMIALS:
            return Node("call", (self.argument(), self.argument()), "binom")
        if name in _GREEK:
            return self.name("\\" + name)
        if name in _ACCENTS or name in ("dot", "ddot", "boxed", "fbox"):
            return self._accent(name)
        if name in _SETS:
            letter = self.argument()
            return Node("reals") if letter.text == "R" else Node("name", text=f"\\mathbb{letter.text}")
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
        if name[:-1] in FUNCTIONS or name[:-1] in _GREEK or name[:-1] == "pi":
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
        return self.name(f"{'bar' if name == 'overline' else name} {_flat(inner)}")

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
        texts = ["".join("\\" * (token.text in _GREEK) + token.text for token in side) for side in sides]
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
            name, base = "log", _integer(10)
        if exponent is not None and _is_minus_one(exponent) and "arc" + name in FUNCTIONS:
            return Node("call", parts, "arc" + name)
        node = Node("call", (*parts, base) if base is not None else parts, name)
        return node if exponent is None else Node("pow", (node, exponent))

    def _starts_operand(self, at: int) -> bool:
        """Return whether the token at a position starts the argument of a function."""
        token = self.tokens[min(at, len(self.tokens) - 1)]
        return token.kind not in ("sign", "end") or token.text in ("(", "[", "{", "|", "^")

    def _implicit_product(self) -> Node:
        """Parse the argument of a function without parentheses: factors up to a sign or another function."""
        node = self._mixed_number()[0]
        while self.starts_factor() and not (self.token.kind == "command" and self.token.text in FUNCTIONS):
            if self.is_sign("(", "[", "|"):
                break
            node = Node("mul", (node, self._mixed_number()[0]))
        return node

    def _root(self) -> Node:
        index = _integer(2)
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


def _integer(value: int) -> Node:
    return Node("number", number=Fraction(value))


def _is_minus_one(node: Node) -> bool:
    return node.kind == "neg" and node.parts[0] == _integer(1)


def _flat(node: Node) -> str:
    """Return the names of a node as one text."""
    return node.text + "".join(_flat(part) for part in node.parts) + (str(node.number) if node.kind == "number" else "")


def _bracketed(opening: str, node: Node, closing: str) -> Node:
    """Return a group, a tuple or an interval."""
    round_ = opening == "(" and closing == ")"
    if node.kind != "list":
        if opening == "]" or (opening == "(") != (closing == ")"):
            raise ParseError("brackets that do not match")
        return node
    if round_:
        return Node("tuple", node.parts)
    if len(node.parts) == 2:
        left = "[" if opening == "[" else "("
        right = "]" if closing == "]" else ")"
        return Node("interval", node.parts, left + right)
    if opening == "[" and closing == "]":
        return Node("tuple", node.parts)
    raise ParseError("brackets that do not match")


def parse(text: str, compounds: Collection[str] = (), *, commas: bool = True, tight: bool = False) -> Node:
    r"""Return the tree of an answer.

    `compounds`: letters in sequence that are one name, because either answer has them in `\text{}`. `commas`: whether
    `1,234` outside brackets is one number. `tight`: whether `a/bc` is `a/(bc)`, else `(a/b)c`.

    Raises ParseError, and RecursionError for a deeply nested text.
    """
    longest_first = sorted(compounds, key=len, reverse=True)
    return Parser(Lexer(text, longest_first, commas).read(), tight).answer()
