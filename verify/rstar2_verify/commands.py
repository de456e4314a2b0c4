r"""Parses the operands of an answer: numbers, words, brackets, and the commands of LaTeX.

`grammar.Parser` adds the grammar between them. Standard library only.
"""

from __future__ import annotations

import contextlib

from .cursor import MAX_DEPTH
from .functions import BINDERS, PYTHON, FunctionParser
from .lexicon import FUNCTIONS, GREEK, ORDINALS, word_set
from .tokens import Token
from .tree import Node, ParseError, groups, integer, names
from .words import is_number_word, spoken_number

_ACCENTS = word_set(
    "bar hat tilde vec underline mathcal mathscr mathfrak overbrace underbrace overleftrightarrow overleftarrow",
    "dot ddot boxed",
)
_CHOSEN = {"C": "binom", "P": "permutations"}
_CALLED = word_set("Matrix Piecewise diag Poly binomial permutations factorial Integer sympyroot")


_STOPS = word_set(
    "over choose rfloor rceil pmod bmod mod atop forall base uparrow downarrow leftarrow of dollar euro cent yen rupee"
)
"""Commands that start no factor."""
_POSITIVE = Node("interval", (integer(0), Node("infinity")), "()")
_SIMPLE = {
    "pi": Node("constant", text="pi"), "infty": Node("infinity"), "emptyset": Node("empty"),
    "varnothing": Node("empty"), "jmath": Node("name", text="j"), "R": Node("reals"),
    "H_0": Node("name", text="H_0"), "I": Node("name", text="I"), "positive": _POSITIVE, "top": Node("name", text="T"),
    "nonnegative": _POSITIVE._replace(text="[)"),
    "negative": Node("interval", (Node("neg", (Node("infinity"),)), integer(0)), "()"),
    "nonzero": Node("difference", (Node("reals"), Node("set", (integer(0),)))),
    **{name: Node("name", text=name) for name in ("even", "odd", "prime")},
}  # fmt: skip
"""Commands without arguments."""
_HALF_LINES = {
    "\\mathbbR": Node("reals"), "\\mathbbR_>0": _POSITIVE, "\\mathbbR^+": _POSITIVE,
    "\\mathbbR_>=0": _SIMPLE["nonnegative"],
}  # fmt: skip


