r"""Parses the tokens of an answer into a typed value, by recursive descent in one pass.

    answer    := statement ((',' | ';' | 'and' | 'or' | \quad) statement)*
    statement := words* relation words* declaration?
    relation  := sets ((= | < | <= | in | ...) sets)* (pmod m)?
    sets      := sum ((\cup | \cap | \setminus | ':') sum)*
    sum       := ('+' | '-' | \pm)? product (('+' | '-' | \pm) product)*
    product   := factor (('*' | '/')? factor)* unit?
    factor    := operand ('^' operand | '!' | '%' | degree)*
    operand   := number | name | command | bracket | number in words

Words around a value are kept as a note; a unit makes a quantity. A text that the grammar does not cover is a
ParseError. Standard library only.
"""

from __future__ import annotations

import contextlib
import functools

from .cursor import Reading
from .expression_grammar import RELATIONS, UNNAMED, ExpressionParser, negative
from .lexicon import GREEK, LIMITING, NEUTRAL, takes_argument
from .tokens import Lexer, Token
from .tree import Node, ParseError, depth
from .words import integer_family, is_number_word, phrased, spoken_number

_SEPARATORS = (",", ";", "and", "or", "\\quad", "\\\\")
_KINDS = {"integer": "Z", "integers": "Z", "even": "even", "odd": "odd", "constant": "K", "constants": "K", "real": "R",
          "reals": "R", "number": "R", "numbers": "R", "natural": "N"}  # fmt: skip
"""Word of a declaration -> the letter of its set, or the parity."""
_DECLARING = frozenset(["where", "for", "with", "if", "when", "such"])

MAX_NODE_DEPTH = 150
"""Deepest tree that is compared: each level takes some frames of Python's stack."""


