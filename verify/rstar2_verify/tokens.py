r"""Splits an answer into tokens: LaTeX, Unicode, plain text, the printed forms of Python and SymPy, and English.

A token has a kind (number, letter, word, command, sign, end), its text, and the gap before it. Fonts, sizes of
brackets and other typesetting yield no token. Runs in linear time. Standard library only.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from fractions import Fraction
from typing import NamedTuple

from .extract import ENVIRONMENT, ESCAPED
from .lexicon import FUNCTION_ALIASES, FUNCTIONS, GREEK, KNOWN_WORDS, MATH_WORDS, is_prose
from .signs import (
    FONTS,
    FRACTIONS,
    SIGNS,
    SKIPPED,
    SPACES,
    SUBSCRIPTS,
    SUPERSCRIPTS,
    TEXTS,
    UNICODE,
    UNICODE_COMMANDS,
    VARIANTS,
)
from .tree import Node, ParseError
from .units import unit_of

MAX_EXPONENT = 5000
"""Largest absolute exponent of a number in scientific notation."""
MAX_DEPTH = 60
"""Deepest nesting of font commands."""


class Token(NamedTuple):
    """A token of an answer."""

    kind: str
    text: str
    gap: int = 0
    """The gap before it: 0 nothing, 1 a blank, 2 a spacing command."""
    node: Node | None = None
    """The value of a number."""
    roman: bool = False
    """Whether it is in a font command for text."""


_IGNORED = '\u200b\u200c\u200d\u2060\ufeff\xad`$\N{VARIATION SELECTOR-16}✓✔"'
_CURRENCY = {"€": "euro", "£": "pound_sterling", "¥": "yen", "₹": "rupee", "¢": "cent"}
_BROKEN = {"\x0c": "f", "\x08": "b", "\t": "t", "\r": "r", "\n": "n", "\x07": "a", "\x0b": "v"}
_MARKS = {"\u0302": "hat", "\u0303": "tilde", "\u0304": "bar", "\u0305": "bar", "\u20d7": "vec"}
_COMBINED = re.compile(f"([A-Za-z])([{''.join(_MARKS)}])")
_COMMAND = re.compile(r"\\(?:[a-zA-Z]+|.)", re.DOTALL)
_GROUPED = re.compile(
    r"\d{1,3}(?:(?:\{,\}|,?\\!|,\\!|\\,|\\ |[ _\u2009\u202f\xa0]|\\;)\d{3})+(?!\d| ?\d)(?:\.\d+)?"
    r"|\d{1,3}(?:\{?,\}?\\!\s*\d{3})+(?!\d)(?:\.\d+)?"
)
_COMMAS = re.compile(r"\d{1,3}(?:,\d{3})+(?!\d|,\d)(?:\.\d+)?")
_DIGITS = re.compile(r"\d+(?:\.\d+|\.(?!\.|\s*[A-Za-z]{2}))?|\.\d+", re.ASCII)
_EXPONENT = re.compile(r"[eE]([-+]?\d+)(?![\w.]|\s*\^)")
_REPEATED = re.compile(
    r"\s*\\(?:overline|bar|dot)\s*(?:\{\s*(\d+)\s*\}|(\d))(?:(\d*)\\dot\s*(?:\{\s*(\d)\s*\}|(\d)))?|\((\d+)\)(?=\s*$)"
)
_DOTS = re.compile(r"\s*(?:\.{3}|…|\\(?:ldots|dots|cdots)(?![a-zA-Z]))")
_LITERAL = re.compile(r"0([xX](?=[0-9a-fA-F]{1,64}\b)|[bB](?=[01]{1,64}\b)|[oO](?=[0-7]{1,64}\b))([0-9a-fA-F]+)")
_NUMERAL = re.compile(r"([0-9]{0,32}[A-F][0-9A-F]{0,32})_(?:16|\{\s*(?:\\text\s*\{)?\s*(?:16|hex|sixteen)\s*\}?\s*\})")
_LETTERS = re.compile(r"[^\W\d_]+")
_BARE = sorted(FUNCTIONS - {"arg", "Re", "Im", "det", "lg", "sgn", "cis", "gcd", "lcm", "max", "min"}, key=len)[::-1]


def repeating(whole: str, start: str, period: str) -> Fraction:
    """Return `whole.start` followed by `period` repeated without end."""
    shift = 10 ** len(start)
    nines = 10 ** len(period) - 1
    return Fraction(int(whole or "0")) + Fraction(int(start or "0"), shift) + Fraction(int(period), shift * nines)


def _continued(digits: str) -> tuple[str, str] | None:
    """Return (start, period) of decimals before dots: `1666` is 1 and 6; None if nothing repeats."""
    for length in range(1, len(digits) // 2 + 1):
        period, start, count = digits[-length:], digits, 0
        while start.endswith(period):
            start, count = start[:-length], count + 1
        if count >= 3 or (count >= 2 and (not start or length > 1)):
            return start, period
    return None


class Lexer:
    """Splits a text into tokens."""

    def __init__(self, text: str, compounds: Collection[str] = (), *, commas: bool = True, depth: int = 0) -> None:
        self.text, self.compounds, self.commas, self.depth = text, compounds, commas, depth
        self.tokens: list[Token] = []
        self.brackets: list[str] = []
        self.gap, self.roman = 0, False

    def read(self) -> list[Token]:
        """Return the tokens, with an end token."""
        self.text = _COMBINED.sub(lambda mark: f"\\{_MARKS[mark[2]]}{{{mark[1]}}}", self.text)
        at = 0
        while at < len(self.text):
            at = self._next(at)
        return [*self.tokens, Token("end", "", self.gap)]

    def _add(self, kind: str, text: str, node: Node | None = None, gap: int | None = None) -> None:
        self.tokens.append(Token(kind, text, self.gap if gap is None else gap, node, self.roman))
        self.gap = 0

    def _sign(self, text: str) -> None:
        if text in ("(", "[", "{", "\\{"):
            self.brackets.append(text)
        elif text in (")", "]", "}", "\\}") and self.brackets:
            self.brackets.pop()
        self._add("sign", text)

    def _next(self, at: int) -> int:
        character = self.text[at]
        if character in _BROKEN and (match := re.match(r"[a-zA-Z]+", self.text[at + 1 : at + 24])):
            name = _BROKEN[character] + match[0]
            if name in SIGNS or name in ESCAPED or name in FONTS or name in TEXTS or name in SKIPPED:
                return self._command_named(name, at + 1 + match.end())
        if character == "\\":
            return self._command(at)
        if self.text[at : at + 3] in ("{:}", "{=}", "{+}", "{-}", "{<}", "{>}"):
            self._sign(self.text[at + 1])
            return at + 3
        numeral = _LITERAL.match(self.text, at) or _NUMERAL.match(self.text, at)
        if numeral:
            return self._numeral(numeral)
        if re.match(r"\.?[0-9]", self.text[at : at + 2]):
            return self._number(at)
        if self.text.startswith("...", at):
            self._sign("...")
            return at + 3
        if character.isspace() or character == "~":
            self.gap = max(self.gap, 1)
            return at + 1
        for table, sign in ((SUPERSCRIPTS, "^"), (SUBSCRIPTS, "_")):
            if character in table:
                return self._script(at, table, sign)
        if character in UNICODE:
            for sign in ("'", "'") if UNICODE[character] == "''" else (UNICODE[character],):
                self._sign(sign)
        elif character in UNICODE_COMMANDS:
            self._add("command", UNICODE_COMMANDS[character])
        elif character in FRACTIONS:
            top, bottom = FRACTIONS[character]
            self._add("command", "frac")
            for value in (top, bottom):
                self._add("number", str(value), Node("number", number=Fraction(value)))
        elif character in _IGNORED:
            self.gap = self.gap or int(character == "$" and at > 0 and self.text[at - 1] != "\\")
            if character == "$" and not self._is_math(at):
                self._add("command", "dollar")
        elif character in _CURRENCY:
            self._add("command", _CURRENCY[character])
        elif character.isalpha():
            return self._letters(at)
        elif self.text[at : at + 2] == "**":
            self._sign("^")
            return at + 2
        elif self.text[at : at + 3] in ("+/-", "<=>", "-->"):
            self._sign({"+/-": "\\pm", "<=>": "\\rightleftharpoons", "-->": "\\to"}[self.text[at : at + 3]])
            return at + 3
        elif re.match(r"\+-(?=\s*[\d\w(\\.])|-\+(?=\s*[\d\w(\\.])", self.text[at : at + 4]):
            self._sign("\\pm" if character == "+" else "\\mp")
            return at + 2
        elif self.text[at : at + 2] in ("<=", ">=", "!=", "->", "=>", "==") and not self._is_factorial(at):
            self._sign({"->": "\\to", "=>": "\\to", "==": "="}.get(self.text[at : at + 2], self.text[at : at + 2]))
            return at + 2
        elif character in "+-*/^_!'|=<>,;:()[]{}%.?#&@":
            self._sign(character)
        elif unicodedata.category(character) in ("No", "So", "Nd"):
            return self._compatible(at)
        else:
            raise ParseError(f"unknown character {character!r}")
        return at + 1

    def _is_math(self, at: int) -> bool:
        """Return whether a dollar sign delimits mathematics, and is no currency."""
        count = len(re.findall(r"(?<!\\)\$", self.text))
        return not (count % 2 and re.match(r"\$\s*-?[\d.]", self.text[at : at + 4]))

    def _compatible(self, at: int) -> int:
        """Read a compatibility character such as `㎡` or `℃` as its usual characters; others are letters."""
        character = self.text[at]
        plain = unicodedata.normalize("NFKC", character)
        if plain == "°C" or plain == "°F":
            self._sign("\\degree")
            self._add("letter", plain[1])
        elif re.fullmatch(r"[a-zμ]+[23]?", plain):
            self._add("word", plain.rstrip("23"))
            if plain[-1].isdigit():
                self._sign("^")
                self._add("number", plain[-1], Node("number", number=Fraction(int(plain[-1]))))
        else:
            self._add("word", character)
        return at + 1

    def _script(self, at: int, table: dict[str, str], sign: str) -> int:
        end = at
        while end < len(self.text) and self.text[end] in table:
            end += 1
        self._sign(sign)
        self._sign("{")
        inner = Lexer("".join(table[mark] for mark in self.text[at:end]), self.compounds, depth=self.depth + 1)
        self.tokens += inner.read()[:-1]
        self._sign("}")
        return end

    def _is_factorial(self, at: int) -> bool:
        """Return whether the sign after a digit or a group is a factorial: `5!=120`."""
        return self.text[at] == "!" and bool(re.match(r"[\d)}]", self.text[max(at - 1, 0) : at]))

    def _command(self, at: int) -> int:
        match = _COMMAND.match(self.text, at)
        if match is None:
            return at + 1
        return self._command_named(match[0][1:], match.end())

    def _command_named(self, name: str, end: int) -> int:
        if name in TEXTS or name in FONTS:
            return self._font(name, end)
        if name in (ENVIRONMENT, "end"):
            closing, opening = self.text.find("}", end), self.text.find("{", end)
            if opening < 0 or closing < opening:
                raise ParseError(f"\\{name} without an environment")
            environment = self.text[opening + 1 : closing].strip().rstrip("*")
            self._add("command", f"\\{name} {environment}")
            if name == ENVIRONMENT and environment == "array":
                column = re.compile(r"\s*\{[^{}]*\}").match(self.text, closing + 1)
                return column.end() if column else closing + 1
            return closing + 1
        if name == "not":
            match = re.compile(r"\s*(=|\\in(?![a-zA-Z])|\\equiv(?![a-zA-Z]))").match(self.text, end)
            if match is None:
                raise ParseError("\\not without a relation")
            self._sign({"=": "!=", "\\in": "\\notin", "\\equiv": "\\nequiv"}[match[1]])
            return match.end()
        if name in SPACES:
            self.gap = 2
            if name in ("quad", "qquad"):
                self._add("sign", "\\quad")
            elif name == "hspace":
                return self._skip_group(end)
        elif name in ("color", "textcolor", "tag", "label", "phantom", "vspace"):
            return self._skip_group(end)
        elif name == "\\":
            self._sign("\\\\")
            spacing = re.compile(r"\[[^\[\]]{0,8}(?:pt|em|ex|cm|mm)\]").match(self.text, end)
            return spacing.end() if spacing else end
        elif name == "{" and self.tokens and self.tokens[-1].text in ("R", "}") and "\\}" not in self.text[end:]:
            self._sign("\\setminus")  # `ℝ\{3}`
            return end - 1
        elif name in SIGNS:
            self._sign(SIGNS[name])
        elif name in SKIPPED:
            if name in ("left", "right", "middle") and self.text[end : end + 1] == ".":
                return end + 1
            if name == "$":
                self._add("command", "dollar")
        else:
            self._add("command", FUNCTION_ALIASES.get(name, VARIANTS.get(name, name)))
        return end

    def _skip_group(self, at: int) -> int:
        match = re.compile(r"\s*\*?(?:\[[^\[\]]*\])?\s*\{[^{}]*\}").match(self.text, at)
        return match.end() if match else at

    def _font(self, name: str, end: int) -> int:
        """Read the content of a font command. Words in a font for text are words, never products of letters."""
        while self.text[end : end + 1] in (" ", "*"):
            end += 1
        if self.text[end : end + 1] != "{":
            return end  # `\mathbf x`: the font has no meaning
        depth, closing = 0, end
        while closing < len(self.text):
            step = self.text[closing]
            if step == "\\":
                closing += 2
                continue
            depth += (step == "{") - (step == "}")
            if depth == 0:
                break
            closing += 1
        content = self.text[end + 1 : closing]
        if self.depth > MAX_DEPTH:
            raise ParseError("fonts that are nested too deeply")
        inner = Lexer(content, self.compounds, commas=self.commas, depth=self.depth + 1)
        inner.roman = name in TEXTS or name in ("mathrm", "operatorname")
        inner.brackets = list(self.brackets)
        tokens = inner.read()
        first = min(1, len(tokens) - 1)
        plain = [token for token in tokens[:-1] if token.kind != "sign" or token.text not in ".,"]
        bold = name in ("mathbf", "boldsymbol", "bm", "textbf", "bold", "pmb") and len(plain) == 1
        if bold and plain[0].kind == "letter" and len(tokens) == 2:
            if name != "textbf":
                self._add("command", "vec")
            self.tokens.append(plain[0]._replace(gap=self.gap, roman=name == "textbf"))
            self.gap = 0
            return closing + 1
        grouped = (
            name in FONTS and len(tokens) > 2 and not any(token.kind == "word" or token.text == "." for token in tokens)
        )
        if grouped:
            self._sign("{")
        for token in tokens[:-1]:
            gap = max(self.gap, token.gap) if first else token.gap
            self.tokens.append(token._replace(gap=gap))
            self.gap, first = 0, 0
        self.gap = max(self.gap, tokens[-1].gap)
        if grouped:
            self._sign("}")
        return closing + 1

    def _number(self, at: int) -> int:
        """Read a number with thousands marks, a repeated part, or a power of ten."""
        index = bool(self.tokens) and self.tokens[-1].text == "_"  # `\\log_2 512`
        match = None if index else _GROUPED.match(self.text, at)
        nested = bool(self.brackets) and self.brackets[-1] != "{"
        if match is None:
            match = _COMMAS.match(self.text, at)
            if match and (nested or not self.commas) and ",0" not in match[0]:
                match = None
        match = match or _DIGITS.match(self.text, at)
        if match is None:
            raise ParseError("a digit that is not ASCII")
        whole, point, part = re.sub(r"[^\d.]", "", match[0]).partition(".")
        end = match.end()
        repeated, dots = (_REPEATED.match(self.text, end), _DOTS.match(self.text, end)) if point else (None, None)
        continued = _continued(part) if dots else None
        value = Fraction(int(whole or 0) * 10 ** len(part) + int(part or 0), 10 ** len(part))
        decimals: int | None = len(part) if point else None
        if repeated:
            period = "".join(group for group in repeated.groups() if group)
            value, end, decimals = repeating(whole, part, period), repeated.end(), None
        elif dots and continued:
            value, end, decimals = repeating(whole, *continued), dots.end(), None
        elif dots:
            end = dots.end()
        exponent = _EXPONENT.match(self.text, end) if not (repeated or dots) else None
        if exponent:
            power = int(exponent[1][:6])
            if abs(power) > MAX_EXPONENT:
                raise ParseError("an exponent beyond the limit")
            value, end = value * Fraction(10) ** power, exponent.end()
            decimals = None if decimals is None else decimals - power
        text = match[0] if end == match.end() else ""
        self._add("number", text, Node("number", number=value, decimals=decimals))
        return end

    def _numeral(self, match: re.Match[str]) -> int:
        """Read `0x2A`, whose value counts, or `2A_{16}`."""
        base = {"x": 16, "b": 2, "o": 8}[match[1].lower()] if match.re is _LITERAL else 16
        digits = (match[2] if match.re is _LITERAL else match[1]).upper().lstrip("0") or "0"
        value = Fraction(int(digits, base)) if match.re is _LITERAL else Fraction(0)
        self._add("number", match[0], Node("based", text=f"{digits}|{base}", number=value))
        return match.end()

    def _letters(self, at: int) -> int:
        """Read a run of letters: words, known functions, names of the other answer, else single letters."""
        match = _LETTERS.match(self.text, at)
        assert match is not None
        run = match[0]
        script = next((index for index, mark in enumerate(run) if not _is_plain(mark)), len(run))
        if script == 0:
            script = 1
        run = run[:script]
        end = at + script
        lower = run.lower()
        alone = not re.match(r"[\w\\({^]", self.text[end : end + 1] or " ") or self.text[end : end + 1] == ""
        spaced = alone and (self.gap > 0 or not self.tokens or self.tokens[-1].kind == "sign")
        if run in self.compounds:
            self._add("word", run)
        elif run == "mg" and not (self.roman or any(token.kind == "number" for token in self.tokens)):
            self._split(run)  # mass times acceleration
        elif run in _ACIDITY:
            self._add("letter", run[: 2 if run[1] == "K" else 3])
            if run[1] == "K":
                self._sign("_")
                self._add("letter", run[2:])
        elif lower in ("or", "and"):
            self._sign(lower)
        elif run in _MODULES and re.match(r"\.[a-zA-Z]", self.text[end : end + 2]):
            return end + 1
        elif run in MATH_WORDS and (run in _ALONE or run[0].islower() or self.text[end : end + 1] in ("(", ".")):
            self._add("command", MATH_WORDS[run])
        elif run in FUNCTIONS or run in FUNCTION_ALIASES:
            self._add("command", FUNCTION_ALIASES.get(run, run))
        elif len(run) == 1:
            if run.isascii() or "\u0370" <= run <= "\u03ff":
                self._add("letter", run)
            else:
                self._add("word", run)
        elif run in GREEK:
            self._add("command", run)
        elif (
            self.roman
            or self._is_word(run, spaced=spaced, ends=self.text[end : end + 1] in (*" ,.;:)}\\", ""))
            or not run.isascii()
            or is_prose(run, spaced=spaced)
        ):
            self._add("word", run)
        else:
            self._split(run)
        return end

    def _is_word(self, run: str, *, spaced: bool, ends: bool) -> bool:
        """Return whether a table has a run of letters; of two letters only units, or words between blanks."""
        number = bool(self.tokens) and self.tokens[-1].kind == "number"
        apart = spaced and ends and (self.gap > 0 or not self.tokens)
        return run.lower() in KNOWN_WORDS and (len(run) > 2 or apart or (number and unit_of(run) is not None))

    def _split(self, run: str) -> None:
        start = 0
        while start < len(run):
            word = next((word for word in self.compounds if run.startswith(word, start)), "")
            function = "" if word else next((name for name in _BARE if run.startswith(name, start)), "")
            if word:
                self._add("word", word)
            elif function:
                self._add("command", function)
            else:
                self._add("letter", run[start])
            start += len(word or function) or 1


def _is_plain(mark: str) -> bool:
    """Return whether a character is a letter that no table of signs, commands and scripts has."""
    return not (mark in SUPERSCRIPTS or mark in SUBSCRIPTS or mark in UNICODE_COMMANDS or mark in UNICODE)


_ALONE = frozenset(["Reals", "EmptySet", "Infinity"])
"""Words of SymPy in capitals that no bracket follows."""
_ACIDITY = frozenset(["pH", "pOH", "pKa", "pKb", "pKw"])
_MODULES = frozenset(["math", "np", "numpy", "sympy", "sp", "S", "cmath", "mp", "mpmath"])
