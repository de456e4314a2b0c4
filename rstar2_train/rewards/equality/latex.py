r"""Parses the LaTeX of an answer into a tree of nodes. Evaluates nothing, and takes linear time.

It also reads plain notation (`sqrt(5)`, `2*x`, `1e-5`). Case matters, and so do subscripts: `I_1` is a name. A text
that the grammar does not cover is a ParseError; an operator of analysis is Unsupported (another parser may read it).
Standard library only.
"""

from __future__ import annotations

from collections.abc import Collection

from .commands import FRACTIONS, CommandParser, integer
from .events import OF_EVENTS, read_event
from .tokens import Lexer, Node, ParseError, Token, names

_RELATIONS = frozenset(["=", "<", ">", "<=", ">=", "!=", "~", "\\in", "\\equiv", "\\to"])
_FUNCTION_LETTERS = frozenset("fFhH")
"""Letters that are a function when an argument in parentheses follows; another letter is a factor."""


class Parser(CommandParser):
    """Builds the tree of a list of tokens by recursive descent."""

    def answer(self) -> Node:
        """Parse everything."""
        node = self.sequence()
        node = self._over(node)
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
            sign = self.take().text
            rest = self.product()
            return rest if sign == "+" else Node("neg", (rest,)) if sign == "-" else Node("pm", (rest,), sign[1:])
        node, plain = self.mixed_number()
        while True:
            if self.skip("*"):
                node, plain = Node("mul", (node, self._signed())), False
            elif self.skip("/"):
                divisor = self._signed()
                while self.tight and self.starts_factor():
                    divisor = Node("mul", (divisor, self.mixed_number()[0]))
                node, plain = Node("div", (node, divisor)), False
            elif self.starts_factor():
                if self.token.kind == "number" and (plain or node.kind == "div"):
                    raise ParseError("a number directly after another one")
                factor, plain = self.mixed_number()
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
        return self.mixed_number()[0]

    def mixed_number(self) -> tuple[Node, bool]:
        """Parse a factor; an integer before a proper fraction of integers is a mixed number."""
        integer = self.token.kind == "number" and self.token.text.isdigit()
        node = self.factor()
        fraction = self.token.kind == "command" and self.token.text in FRACTIONS
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
                node = Node("div", (node, integer(100)))
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
            self.tokens[self.at] = Token("number", rest, integer(int(rest)))
            return integer(int(token.text[0]))
        return self.operand()

    def _over(self, top: Node) -> Node:
        r"""Parse `\over 6` or `\choose 3` after its first part; return that part if none follows."""
        if self.token.kind != "command" or self.token.text not in ("over", "choose"):
            return top
        if self.take().text == "over":
            return Node("div", (top, self.sequence()))
        return Node("call", (top, self.sequence()), "binom")

    def group(self, closing: str) -> Node:
        """Parse the content of a group up to its closing brace."""
        bars, self.bars = self.bars, 0
        node = self.sequence()
        node = self._over(node)
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
                self.tokens[self.at] = Token("number", token.text[1:], integer(int(token.text[1:])))
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
        event = read_event(self.tokens, self.at) if full in OF_EVENTS else None
        if event:
            self.at = event[1]
            return Node("name", text=f"{OF_EVENTS[full]}({event[0]})")
        if self.is_sign("("):
            start = self.at
            arguments = self.operand()
            known = self._known_function(full, arguments)
            if known:
                return known
            several = arguments.kind == "tuple"
            zero = arguments.kind == "number" and arguments.number == 0
            if several or zero or primes or text in _FUNCTION_LETTERS:
                inner = arguments.parts if several else (arguments,)
                if primes and inner[0].kind == "name":
                    return Node("name", text=full)  # the argument of a derivative
                return Node("apply", inner, full)
            self.at = start
        return Node(kind if full == text else "name", text=full)

    @staticmethod
    def _known_function(name: str, argument: Node) -> Node | None:
        r"""Return the node of `\Gamma(n)`, `\zeta(3)` or `\varphi(10)`; None for other names and arguments."""
        if argument.kind in ("tuple", "interval"):
            return None
        if name == "\\Gamma" or (name == "\\zeta" and not names(argument)):
            return Node("call", (argument,), name[1:])
        if name == "\\phi" and argument.kind == "number" and argument.decimals is None:
            return Node("call", (argument,), "totient")
        return None

    def _primes(self, take: bool = False) -> int:
        """Return the number of primes in the exponent that follows; `^{(4)}` stands for four of them."""
        order = self.tokens[self.at + 1 : self.at + 6]
        if [token.text for token in (*order[:2], *order[3:])] == ["{", "(", ")", "}"] and order[2].text in "3456789":
            if take:
                self.at += 6
            return int(order[2].text)
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