class Parser(ExpressionParser):
    """Builds the typed value of a list of tokens."""

    def answer(self) -> Node:
        """Parse everything."""
        node = self.over(self.sequence())
        if self.token.kind != "end":
            raise ParseError(f"unexpected {self.token.text!r}")
        return node

    def sequence(self) -> Node:
        """Parse statements and the separators between them; several are a list."""
        while self.skip("\\quad", ","):
            pass
        items, separators = [self.statement()], []
        while True:
            separator = ""
            while self.is_sign(*_SEPARATORS) and not (self.token.text == "\\\\" and self.rows):
                following = self.take().text
                separator = following if following in ("and", "or") or separator in ("", "\\quad") else separator
            if separator == "and" and self.is_word("for"):
                separator = self.take() and "or"  # `for x < 1 and for x > 3`
            joined = separator in ("and", "or") and self.is_sign("(")
            declared = [] if joined else self._declarations()
            if declared:
                items += declared
                separators += ["where"] * len(declared)
                continue
            if not separator or self.token.kind == "end" or self.is_sign(")", "}", "]", "\\}"):
                break
            if self.token.text.lower() == "remainder" and self.ahead().kind == "number":
                self.take()
                quotient = items[-1].parts[0] if items[-1].text == "quotient" else items[-1]
                items[-1] = Node("remainder", (quotient, self.sum()))
                continue
            separators.append({"\\quad": ",", "\\\\": ","}.get(separator, separator))
            items.append(self.statement())
        if len(items) == 1:
            return items[0]
        return Node("list", tuple(items), " ".join(separators))

    def _declarations(self) -> list[Node]:
        """Parse a declaration of one name, or of several: `where a and b are real constants`; empty for others."""
        start = self.at
        names: list[str] = []
        while self.is_word("where", "for", "with") or (names and self.is_sign(",", "and")):
            self.take()
            self._kind()
            greek = "\\" * self.is_command(*GREEK)
            names.append(greek + self.take().text if greek or self.token.kind == "letter" else "")
        kind = self._kind() if len(names) > 1 and all(names) else ""
        if kind:
            target = Node("name", text=f"\\mathbb{kind}")
            return [Node("relation", (Node("name", text=name), target), "\\in") for name in names]
        self.at = start
        declared = self._declaration()
        return [] if declared is None else [declared]

    def _declaration(self) -> Node | None:
        r"""Parse `where k is an integer`, `for all x\in\mathbb{R}`, `(k\in\mathbb{Z})` as a relation."""
        start = self.at
        domain = self._domain()
        if domain is not None:
            return domain
        bracket = self.is_sign("(") and self._declares(self.at + 1)
        if bracket or (self.is_sign("(") and self.tokens[self.at + 1].text.lower() in _DECLARING):
            self.at += 1
            bracket = True
        starts, forall = self.is_word(*_DECLARING), self.is_command("forall")
        if not (starts or bracket or forall or self._is_integer()):
            return None
        if starts or forall:
            self.take()
        kind = self._kind()
        node = None
        if self.token.kind == "letter" or self.is_command("vec", *GREEK):
            with contextlib.suppress(ParseError):
                node = self.relation()
        if node is not None:
            kind = self._kind() or kind or "R" * starts
            if not bracket or self.skip(")"):
                if node.kind == "relation":
                    return node
                if kind and node.kind == "name":
                    members = kind if kind in ("even", "odd") else f"\\mathbb{kind}"
                    return Node("relation", (node, Node("name", text=members)), "\\in")
        self.at = start
        return None

    def _domain(self) -> Node | None:
        r"""Parse `with domain [3,\infty)` as a condition."""
        start = self.at
        while self.is_word("with", "where", "for", "the", "its"):
            self.take()
        if self.is_word("domain") and self.at > start:
            self.take()
            self.skip(":", "=") or (self.is_word("is", "of") and self.take())
            with contextlib.suppress(ParseError):
                node = self.relation()
                return node if node.kind == "relation" else Node("relation", (UNNAMED, node), "\\in")
        self.at = start
        return None

    def _kind(self) -> str:
        """Read words such as `is any positive integer`; return the letter of their set."""
        kind = ""
        while self.token.kind == "word" or (
            self.token.text == "a"
            and (self.token.roman or self.ahead().kind in ("word", "letter"))
            and self.ahead().text not in ("is", "are")
        ):
            kind = _KINDS.get(self.take().text.lower(), kind)
        return kind

    def _is_integer(self) -> bool:
        """Return whether `k an integer` or `n is any integer` follows."""
        following = [token.text.lower() for token in self.tokens[self.at + 1 : self.at + 4] if token.kind == "word"]
        return self.token.kind == "letter" and any(word.startswith("integer") for word in following)

    def _declares(self, at: int) -> bool:
        r"""Return whether `n \in`, `n \ge` or `n = ` follows after a bracket."""
        first, second = self.tokens[min(at, len(self.tokens) - 1)], self.tokens[min(at + 1, len(self.tokens) - 1)]
        return first.kind == "letter" and second.text in ("\\in", ">=", "<=", ">", "<", "!=") and second.kind == "sign"

    def statement(self) -> Node:
        """Parse a relation with the words around it."""
        notes = self._leading_words()
        if notes and (notes[-1] in LIMITING or notes[-2:] == ["up", "to"] or takes_argument(notes)):
            notes[-1] += "-"
        self._skip_heading()
        ends = self.token.kind == "end" or self.token.text.startswith("\\end ") or (notes and self.is_sign("]", "&"))
        if ends or self.is_sign(*_SEPARATORS, ")", "}", "\\}"):
            if notes:
                return Node("text", text=" ".join(notes))
            raise ParseError("a statement is missing")
        self.skip("=", "~", "\\sim")
        node = self.relation()
        node = self._ending(node, notes)
        kept = [word for word in notes if word]
        return Node("noted", (node,), " ".join(kept)) if kept else node

    def _skip_heading(self) -> None:
        r"""Skip the name of a hypothesis or a curve before its relation: `H_0: \mu = 50`, `\ell: y = 2x`."""
        end = next((at for at in range(self.at, min(self.at + 7, len(self.tokens))) if self.tokens[at].text == ":"), 0)
        named = self.token.kind == "letter" or self.token.text == "ell"
        if not end or not named or any(self.tokens[at].text == ":" for at in range(end + 1, len(self.tokens))):
            return
        rest = [token.text for token in self.tokens[end + 1 :] if token.kind != "number"]
        if not set(rest) & {"=", "!=", "<", ">", "<=", ">="}:
            return
        heading = [token.text for token in self.tokens[self.at : end] if token.text not in ("{", "}", "_")]
        if (len(heading) == 1 and {"x", "y"} <= {*rest}) or (len(heading) == 2 and heading[1].isalnum()):
            self.at = end + 1

    def _leading_words(self) -> list[str]:
        notes: list[str] = []
        while self._is_note_word():
            start, group = self.at, []
            while self._is_note_word():
                group.append(self.take().text.lower())
            if self.skip(":") or (all(word in NEUTRAL for word in group) and self.skip(",")):
                notes += group
                continue
            if (self.token.kind == "sign" and self.token.text in RELATIONS | {"_", "^", "+", "*", "/", "'"}) or (
                (self.is_sign("(", "\\{") or (group == ["span"] and self.is_sign("{")))
                and self.token.gap == 0
                and not self._note_bracket()
            ):
                kept = len(group) - 1 if all(word in NEUTRAL for word in group[:-1]) else 0
                self.at = start + kept if not notes else start
                break
            notes += group
        return notes

    def _is_note_word(self) -> bool:
        token = self.token
        following = self.ahead()
        if self._counts_terms():
            return True
        if token.text in ("a", "A") and token.kind == "letter" and token.roman and following.kind == "word":
            return True
        if token.text in ("a", "A") and self.at == 0 and following.gap and following.kind in ("word", "number"):
            return True  # `a 15% increase`
        if token.kind != "word" or is_number_word(token) or token.text in self.compounds:
            return False
        if token.text.lower() in ("negative", "minus", "plus", "usd", "eur"):
            return False
        return not (self.ordinal_alone())

    def _counts_terms(self) -> bool:
        """Return whether a number states how many values follow: `the first five terms are`."""
        before = self.tokens[self.at - 1].text.lower() if self.at else ""
        number = self.token.kind == "number" or is_number_word(self.token)
        return number and before in ("first", "last", "next") and self.ahead().kind == "word"

    def _note_bracket(self) -> bool:
        """Return whether a bracket has words: `(bolts)`, `(2 d.p.)`."""
        if not self.is_sign("("):
            return False
        first, second = self.tokens[self.at + 1], self.tokens[min(self.at + 2, len(self.tokens) - 1)]
        texts = [token.text for token in self.tokens[self.at + 1 : self.at + 6]]
        if first.kind == "word" and first.text not in self.compounds:
            return not is_number_word(first) or self._is_spoken(self.at + 1)
        if first.text in ("uparrow", "downarrow", "leftarrow", "checkmark") or texts[:1] == [")"]:
            return True
        end = next((at for at in range(self.at, len(self.tokens)) if self.tokens[at].text == ")"), 0)
        inside = [token.text for token in self.tokens[self.at + 1 : end]]
        if self.token.gap and self.tokens[end + 1].kind == "end" and {"~", "\\degree", "\\circ", "or"} & {*inside}:
            return True  # `300 K (27 °C)`
        return first.kind == "number" and (second.kind == "word" or texts[1:4] in (["d", "p", ")"], ["s", "f", ")"]))

    def _is_spoken(self, at: int) -> bool:
        """Return whether a number in words fills a bracket: `42 (forty-two)`."""
        spoken = spoken_number(self.tokens, at)
        return self.at > 0 and spoken is not None and self.tokens[spoken[1]].text == ")"

    def _ending(self, node: Node, notes: list[str]) -> Node:
        """Read the notes, notes in brackets and arrows after a value into `notes`."""
        while True:
            token = self.token
            if self.is_sign("(") and self.ahead().text == "or":
                self.at += 2
                self.is_word("possibly", "maybe", "perhaps", "also") and self.take()
                node = Node("list", (node, self.relation()), "or")
                self.expect(")")
            elif self._note_bracket():
                depth = 0
                while self.token.kind != "end":
                    step = self.take()
                    depth += (step.text == "(") - (step.text == ")")
                    if depth == 0:
                        break
                    if step.kind == "word":
                        notes.append(step.text.lower())
                    elif step.kind == "command":
                        notes.append(step.text)
                    elif step.kind == "number" and "multiplicity" in notes:
                        notes.append("=" + step.text)
            elif self.is_word(*_DECLARING) and self._is_declared_next():
                return node
            elif self.is_word("remainder", "rem", "with") and self._remainder():
                node = Node("remainder", (node, self.sum()))
            elif self.is_word("below") and self.ahead().text.lower() in ("zero", "0"):
                self.at += 2
                node = negative(node)
            elif self.is_word("times", "plus") and self.ahead().kind != "end" and self.ahead().text != "as":
                notes.append(self.take().text.lower() + "-")
            elif self.is_word("of") and node.kind == "percent" and self.ahead().kind == "number":
                self.take()
                node = Node("mul", (node, self.sum()))
            elif token.kind == "word" or (token.kind == "letter" and token.roman and (token.text == "a" or notes)):
                notes.append(self.take().text.lower())
            elif notes and node.kind == "quantity" and token.kind == "number" and not self.rows:
                node = Node("list", (node, self.relation()), "and")
            elif token.text.startswith("\\end "):
                return node
            elif notes and token.kind in ("number", "command", "letter") and (self.token.gap or token.kind != "letter"):
                self._rest(notes)
            else:
                return node

    def _rest(self, notes: list[str]) -> None:
        """Read mathematics inside of notes, such as `3 hours after 2`, as a note."""
        start = self.at
        try:
            self.relation()
        except ParseError:
            self.at = start
            self.take()
        notes.append("=" + "".join(token.text for token in self.tokens[start : self.at]))

    def _is_declared_next(self) -> bool:
        start = self.at
        declares = self._declaration() is not None
        self.at = start
        return declares

    def _remainder(self) -> bool:
        start = self.at
        while self.token.kind == "word" or self.token.text == "a":
            if self.take().text.lower() in ("remainder", "rem"):
                while self.is_word("of", "is"):
                    self.take()
                return self.token.kind == "number"
        self.at = start
        return False


def tokenized(text: str, reading: Reading) -> list[Token]:
    """Return the tokens of an answer, with signs for phrases."""
    return list(_tokenized(text, reading.compounds, reading.commas))


@functools.lru_cache(maxsize=512)
def _tokenized(text: str, compounds: tuple[str, ...], commas: str) -> list[Token]:
    return phrased(Lexer(text, compounds, commas=commas).read())


def parse(tokens: list[Token], reading: Reading) -> Node:
    """Return the typed value of the tokens of an answer. Raises ParseError, also for a text nested too deeply."""
    node = integer_family(tokens) or Parser(list(tokens), reading).answer()
    if depth(node) > MAX_NODE_DEPTH:
        raise ParseError("a value that is nested too deeply")
    return node