class CommandParser(FunctionParser):
    """A position in a list of tokens, and the operands that can be at it."""

    def mixed_number(self) -> tuple[Node, bool]:
        """Parse a factor or a mixed number; the flag is whether it is a plain number."""
        whole = self.token.kind == "number" and self.token.text.isdigit()
        node = self.factor()
        if whole and node.kind == "number":
            start, fraction = self.at, None
            if self.is_command("frac"):
                with contextlib.suppress(ParseError):
                    fraction = self.operand()
            elif self.token.kind == "number" and self.token.gap and self.ahead().text == "/":
                top, bottom = self.take().node, self.ahead().node
                self.at += 2
                fraction = Node("div", (top, bottom)) if top and bottom else None
            if fraction is not None and _is_proper(fraction):
                return self.powered(Node("add", (node, fraction))), False
            self.at = start
        return node, node.kind == "number"

    def starts_factor(self) -> bool:
        """Return whether a factor without a sign in front follows."""
        token = self.token
        if token.kind == "sign":
            if token.text == "[" and self._closes():
                return False
            if token.text == "(" and (self.note_follows() or self.ahead().text in ("bmod", "pmod", "mod", "base")):
                return False
            return token.text in ("(", "[", "{", "\\{", "\\langle") or (token.text == "|" and not self.bars)
        if token.kind == "command":
            return token.text not in _STOPS and not token.text.startswith("\\end ")
        if token.kind == "letter":
            following = self.ahead()
            differential = token.text == "d" and (following.kind == "letter" or following.text in GREEK)
            return not (self.integrals and differential) and not (token.text == "U" and self._joins_sets())
        if token.kind == "word":
            return self._is_factor_word(token)
        return token.kind == "number"

    def note_follows(self) -> bool:
        """Return whether a bracket has words or declares a parameter."""
        return self._note_bracket() or self._declares(self.at + 1)  # type: ignore[attr-defined]

    def _joins_sets(self) -> bool:
        """Return whether a letter U is between two sets."""
        before, after = self.tokens[self.at - 1].text if self.at else "", self.ahead().text
        return before in (")", "]", "[") and after in ("(", "[", "]")

    def _is_factor_word(self, token: Token) -> bool:
        if token.text in self.compounds or is_number_word(token):
            return token.text in self.compounds
        following = self.ahead()
        operator = following.kind == "sign" and following.text in ("+", "-", "*", "/", "^", "_", "\\times")
        return (token.text.isupper() and len(token.text) > 1 and token.roman) or (operator and token.roman)

    def _closes(self) -> bool:
        """Return whether the next bracket is the end of an interval such as `[2,5[`."""
        token = self.ahead()
        return token.kind == "end" or (
            token.kind == "sign" and token.text in ("\\cup", "\\cap", ",", ";", "or", "and", ")")
        )

    def argument(self, whole_number: bool = False) -> Node:
        """Parse the argument of a command: a group, or one token. Of an unbraced number it is the first digit."""
        if self.skip("{"):
            return self.group("}")
        token = self.token
        if token.kind == "number" and not whole_number and len(token.text) > 1 and token.text.isdigit():
            self.split_number()
        return self.operand()

    def group(self, closing: str) -> Node:
        """Parse the content of a group up to its closing brace."""
        bars, self.bars = self.bars, 0
        node = self.over(self.sequence())
        self.expect(closing)
        self.bars = bars
        return node._replace(kind="set") if node.kind == "list" and closing == "}" else node

    def operand(self) -> Node:
        """Parse a number, a name, a function, a group or a matrix."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ParseError("groups that are nested too deeply")
        try:
            return self._operand()
        finally:
            self.depth -= 1

    def _operand(self) -> Node:
        token = self.token
        if token.kind == "word":
            return self._word()
        self.take()
        if token.kind == "number":
            assert token.node is not None
            return self._ordinal_ending(token)
        if token.kind == "letter":
            name = Node("name", text=token.text)
            return (self._chosen(name) if token.text == "n" else None) or self.name(token.text)
        if token.kind == "command":
            return self.command(token.text)
        if token.kind == "sign":
            return self.bracket(token.text)
        raise ParseError("an operand is missing")

    def _ordinal_ending(self, token: Token) -> Node:
        """Return the number of `5th`, and permutations and combinations such as `11C5`."""
        assert token.node is not None
        letters = [self.ahead(step) for step in range(2)]
        joined = "".join(letter.text for letter in letters if letter.kind == "letter")
        if joined in ("th", "st", "nd", "rd") and not letters[0].gap:
            self.at += 2
        return self._chosen(token.node) or token.node

    def _chosen(self, upper: Node) -> Node | None:
        """Parse `C5` after `11` or `n`, and `P5`, as combinations or permutations; return None for other tokens."""
        letter, lower = self.token, self.ahead()
        if letter.text not in _CHOSEN or letter.gap or lower.gap or lower.node is None:
            return None
        self.at += 2
        return Node("call", (upper, lower.node), _CHOSEN[letter.text])

    def _word(self) -> Node:
        token = self.token
        if self.ordinal_alone() and not is_number_word(token):
            self.take()
            return integer(ORDINALS[token.text.lower()])
        if is_number_word(token):
            spoken = spoken_number(self.tokens, self.at)
            if spoken is None:
                raise ParseError("words that are no number")
            node, self.at = spoken
            if self.is_sign("(") and self.ahead().kind == "number" and self.ahead(2).text == ")":
                if self.ahead().node != node:
                    raise ParseError("a number in words and another one")
                self.at += 3  # `nine (9)`
            return node
        run = [self.take().text]
        while self.token.kind == "word" and token.text not in self.compounds:
            run.append(self.take().text)
        return self.name(" ".join(run), kind="text")

    def bracket(self, opening: str) -> Node:
        """Parse a group in brackets of any kind."""
        if opening == "{":
            if self.skip("}"):
                if self.at == 2 and self.token.kind == "end":
                    return Node("empty")
                return self.operand() if not self.is_sign("^", "_") else self._left_script()
            return self._set("}") if self._has_condition() else self.group("}")
        if opening in ("^", "_"):
            self.at -= 1
            return self._left_script()
        if opening == "\\{":
            opened = self.token.text in ("\\begin array", "\\begin aligned", "\\begin cases")
            closed = any(token.text == "\\}" for token in self.tokens[self.at :])
            return self.operand() if opened and not closed else self._set()
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
        if opening == "!":  # `!p`
            return Node("apply", (self.operand(),), "not")
        if opening == "<":
            parts = [self.sum()]
            while not self.skip(">"):
                self.expect(",")
                parts.append(self.sum())
            return Node("tuple", tuple(parts))
        if opening not in ("(", "[", "]"):
            raise ParseError(f"unexpected {opening!r}")
        bars, self.bars = self.bars, 0
        if opening == "(" and self.is_sign(")"):
            raise ParseError("empty brackets")
        node = self.over(self.sequence())
        closing = self.expect(")", "]", "[") if opening == "]" or node.kind == "list" else self.expect(")", "]")
        self.bars = bars
        return _bracketed(opening, node, closing)

    def _left_script(self) -> Node:
        """Parse `{}_{10}C_3` and `^{20}C_{10}`."""
        self.take()
        upper = self.argument(whole_number=True)
        letter = self.take()
        if letter.text not in _CHOSEN or not self.skip("_"):
            raise ParseError("a script without a base")
        return Node("call", (upper, self.argument(whole_number=True)), _CHOSEN[letter.text])

    def _has_condition(self) -> bool:
        """Return whether braces without a backslash have a condition: `{x | x > 2}`."""
        start = [token.text for token in self.tokens[self.at : self.at + 2]]
        return start[1] in ("|", "\\in") and self.token.kind == "letter" and self.tokens[-2].text == "}"

    def _set(self, closing: str = "\\}") -> Node:
        end = next((at for at in range(self.at, len(self.tokens)) if self.tokens[at].text == closing), self.at)
        colons = [token.text for token in self.tokens[self.at : end]].count(":")
        bars, self.bars = self.bars, int(colons < 2)  # `\\{a: 1, b: 2\\}`
        if self.skip(closing):
            self.bars = bars
            return Node("empty")
        node = self.sequence()
        if self.skip("|", ":"):
            self.bars = 0
            node = Node("builder", (node, _membership(self.sequence())))
        self.expect(closing)
        self.bars = bars
        return node if node.kind == "builder" else Node("set", node.parts if node.kind == "list" else (node,))

    def command(self, name: str) -> Node:
        """Parse a command with its arguments."""
        if name in FUNCTIONS and not (name in ("max", "min") and self.is_sign("_")):
            return self.function(name)
        if name == "frac":
            return self._derivative() or Node("div", (self.argument(), self.argument()))
        if name == "binom":
            return Node("call", (self.argument(), self.argument()), "binom")
        if name in GREEK or name == "Pr":
            return self._greek(name) if name in GREEK else self.name(name)
        if name in _ACCENTS:
            return self._accent(name)
        if name == "mathbb":
            letter = self.argument()
            text = letter.text or "".join(sorted(names(letter)))
            node = Node("reals") if text == "R" and not self.is_sign("^", "_") else self.name(f"\\mathbb{text}")
            return _HALF_LINES.get(node.text, node)
        if name.startswith("\\begin "):
            return self._environment(name.removeprefix("\\begin "))
        if name in BINDERS:
            return self._binder(BINDERS[name])
        if name == "imath":
            return Node("name", text="unit i") if self.vectors else Node("constant", text="i")
        if name in _SIMPLE:
            return _SIMPLE[name]
        if name in ("Z", "N", "Q", "C"):
            return self.name(f"\\mathbb{name}")
        if name == "neg":
            return Node("apply", (self.operand(),), "not")
        if name in ("root", "root4"):
            index = integer(4) if name == "root4" else self.argument(whole_number=True)
            self.token.text == "of" and self.take()
            return Node("root", (self.argument(whole_number=True), index))
        if name == "angle" and not (self.token.kind == "letter" or self.is_sign("{", "_")):
            return Node("call", (self._signed(),), "cis")  # type: ignore[attr-defined]  # `2\\angle 60^\\circ`
        if name in ("angle", "triangle"):
            return self._figure("angle" if name != "triangle" else name)
        if name in ("lfloor", "lceil"):
            node = self.sum()
            if self.take().text != ("rfloor" if name == "lfloor" else "rceil"):
                raise ParseError(f"\\{name} without its end")
            return Node("call", (node,), "floor" if name == "lfloor" else "ceil")
        if name in PYTHON or name in _CALLED:
            return self._python(name)
        if name[:-1] in FUNCTIONS or name[:-1] in GREEK or name[:-1] == "pi":
            self.tokens.insert(self.at, Token("letter", name[-1]))  # `\sinx`
            return self.command(name[:-1])
        raise ParseError(f"unknown command \\{name}")


def _membership(condition: Node) -> Node:
    r"""Return `k \in \{1, 2, 3\}` for the condition `k = 1, 2, 3`; other conditions unchanged."""
    first, *others = condition.parts if condition.kind == "list" else (condition,)
    if not others or first.text != "=" or any(part.kind == "relation" for part in others):
        return condition
    return Node("relation", (first.parts[0], Node("set", (first.parts[1], *others))), "\\in")


def _is_proper(node: Node) -> bool:
    """Return whether a node is a proper fraction of integers."""
    whole = all(side.kind == "number" and side.decimals is None and side.number.denominator == 1 for side in node.parts)
    return node.kind == "div" and whole and 0 < node.parts[0].number < node.parts[1].number


def _bracketed(opening: str, node: Node, closing: str) -> Node:
    """Return a group, a tuple or an interval."""
    if node.kind != "list" or "where" in node.text:
        if opening == "]" or (opening == "(") != (closing == ")"):
            raise ParseError("brackets that do not match")
        return node
    if opening == "(" and closing == ")":
        return node if set(node.text.split()) <= {"or", "and"} else Node("tuple", node.parts)
    if all(part.kind == "tuple" and len(part.parts) == 2 for part in node.parts):
        return Node("list", node.parts, node.text)  # a list of points as Python prints it
    if opening == "[" and closing == "]" and set(node.text.split()) == {",", ";"}:
        return Node("tuple", tuple(Node("tuple", tuple(row)) for row in groups(node, [";"])))  # `[1, 2; 3, 4]`
    if len(node.parts) == 2:
        return Node("interval", node.parts, ("[" if opening == "[" else "(") + ("]" if closing == "]" else ")"))
    if opening == "[" and closing == "]":
        return Node("tuple", node.parts)
    raise ParseError("brackets that do not match")
