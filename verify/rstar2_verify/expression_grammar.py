"""Parses relations, sets, sums, products and powers of an answer. `grammar` adds statements. Standard library only."""

from __future__ import annotations

from .commands import CommandParser
from .lexicon import word_set
from .tree import Node, ParseError, integer
from .units import Unit

RELATIONS = word_set(
    "= < > <= >= != ~ \\in \\notin \\equiv \\nequiv \\to \\iff \\sim \\cong \\subset \\subseteq \\parallel \\perp",
    "\\propto \\rightleftharpoons",
)
_SET_OPERATORS = {"\\cup": "union", "\\cap": "intersection", "\\setminus": "difference"}

_COMPARISONS = ("<", ">", "<=", ">=", "\\between")
_MODULI = ("pmod", "bmod", "mod")
HOURS = (("h", 1),)
_MARKS: dict[Unit, int] = {(("ft", 1),): 60, (("in", 1),): 3600}
_COUNTED = frozenset(["\\mathbbZ", "\\mathbbN", "even", "odd", "prime"])
"""Names of sets of integers before `from 1 to 10`."""
UNNAMED = Node("name", text="any")
"""The letter of `all real numbers greater than 3`."""
MAX_SIGNS = 20
"""Most signs in front of one value."""


class ExpressionParser(CommandParser):
    """A position in a list of tokens, and the expressions that can be at it."""

    def relation(self) -> Node:
        """Parse a chain of relations, and a modulus."""
        subject = self.subject if self.is_sign(*_COMPARISONS) else None
        vector = self.is_sign("<") and any(token.text == ">" for token in self.tokens[self.at :])
        unnamed = UNNAMED if self.is_sign(*_COMPARISONS) and not vector else None
        operands, operators = [subject or unnamed or self.sets()], []
        domain = None
        integers = operands[0].kind == "name" and operands[0].text in _COUNTED
        numbers = integers or operands[0].kind in ("reals", "interval", "difference")
        counted = integers and self.is_word("from")
        if numbers and (counted or self.is_sign(*_COMPARISONS)):
            domain, operands[0] = operands[0], UNNAMED  # `all real numbers greater than 3`, `integers from 1 to 10`
        self.subject = operands[0]
        if counted or self.is_sign("\\between"):
            self.take()
            operands = [self.sum(), operands[0]]
            self.take()  # `and` or `to`
            operands.append(self.sum())
            operators = ["<=" if self._inclusive() or counted else "<"] * 2
        while self.token.kind == "sign" and self.token.text in RELATIONS:
            operators.append(self.take().text)
            self.skip("=", "\\quad")
            operands.append(self.sets())
        if domain is not None and domain.kind != "reals":
            member = Node("relation", (UNNAMED, domain), "\\in")
            return Node("builder", (member, Node("relation", tuple(operands), " ".join(operators))))
        opened = self.is_sign("(") and self.ahead().text in _MODULI
        if opened or self.is_command(*_MODULI):
            self.at += 1 + opened
            operands[-1] = Node("congruent", (operands[-1], self.argument() if self.is_sign("{") else self.sum()))
            if opened:
                self.expect(")")
        if not operators:
            return operands[0]
        if operators == ["\\to"] and operands[0].kind == "ratio":  # `f: x \mapsto 2x`
            function, argument = operands[0].parts
            return Node("relation", (Node("apply", (argument,), function.text), operands[1]), "=")
        return Node("relation", tuple(operands), " ".join(operators))

    def _inclusive(self) -> bool:
        """Skip `, inclusive`; return whether it was there."""
        ahead = self.ahead() if self.is_sign(",") else self.token
        inclusive = ahead.text.lower() in ("inclusive", "inclusively")
        self.at += inclusive * (1 + self.is_sign(","))
        return inclusive

    def sets(self) -> Node:
        """Parse unions, intersections and differences of sets, ratios and times."""
        if self.token.kind == "command" and self.token.text in ("Z", "R") and self.ahead().kind == "letter":
            kind = "\\mathbb" + self.take().text  # `all integers n > 3`
            member = Node("relation", (Node("name", text=self.token.text), Node("name", text=kind)), "\\in")
            return Node("list", (self.relation(), member), "where")
        node = self.sum()
        while self.is_sign(*_SET_OPERATORS) or (self.token.text == "U" and self._joins_sets()):
            kind = _SET_OPERATORS.get(self.take().text, "union")
            if kind == "difference" and node == Node("name", text="R"):
                node = Node("reals")
            if kind == "difference" and not (self.is_sign("\\{", "(", "[") or self.token.text in ("R", "Z", "mathbb")):
                if self.token.kind == "letter" and self.tokens[self.at + 1].text == "=":
                    self.at += 2
                bars, self.bars = self.bars, 0
                other = self.sequence()
                self.bars = bars
                other = other if other.kind in ("list", "interval", "union", "name") else Node("set", (other,))
                node = Node(kind, (node, other._replace(kind="set") if other.kind == "list" else other))
            else:
                node = Node(kind, (node, self.sum()))
        number_follows = self.ahead(1 + (self.ahead().text == "-")).kind == "number"
        if self.is_word("to", "in") and node.kind in ("number", "neg") and number_follows:
            if self.is_word("in"):
                self.take()
                return Node("div", (node, self.sum()))
            ratio = [node]
            while self.token.text.lower() == "to":
                self.take()
                ratio.append(self.sum())
            return Node("ratio", tuple(ratio), "to")
        if self.is_sign(":") and not self.bars:
            parts = [node]
            written = [self.tokens[self.at - 1].text]
            while self.skip(":"):
                written.append(self.token.text)
                parts.append(self.sum())
            if len(parts) == 2 and node.kind in ("name", "text") and parts[1].kind in ("number", "neg", "quantity"):
                return Node("relation", tuple(parts), "=")  # `pH: 4.74`
            if len(written) == 2 and len(written[1]) == 2 and parts[1].kind == "quantity" and parts[1].unit == HOURS:
                minutes = Node("quantity", parts[1].parts, unit=(("min", 1),))
                return Node("list", (Node("quantity", (parts[0],), unit=HOURS), minutes), "and")  # `1:45 hours`
            if parts[1].kind in ("interval", "tuple", "set", "union") and not self.is_sign("\\to"):
                return Node("relation", (Node("text", text="label"), parts[1]), "=")  # `95% CI: [1, 2]`
            return Node("ratio", tuple(parts))
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
                if terms and terms[0].kind == "reals" and sign == "-" and term.kind == "set":
                    terms[0] = Node("difference", (terms[0], term))
                    continue
                term = negative(term) if sign == "-" else term
            terms.append(term)
        *others, last = terms
        if others and last.kind == "quantity" and not any(term.kind == "quantity" for term in others):
            return Node("quantity", (Node("add", (*others, *last.parts)),), unit=last.unit)  # `2+3\sqrt{2} cm`
        return terms[0] if len(terms) == 1 else Node("add", tuple(terms))

    def product(self) -> Node:
        """Parse factors with and without signs between them, from left to right, and their unit."""
        if self.is_sign("+", "-", "\\pm", "\\mp"):
            sign = self.take().text
            self.signs += 1
            if self.signs > MAX_SIGNS:
                raise ParseError("too many signs in front of a value")
            rest = self.product()
            self.signs -= 1
            return rest if sign == "+" else negative(rest) if sign == "-" else Node("pm", (rest,), sign[1:])
        if self.is_word("negative", "minus", "plus") and self.ahead().kind != "end":
            return self.product() if self.take().text.lower() == "plus" else negative(self.product())
        prefix = self.currency()
        node, plain = self.mixed_number()
        while True:
            node, multiplied = self.multiplier(node, money=prefix is not None)
            plain = plain and not multiplied
            unit = self.unit_suffix(node) if prefix is None else None
            if unit is not None:
                while self.skip("/"):
                    node = Node("div", (node, self._signed()))
                return self.compound(Node("quantity", (node,), unit=unit))
            if self.is_sign("*", "\\times"):
                times = self.take().text == "\\times"
                node, plain = _multiplied(node, self._signed(), times=times), False
            elif prefix is not None and (price := self.price(prefix)) != prefix:
                return Node("quantity", (node,), unit=price)
            elif self.skip("/"):
                divisor = self._signed()
                if divisor.kind == "percent" and node.kind == "number":
                    node, plain = Node("percent", (Node("div", (node, *divisor.parts)),)), False
                    continue
                while self.tight and self.starts_factor():
                    divisor = Node("mul", (divisor, self.mixed_number()[0]))
                node, plain = Node("div", (node, divisor)), False
            elif self.is_sign("\\circ") and self.tokens[self.at + 1].kind == "letter":
                self.take()
                node = Node("apply", (node, self.factor()), "compose")
            elif self.starts_factor():
                if self.token.kind == "number" and (plain or node.kind == "div"):
                    raise ParseError("a number directly after another one")
                remainder = self.token.text in ("R", "r") and plain and self.tokens[self.at + 1].kind == "number"
                if remainder:
                    self.take()
                    return Node("remainder", (node, self.factor()))
                called = self.is_sign("(") and (
                    node.kind in ("name", "text") or (self.ahead().kind == "letter" and self.ahead(2).text == ")")
                )
                factor, plain = self.mixed_number()
                product = _quotient_group(node, factor) or _with_minutes(node, factor) or _restated(node, factor)
                node = product or Node("mul", (node, factor), "()" if called else "")
            else:
                if prefix is not None and self.is_command("dollar"):
                    self.take()
                return node if prefix is None else Node("quantity", (node,), unit=prefix)

    def _signed(self) -> Node:
        """Parse a factor that may have a sign."""
        if self.skip("-"):
            return negative(self._signed())
        self.skip("+")
        return self.mixed_number()[0]

    def factor(self) -> Node:
        """Parse an operand with its powers, factorials, degrees and percent signs."""
        return self.powered(self.operand())

    def powered(self, node: Node) -> Node:
        """Parse the powers, factorials, degrees and percent signs after an operand."""
        while True:
            if self.is_sign("^"):
                node = self._power(node)
            elif self.is_sign("!"):
                self.take()
                if self.skip("!"):
                    node = Node("apply", (node,), "double factorial")
                else:
                    node = Node("call", (node,), "factorial")
            elif self.is_sign("%", "‰") or self.is_word("percent", "pct"):
                share = node if self.take().text != "‰" else Node("div", (node, integer(10)))
                node = Node("percent", (share,))
            elif node.kind == "number" and self.is_word("squared", "cubed"):
                node = Node("pow", (node, integer(2 if self.take().text.lower() == "squared" else 3)))
            elif self.is_sign("\\degree") or (self.is_sign("\\circ") and node.kind == "number"):
                self.take()
                node = self._with_degrees(node)
            elif self.token.text == "x" and self.token.gap and node.kind == "number" and self.ahead().text == "10":
                self.take()
                node = Node("mul", (node, self._signed()))
            elif self.is_sign("\\oplus", "\\otimes"):
                sign = self.take().text
                kind = "mul" if sign == "\\oplus" and _is_group(node) else "apply"
                node = Node(kind, (node, self._signed()), "" if kind == "mul" else sign)
            elif self.is_sign("'") and node.kind == "number" and self.tokens[self.at + 1].kind != "letter":
                node = self.feet(node)
            elif self.is_sign("_") and node.kind in ("name", "constant"):
                node = self.name(node.text)
            elif self.is_sign("_") and node.kind == "pow" and node.parts[0].kind in ("name", "constant"):
                base, exponent = node.parts
                node = Node("pow", (Node("name", text=f"{base.text}_{self.subscript()}"), exponent))
            elif node.kind == "number" and (self.is_sign("_") or self.is_command("base")):
                node = self.based(node)
            elif self.is_sign("(") and node.kind == "number" and self.tokens[self.at + 1].text == "base":
                self.take()
                node = self.based(node)
                self.expect(")")
            else:
                return node

    def _power(self, base: Node) -> Node:
        self.take()
        braced = self.is_sign("{")
        inner = self.tokens[self.at + 1] if braced else self.token
        degree = inner.kind == "sign" and inner.text in ("\\circ", "\\degree")
        degree = degree or (inner.kind == "letter" and inner.text == "o" and base.kind == "number")
        if degree:
            self.at += 1 + braced
            if braced and not self.skip("}"):
                if self.token.text in ("C", "F"):
                    node = self.temperature(base)
                    self.expect("}")
                    return node
                raise ParseError("a degree sign in an exponent")
            return self._with_degrees(base)
        for length in (1, 2) if base.kind == "number" else ():
            start = self.at + braced
            ending = "".join(token.text.lower() for token in self.tokens[start : start + length])
            if ending in ("th", "st", "nd", "rd"):
                self.at = start + length
                self.skip("}")
                return base
        if inner.kind == "sign" and inner.text == "*" and _is_group(base):
            self.at += 1 + braced
            self.skip("}")
            return Node("name", text=base.text + "^*")
        if inner.kind == "sign" and inner.text in ("+", "-") and self._is_mark(self.at + braced):
            sign = self.tokens[self.at + braced].text
            self.at += 1 + braced
            self.skip("}")
            if base.kind == "reals" or base.text in ("\\mathbbZ", "\\mathbbR"):
                return half_line(base, sign)
            return self.name(f"{base.text}^{sign}") if base.kind == "name" else Node("apply", (base,), f"ion {sign}")
        if self.is_sign("-", "+"):
            sign = self.take().text
            exponent = self.argument(whole_number=True)
            return Node("pow", (base, negative(exponent) if sign == "-" else exponent))
        exponent = self.argument(whole_number=True)
        if self.is_sign("^") and not braced:
            exponent = self._power(exponent)
        return Node("pow", (base, exponent))

    def _with_degrees(self, node: Node) -> Node:
        r"""Return a value with degrees; the name of a standard state before a relation: `\Delta H^\circ =`."""
        named = node.kind == "name" and self.is_sign(*RELATIONS, "_")
        return self.name(node.text + "°") if named else self.temperature(node)

    def _is_mark(self, at: int) -> bool:
        r"""Return whether a sign is alone in an exponent: `\mathbb{Z}^+`."""
        following = self.tokens[min(at + 1, len(self.tokens) - 1)]
        return following.kind == "end" or (following.kind == "sign" and following.text not in ("(", "{", "-"))

    def over(self, top: Node) -> Node:
        r"""Parse `\over 6` or `\choose 3` after its first part; return that part if none follows."""
        if not self.is_command("over", "choose"):
            return top
        if self.take().text == "over":
            return Node("div", (top, self.sequence()))
        return Node("call", (top, self.sequence()), "binom")


