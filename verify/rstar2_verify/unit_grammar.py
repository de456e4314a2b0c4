"""Parses the unit after a value: `m/s^2`, `\\text{J/(mol K)}`, `5 lb 2 oz`, money. Standard library only."""

from __future__ import annotations

from .cursor import Cursor
from .lexicon import BASES, ORDINALS, SCALES
from .tokens import Token
from .tree import Node, ParseError, integer
from .units import Unit, product, unit_of

_POWER_WORDS = {"squared": 2, "cubed": 3}
_SHAPES = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_SUFFIXES = {"k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "m": 10**6, "bn": 10**9}
_MONEY = {"dollar": "dollar", "euro": "euro", "pound_sterling": "pound_sterling", "yen": "yen", "rupee": "rupee",
          "cent": "cent", "textdollar": "dollar", "pounds": "pound_sterling", "euros": "euro"}  # fmt: skip

_WEIGHTS: dict[Unit, Unit] = {(("pound", 1),): (("lb", 1),)}


class UnitParser(Cursor):
    """A position in a list of tokens, and the units that can be at it."""

    _is_part = False
    """Whether an amount of `5 lb 2 oz` after the first one is read."""
    _last_name_check: tuple[Node | None, bool] = (None, False)
    """The last node of `_has_name`, and the answer."""

    def currency(self) -> Unit | None:
        """Read a sign of money before a number."""
        token = self.token
        numeric = self.ahead().kind == "number"
        if self.is_command(*_MONEY) and (numeric or self.ahead().text in ("frac", "(", "sqrt")):
            self.take()
            return ((_MONEY[token.text], 1),)
        return unit_of(self.take().text.lower()) if numeric and self.is_word("usd", "eur") else None

    def price(self, money: Unit) -> Unit:
        """Read `per hour` or `/hr` after an amount of money; return its unit."""
        start = self.at
        if self.is_word("per", "an") or self.token.text in ("a", "/"):
            self.take()
            unit = self._unit(bare=self.units)
            if unit and self._ends_unit():
                return product(money, _WEIGHTS.get(unit, unit), -1)
        self.at = start
        return money

    def multiplier(self, node: Node, *, money: bool) -> tuple[Node, bool]:
        """Read `million`, `dozen`, and after a sign of money `k`; return whether it was there."""
        multiplied = False
        while node.kind in ("number", "mul", "div"):
            token = self.token
            size = SCALES.get(token.text.lower()) if token.kind == "word" else None
            if size is None and token.text in _SUFFIXES and token.kind in ("letter", "word") and node.kind == "number":
                after = self.ahead()
                ends = after.kind in ("end", "word") or after.text in (*",;)", "and", "or", "dollar")
                roman_k = token.roman and token.text == "k" and after.text != "Omega"
                money = money or after.text.lower().rstrip("s") in ("usd", "eur", *_MONEY)
                size = _SUFFIXES[token.text] if (money or roman_k) and ends else None
            if size is None:
                return node, multiplied
            self.take()
            multiplied = True
            node = Node("mul", (node, integer(size)))
        return node, multiplied

    def unit_suffix(self, node: Node) -> Unit | None:
        """Read the unit after a value; None and no move if there is none."""
        token = self.token
        if token.kind == "end" or node.kind in ("relation", "list", "set"):
            return None
        inverse = token.text == "/" and (
            self.ahead().kind == "word"
            or (self.units and token.gap and self.ahead().kind == "letter" and self.ahead(2).kind == "end")
        )
        if token.kind == "sign" and token.text != "{" and not inverse:
            return None
        start = self.at
        if token.text == "of" and self.ahead().text in ("a", "an"):
            self.at += 2  # `three quarters of an hour`
        unit = self._unit(bare=self.units and self.depth == 0 and not self._has_name(node))
        if unit is None or not unit or not self._ends_unit():
            self.at = start
            return None
        return unit

    def _has_name(self, node: Node) -> bool:
        """Return whether a tree has a name. The last checked node is the first part of a product that grows."""
        last, answer = self._last_name_check
        stack, has_name = [node], False
        while stack and not has_name:
            part = stack.pop()
            if part is last:
                has_name = answer
            else:
                has_name = part.kind == "name" and not part.text.startswith("unit ")
                stack += part.parts
        self._last_name_check = node, has_name
        return has_name

    def _ends_unit(self) -> bool:
        token = self.token
        if token.kind in ("end", "word", "number"):
            return True
        if token.kind == "sign":
            return token.text not in ("^", "_", "{", "[", "!", "'")
        return token.kind == "letter" and token.roman

    def _unit(self, *, bare: bool) -> Unit | None:
        inverse = self.skip("/")
        unit = self._unit_factor(bare=bare)
        if unit is None:
            return None
        if inverse:
            return product((), unit, -1)
        sign = 1
        while True:
            before = self.at
            divided = self.skip("/") or self.is_word("per", "an")
            if divided and self.is_word("per", "an"):
                self.take()
            if not divided and not self.skip("*") and self.ahead().kind == "word":
                self.skip("-")
            sign = -1 if divided else sign
            if divided and self.skip("("):
                inner = self._unit(bare=True)
                inner = inner if self.skip(")") else None
            else:
                inner = self._unit_factor(bare=bare or divided)
            if inner is None:
                self.at = before
                return unit
            unit = product(unit, inner, sign)

    def _unit_factor(self, *, bare: bool) -> Unit | None:
        start = self.at
        unit = self._unit_name(bare=bare)
        if unit is None:
            self.at = start
            return None
        power = self._unit_power()
        return tuple((symbol, exponent * power) for symbol, exponent in unit)

    def _unit_power(self) -> int:
        start = self.at
        if self.is_word(*_POWER_WORDS):
            return _POWER_WORDS[self.take().text.lower()]
        if self.skip("^"):
            braced = self.skip("{")
            sign = -1 if self.skip("-") else 1
            token = self.take()
            if token.node is not None and token.node.number.denominator == 1 and (not braced or self.skip("}")):
                return sign * min(token.node.number.numerator, 99)
            self.at = start
        elif self.token.kind == "number" and self.token.text in ("2", "3") and not self.token.gap:
            return int(self.take().text)
        return 1

    def _unit_name(self, *, bare: bool) -> Unit | None:
        token = self.take()
        if token.kind == "sign":
            return self._unit_group(token.text, bare=bare)
        if token.kind == "command":
            return self._unit_command(token, bare=bare)
        if token.kind not in ("word", "letter"):
            return None
        if token.kind == "word" and token.text.lower() in _SHAPES:
            inner = self._unit_name(bare=bare)
            return inner and tuple((symbol, power * _SHAPES[token.text.lower()]) for symbol, power in inner)
        if self.token.kind == "command" and self.token.text == "Omega" and token.text in ("k", "M", "m", "G"):
            self.take()
            return unit_of(token.text + "ohm")
        if token.kind == "word":
            hyphen = int(self.is_sign("-"))
            following = self.ahead(hyphen) if hyphen else self.token
            if following.kind == "word" and (joined := unit_of(token.text + following.text)) and token.text.islower():
                self.at += 1 + hyphen
                return joined
            if token.text.lower() in ("degree", "degrees", "deg") and self.token.text.lower() in (
                "c", "f", "celsius", "fahrenheit", "centigrade"
            ):  # fmt: skip
                return ((("celsius", "fahrenheit")[self.take().text.lower()[0] == "f"], 1),)
            if token.text == "in" and self.token.kind == "number":
                return None
            return unit_of(token.text) if token.text.lower() not in ("in", "us", "may") or token.roman or bare else None
        if not (token.roman or bare):
            return None
        run = token.text
        while self.token.kind == "letter" and not self.token.gap and len(run) < 6 and self.token.roman == token.roman:
            run += self.take().text
        while run and unit_of(run) is None and len(run) > 1:
            run = run[:-1]
            self.at -= 1
        single = not token.roman and len(run) == 1 and not token.gap and self.tokens[self.at - 2].kind == "number"
        if single and run not in ("h", "g", "m", "s", "J", "N", "W", "V", "L", "l", "K"):
            return None
        return unit_of(run)

    def _unit_group(self, sign: str, *, bare: bool) -> Unit | None:
        if sign == "{":
            if self.skip("}"):
                return self._unit_name(bare=bare)
            inner = self._unit(bare=bare)
            return inner if inner is not None and self.skip("}") else None
        if sign in ("^", "\\degree"):
            if sign == "^":
                braced = self.skip("{")
                if not self.skip("\\circ") or (braced and not self.skip("}")):
                    return None
            if self.token.text in ("C", "F"):
                return ((("celsius", "fahrenheit")[self.take().text == "F"], 1),)
        return None

    def _unit_command(self, token: Token, *, bare: bool) -> Unit | None:
        if token.text in _MONEY:
            return ((_MONEY[token.text], 1),)
        if token.text == "min" and not self.is_sign("(", "{", "_"):
            return (("min", 1),)
        if token.text == "Omega":
            return (("ohm", 1),)
        if token.text == "mu" and self.token.kind in ("letter", "word"):
            name = self.take()
            return unit_of("u" + name.text) if name.roman or bare else None
        if token.text == "frac" and self.is_sign("{"):
            top = self._unit_name(bare=bare)
            bottom = self._unit_name(bare=True) if top else None
            return product(top, bottom, -1) if top and bottom else None
        return None

    def compound(self, node: Node) -> Node:
        """Read further amounts of one quantity: `5 lb 2 oz`. These have no further amounts of their own."""
        parts = [node]
        while self.token.kind == "number" and len(parts) < 4 and not self._is_part:
            start = self.at
            self._is_part = True
            try:
                following = self.product()
            finally:
                self._is_part = False
            if following.kind == "number" and node.unit == (("h", 1),) and not self.tokens[start].gap:
                following = Node("quantity", (following,), unit=(("min", 1),))  # `1h30`
            if following.kind == "quantity":
                parts.append(following)
                continue
            self.at = start
            break
        return parts[0] if len(parts) == 1 else Node("list", tuple(parts), " ".join(["and"] * (len(parts) - 1)))

    def temperature(self, node: Node) -> Node:
        """Return degrees, or a temperature if its letter follows."""
        token = self.token
        letter = token.text if token.kind in ("letter", "word") else ""
        if letter in ("C", "F") or letter.lower() in ("celsius", "fahrenheit"):
            self.take()
            return Node("quantity", (node,), unit=((("celsius", "fahrenheit")[letter[0] in "Ff"], 1),))
        return Node("degree", (node,))

    def feet(self, node: Node) -> Node:
        """Return the amount of `5'6''`."""
        self.take()
        if self.skip("'"):
            return Node("quantity", (node,), unit=(("in", 1),))
        feet = Node("quantity", (node,), unit=(("ft", 1),))
        if self.token.kind != "number":
            return feet
        inches = self.take().node
        assert inches is not None
        if self.skip("'"):
            self.skip("'")
        return Node("list", (feet, Node("quantity", (inches,), unit=(("in", 1),))), "and")

    def based(self, node: Node) -> Node:
        r"""Return a numeral of a base: `52_8`, `52 \text{ base eight}`."""
        braced = bracket = False
        if self.skip("_"):
            braced = self.skip("{")
            if self.token.text == "base":
                self.take()
            bracket = self.skip("(")
        else:
            self.take()
        token = self.take()
        letters = token.text
        while token.kind == "letter" and self.token.kind == "letter" and len(letters) < 8:
            letters += self.take().text
        number = BASES.get(letters.lower())
        if token.node is not None and token.node.number.denominator == 1:
            number = token.node.number.numerator
        if (
            number is None
            or node.number.denominator != 1
            or (bracket and not self.skip(")"))
            or (braced and not self.skip("}"))
        ):
            raise ParseError("a subscript of a number that is no base")
        return Node("based", (), f"{node.number.numerator}|{number}")

    def ordinal_alone(self) -> bool:
        """Return whether an ordinal in words is the whole answer."""
        return self.at == 0 and self.ahead().kind == "end" and self.is_word(*ORDINALS)
