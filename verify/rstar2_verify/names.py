"""Parses names of an answer: subscripts, primes, accents, figures, derivatives, events. Standard library only."""

from __future__ import annotations

import re

from .events import OF_EVENTS, read_event
from .lexicon import DISTRIBUTIONS, GREEK
from .tokens import Token
from .tree import Node, ParseError, integer, names
from .unit_grammar import UnitParser

_FUNCTION_LETTERS = frozenset("fFhH")
"""Letters that are a function when an argument in parentheses follows; another letter is a factor."""


class NameParser(UnitParser):
    """A position in a list of tokens, and the names that can be at it."""

    def subscript(self) -> str:
        """Return the text of a subscript without spaces, braces and fonts."""
        self.expect("_")
        if not self.skip("{"):
            token = self.take()
            if token.kind == "number" and len(token.text) > 1 and token.text.isdigit():
                self.at -= 1
                self.split_number()
                return self.take().text
            return token.text
        texts, depth = [], 1
        while depth:
            token = self.take()
            if token.kind == "end":
                raise ParseError("a subscript without its end")
            depth += (token == token._replace(kind="sign", text="{")) - (token == token._replace(kind="sign", text="}"))
            if token.text not in ("{", "}"):
                texts.append(token.text.replace(" ", "").lower() if token.kind == "word" else token.text)
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
            elif self.is_sign("^") and self._primes(text):
                primes += self._primes(text, take=True)
            elif text in ("C", "c") and self._is_python_index(text):
                subscript += "_" + self.take().text
            else:
                break
        full = text + subscript + "'" * primes
        if text == "C" and subscript[1:].isdigit() and int(subscript[1:]) > 3 and self.is_sign("^"):
            self.take()
            return Node("call", (integer(int(subscript[1:])), self.argument(whole_number=True)), "binom")
        if kind == "name" and full in ("e", "i") and not (self.vectors and full == "i"):
            return Node("constant", text=full)
        if self.vectors and full in ("i", "j", "k"):
            return Node("name", text=f"unit {full}")
        event = read_event(self.tokens, self.at) if full in OF_EVENTS else None
        if event:
            self.at = event[1]
            return Node("name", text=f"{OF_EVENTS[full]}({event[0]})")
        if self.is_sign("(") and not self.note_follows():
            start = self.at
            if text in self.derived and self.ahead().kind in ("letter",) and self.ahead(2).text == ")":
                self.at += 3
                return Node("name", text=full)
            arguments = self.operand()
            known = self._known_function(full, arguments)
            if known:
                return known
            if kind == "text" and full in DISTRIBUTIONS:
                parameters = arguments.parts if arguments.kind == "tuple" else (arguments,)
                return Node("apply", tuple(map(_parameter, parameters)), DISTRIBUTIONS[full])
            several = arguments.kind == "tuple"
            zero = arguments.kind == "number" and arguments.number == 0
            if several or zero or primes or text in _FUNCTION_LETTERS:
                inner = arguments.parts if several else (arguments,)
                return Node("apply", inner, full)
            self.at = start
        return Node(kind if full == text else "name", text=full)

    def _is_python_index(self, text: str) -> bool:
        """Return whether `C1` is an arbitrary constant as SymPy prints it."""
        before = self.tokens[self.at - 2] if self.at > 1 else None
        plain = not any(token.kind == "sign" and token.text in ("{", "_") for token in self.tokens)
        return (
            plain
            and self.token.kind == "number"
            and self.token.text in ("1", "2", "3", "4")
            and not self.token.gap
            and not (before is not None and before.kind == "number")
        )

    @staticmethod
    def _known_function(name: str, argument: Node) -> Node | None:
        r"""Return the node of `\Gamma(n)`, `\zeta(3)` or `\varphi(10)`; None for other names and arguments."""
        if argument.kind in ("tuple", "interval"):
            return None
        if name in ("\\Gamma", "\\gamma") or (name == "\\zeta" and not names(argument)):
            return Node("call", (argument,), name[1:].capitalize() if name[1:] != "zeta" else "zeta")
        if name == "\\phi" and argument.kind in ("number", "pow", "mul") and argument.decimals is None:
            return Node("call", (argument,), "totient")
        return None

    def _primes(self, text: str, take: bool = False) -> int:
        """Return the number of primes in the exponent that follows; `^{(4)}` stands for four of them."""
        order = self.tokens[self.at + 1 : self.at + 6]
        low = "123456789" if text in self.derived else "3456789"
        if [token.text for token in (*order[:2], *order[3:])] == ["{", "(", ")", "}"] and order[2].text in low:
            if take:
                self.at += 6
            return int(order[2].text)
        at, braced = self.at + 1, self.ahead().text == "{"
        at += braced
        count = 0
        while at < len(self.tokens) and self.tokens[at].kind == "sign" and self.tokens[at].text == "'":
            at, count = at + 1, count + 1
        if not count or (braced and self.tokens[at].text != "}"):
            return 0
        if take:
            self.at = at + braced
        return count

    def _greek(self, name: str) -> Node:
        if name == "Delta" and self.token.kind == "letter" and not self.token.roman:
            return self.name("\\Delta " + self.take().text)  # a difference is one name
        if name == "nabla":
            if self.token.kind == "letter":
                return self.name("nabla " + self.take().text)
            operator = self.take().text if self.is_sign("*", "\\times") else ""
            if operator:
                return Node("apply", (self.factor(),), "curl" if operator == "\\times" else "divergence")
        return self.name("\\" + name)

    def _figure(self, kind: str) -> Node:
        """Parse the points of an angle or a triangle."""
        braced = self.skip("{")
        letters = ""
        while self.token.kind in ("letter", "word") and len(letters) < 3 and self.token.text.isupper():
            letters += self.take().text
        if not letters:
            raise ParseError("a figure without its points")
        if braced:
            self.expect("}")
        if kind == "angle" and len(letters) == 3:
            letters = min(letters, letters[::-1])
        return self.name(f"{kind} {letters}")

    def _accent(self, name: str) -> Node:
        inner = self.argument()
        if name in ("boxed", "underline", "overbrace", "underbrace"):
            return inner
        flat = _flat(inner)
        if name in ("dot", "ddot"):
            if inner.kind != "name":
                raise ParseError(f"\\{name} of an expression")
            base, _, subscript = inner.text.partition("_")
            node = self.name(base + ("_" + subscript if subscript else ""))
            return node._replace(text=node.text + "'" * (1 if name == "dot" else 2))
        if name in ("hat", "vec") and re.fullmatch(r"(?:vec |hat |unit )*[ijk]", flat) and inner.kind != "number":
            return Node("name", text=f"unit {flat[-1]}")
        if name == "hat" and re.fullmatch("(?:vec )?[xyz]", flat) and not self.is_sign("="):
            return Node("name", text=f"unit {'ijk'['xyz'.index(flat[-1])]}")
        if name == "vec" and inner.kind == "number":
            return inner
        if name == "bar" and re.fullmatch("[A-Z]{2}", flat):
            return inner
        if name == "mathcal" and flat in ("O", "N"):
            return self.name(flat)
        return self.name(f"{name} {flat}")

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
                depth += (token.text == "{" and token.kind == "sign") - (token.text == "}" and token.kind == "sign")
                if token.text not in ("{", "}"):
                    side.append(token)
            sides.append(side)
        written = ["".join("\\" * (token.text in GREEK) + token.text for token in side) for side in sides]
        marks = [re.match(r"d|partial", text) for text in written]
        if len(sides) == 2 and all(marks):
            top = re.fullmatch(r"(?:d|partial)(?:\^(\d))?([a-zA-Z\\]\w*)(?:\(\w\))?", written[0])
            bottom = re.fullmatch(r"d([a-zA-Z])(?:\^(\d))?", written[1])
            if top and bottom and all(len(side) > 1 for side in sides):
                return Node("name", text=top[2] + "'" * int(top[1] or 1))
            if top and written[1].startswith("partial"):
                return self.name(f"{written[0]}/{written[1]}")
            operator = re.fullmatch(r"d(?:\^(\d))?", written[0])
            if operator and bottom and self.token.kind == "letter" and self.token.text != bottom[1]:
                return self.name(self.take().text + "'" * int(operator[1] or 1))  # `\frac{d}{dx} f(x)`
            if re.fullmatch(r"(?:d|partial)(\^\d)?", written[0]) and bottom:
                return self.name("d/d" + bottom[1])
        self.at = start
        return None


def _parameter(node: Node) -> Node:
    r"""Return the value of a parameter: of `p=0.3`, and the variance of `\sigma=2`."""
    if node.kind != "relation" or node.text != "=":
        return node
    label, value = node.parts[0], node.parts[-1]
    return Node("pow", (value, integer(2))) if label.text == "\\sigma" else value


def _flat(node: Node) -> str:
    """Return the names of a node as one text."""
    return node.text + "".join(_flat(part) for part in node.parts) + (str(node.number) if node.kind == "number" else "")