def half_line(base: Node, sign: str) -> Node:
    """Return the positive or negative part of the reals; for integers a name."""
    if base.kind != "reals":
        return Node("name", text=f"{base.text}^{sign}")
    zero, end = integer(0), Node("infinity")
    return Node("interval", (zero, end) if sign == "+" else (Node("neg", (end,)), zero), "()")


def negative(node: Node) -> Node:
    """Return a value with the other sign; that of a quantity is before its unit."""
    if node.kind in ("quantity", "percent", "degree"):
        return node._replace(parts=(Node("neg", node.parts),))
    return Node("neg", (node,))


def _with_minutes(node: Node, marked: Node) -> Node | None:
    """Return the angle of `40° 30' 15''`, whose marks are read as feet and inches; None for other factors."""
    amounts = marked.parts if marked.kind == "list" else (marked,)
    if node.kind != "degree" or any(amount.unit not in _MARKS for amount in amounts):
        return None
    parts = (Node("div", (*amount.parts, integer(_MARKS[amount.unit]))) for amount in amounts)
    return Node("degree", (Node("add", (*node.parts, *parts)),))


def _restated(node: Node, factor: Node) -> Node | None:
    """Return the first of `0.125 (12.5%)`, which are the same number; None for other factors."""
    value, share = (factor, node) if node.kind == "percent" else (node, factor)
    same = value.kind == "number" and share.kind == "percent" and 100 * value.number == share.parts[0].number
    return node if same and value.number else None


def _is_group(node: Node) -> bool:
    return node.kind == "name" and node.text.startswith("\\mathbb")


def _quotient_group(node: Node, factor: Node) -> Node | None:
    r"""Return the name of `\mathbb{Z}/2\mathbb{Z}`."""
    if node.kind != "div" or not _is_group(factor) or node.parts[1].kind != "number":
        return None
    group, order = node.parts
    name = Node("name", text=f"{factor.text}_{order.number}")
    if group.kind == "mul" and group.parts[1] == factor:
        return Node("mul", (group.parts[0], name))
    return name if group == factor else None


def _multiplied(first: Node, second: Node, *, times: bool) -> Node:
    """Return a product; of two vectors the cross product, or the scalar product."""
    if first.kind == "mul" and first.parts[1].text.startswith("vec ") and second.text.startswith("vec "):
        return Node("mul", (first.parts[0], _multiplied(first.parts[1], second, times=times)))
    if all(side.kind == "name" and side.text.startswith("vec ") for side in (first, second)):
        return Node("apply", (first, second) if times else tuple(sorted((first, second))), "cross" if times else "dot")
    return Node("mul", (first, second))
