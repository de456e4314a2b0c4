r"""Splits an answer into tokens: LaTeX, Unicode, plain text, the printed forms of Python and SymPy, and English.

A token has a kind (number, letter, word, command, sign, end), its text, and the gap before it. Fonts, sizes of
brackets and other typesetting yield no token. Runs in linear time. Standard library only.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

from .extract import ENVIRONMENT, ESCAPED
from .lexicon import FUNCTION_ALIASES, FUNCTIONS, GREEK, KNOWN_WORDS, MATH_WORDS, is_prose
from .scanner import LITERAL, Scanner, Token
from .signs import (
    FONTS,
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
from .units import PREFIX_NAMES, unit_of

MAX_DEPTH = 60
"""Deepest nesting of font commands."""


_IGNORED = '\u200b\u200c\u200d\u2060\ufeff\xad`$\N{VARIATION SELECTOR-16}✓✔"'
_CURRENCY = {"€": "euro", "£": "pound_sterling", "¥": "yen", "₹": "rupee", "¢": "cent"}
_BROKEN = {"\x0c": "f", "\x08": "b", "\t": "t", "\r": "r", "\n": "n", "\x07": "a", "\x0b": "v"}
_MARKS = {"\u0302": "hat", "\u0303": "tilde", "\u0304": "bar", "\u0305": "bar", "\u20d7": "vec"}
_COMBINED = re.compile(f"([A-Za-z])([{''.join(_MARKS)}])")
_COMPOUND_SIGN = re.compile(r"\.\.\.|&&|\*\*|\+/-|<=>|-->|[<>!=]=|[-=]>|(?:\+-|-\+)(?=\s{0,2}[\d\w(\\.])")
"""Signs of several characters."""
_MEANINGS = {
    "**": "^", "&&": "and", "+/-": "\\pm", "+-": "\\pm", "-+": "\\mp", "<=>": "\\rightleftharpoons", "-->": "\\to",
    "->": "\\to", "=>": "\\to", "==": "=",
}  # fmt: skip
_RELATED = re.compile(r"~\s*(?:[A-Z][a-z]*\(|△|\\?triangle|[A-Z]{3}\b)")
"""A sign before a distribution or a figure, and no blank: `X ~ N(0, 1)`, `△ABC ~ △DEF`."""
_NEGATED = re.compile(r"~\s?[a-z(]")
_LOGIC = re.compile(r"[∧∨→↔⇒]|\\(?:land|lor|wedge|vee|to|implies)(?![a-z])")
_COMMAND = re.compile(r"\\(?:[a-zA-Z]+|.)", re.DOTALL)
_SI_GROUP = re.compile(r"\s*(?:\[[^\[\]]*\])?\s*\{([^{}]*)\}")
_SI_PART = re.compile(r"\\[a-zA-Z]+|[^\\\s]+")
"""Commands of a unit, and a unit as text."""
_FRACTION = re.compile("[¼-¾⅐-⅞]|[⁰¹²³⁴-⁹]+⁄[₀-₉]+")
"""`½`, and a fraction of raised and lowered digits."""
_LETTERS = re.compile(r"[^\W\d_]+")
_TABLED = frozenset({**SUPERSCRIPTS, **SUBSCRIPTS, **UNICODE_COMMANDS, **UNICODE})
_BARE = sorted(FUNCTIONS - {"arg", "Re", "Im", "det", "lg", "sgn", "cis", "gcd", "lcm", "max", "min"}, key=len)[::-1]


class Lexer(Scanner):
    """Splits a text into tokens."""

    def read(self) -> list[Token]:
        """Return the tokens, with an end token."""
        self.text = _COMBINED.sub(lambda mark: f"\\{_MARKS[mark[2]]}{{{mark[1]}}}", self.text)
        self._odd_dollars = len(re.findall(r"(?<!\\)\$", self.text)) % 2 == 1
        at = 0
        while at < len(self.text):
            at = self._next(at)
        return [*self.tokens, Token("end", "", self.gap)]

    def _next(self, at: int) -> int:
        character = self.text[at]
        if character in _BROKEN and (match := re.match(r"[a-zA-Z]+", self.text[at + 1 : at + 24])):
            name = _BROKEN[character] + match[0]
            if name in SIGNS or name in ESCAPED or name in FONTS or name in TEXTS or name in SKIPPED:
                return self._command_named(name, at + 1 + match.end())
        if character == "\\":
            return self._command(at)
        numeral = LITERAL.match(self.text, at)
        if numeral:
            return self._numeral(numeral)
        if re.match(r"\.?[0-9]", self.text[at : at + 2]):
            return self._number(at)
        compound = _COMPOUND_SIGN.match(self.text, at)
        if compound and not (compound[0] == "!=" and re.match(r"[\d)}]", self.text[max(at - 1, 0) : at])):  # `5!=120`
            self._sign(_MEANINGS.get(compound[0], compound[0]))
            return compound.end()
        if character.isspace() or character == "~":
            if _RELATED.match(self.text, at):
                self._sign("\\sim")
            elif _NEGATED.match(self.text, at) and _LOGIC.search(self.text):
                self._add("command", "neg")
            self.gap = max(self.gap, 1)
            return at + 1
        fraction = _FRACTION.match(self.text, at)
        if fraction:
            self._add("command", "frac")
            for part in unicodedata.normalize("NFKC", fraction[0]).split("⁄"):
                self._add("number", part, Node("number", number=Fraction(part)))
            return fraction.end()
        for table, sign in ((SUPERSCRIPTS, "^"), (SUBSCRIPTS, "_")):
            if character in table:
                return self._script(at, table, sign)
        if character in UNICODE:
            for sign in ("'", "'") if UNICODE[character] == "''" else (UNICODE[character],):
                self._sign(sign)
        elif character in UNICODE_COMMANDS:
            self._add("command", UNICODE_COMMANDS[character])
        elif character in _IGNORED:
            self.gap = self.gap or int(character == "$" and at > 0 and self.text[at - 1] != "\\")
            if character == "$" and self._odd_dollars and re.match(r"\$\s*-?[\d.]", self.text[at : at + 4]):
                self._add("command", "dollar")  # a currency, and no mathematics
        elif character in _CURRENCY:
            self._add("command", _CURRENCY[character])
        elif character.isalpha():
            return self._letters(at)
        elif character in "+-*/^_!'|=<>,;:()[]{}%‰.?#&@":
            self._sign(character)
        elif unicodedata.category(character) in ("No", "So", "Nd"):
            return self._compatible(at)
        else:
            raise ParseError(f"unknown character {character!r}")
        return at + 1

    def _compatible(self, at: int) -> int:
        """Read a compatibility character such as `㎡` or `℃` as its usual characters; others are letters."""
        character = self.text[at]
        plain = unicodedata.normalize("NFKC", character)
        if re.fullmatch(r"°[CF]|[a-zμ]+[23]?", plain):
            inner = Lexer(plain, depth=self.depth + 1)
            inner.roman, inner.gap, self.gap = True, self.gap, 0
            self.tokens += inner.read()[:-1]
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

    def _command(self, at: int) -> int:
        match = _COMMAND.match(self.text, at)
        if match is None:
            return at + 1
        return self._command_named(match[0][1:], match.end())

    def _command_named(self, name: str, end: int) -> int:
        if name in TEXTS or name in FONTS:
            return self._font(name, end)
        if name in ("num", "ang", "SI", "qty", "si", "unit"):
            return self._measured(name, end)
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
        if name == " " and self.text[end : end + 1] == "{" and self.tokens and self.tokens[-1].text == "R":
            self._sign("\\setminus")  # `R \ {2}`
            return end
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

    def _measured(self, name: str, end: int) -> int:
        r"""Read `\num{6e23}`, `\ang{120}`, `\SI{9.8}{\metre\per\second}` and `\unit{m/s}` of siunitx."""
        if name not in ("si", "unit"):
            match = _SI_GROUP.match(self.text, end)
            if match is None:
                raise ParseError(f"\\{name} without its number")
            number = Lexer(match[1], depth=self.depth + 1).read()
            self.tokens += [number[0]._replace(gap=self.gap), *number[1:-1]]
            end, self.gap = match.end(), 2
            if name == "ang":
                self._sign("\\degree")
            if name in ("num", "ang"):
                return end
        match = _SI_GROUP.match(self.text, end)
        if match is None:
            raise ParseError(f"\\{name} without its unit")
        prefix = ""
        for part in _SI_PART.findall(match[1]):
            if part == "\\per":
                self._sign("/")
            elif part[1:] in PREFIX_NAMES:
                prefix = part[1:]
            elif part[0] == "\\":
                self.tokens.append(Token("word", prefix + part[1:], 1, None, True))
                prefix = ""
            else:
                inner = Lexer(part, depth=self.depth + 1)
                inner.roman = True
                self.tokens += inner.read()[:-1]
        return match.end()

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

    def _letters(self, at: int) -> int:
        """Read a run of letters: words, known functions, names of the other answer, else single letters."""
        match = _LETTERS.match(self.text, at)
        assert match is not None
        run = match[0]
        script = next((index for index, mark in enumerate(run) if mark in _TABLED), len(run)) or 1
        run = run[:script]
        end = at + script
        lower = run.lower()
        alone = not re.match(r"[\w\\({^]", self.text[end : end + 1] or " ") or self.text[end : end + 1] == ""
        spaced = alone and (self.gap > 0 or not self.tokens or self.tokens[-1].kind == "sign")
        if run in self.compounds or (run in _NUMERALS and _STATEMENTS.search(self.text)):
            self._add("word", run)
        elif run == "US" and self.text[end : end + 1] in ("$", "\\"):
            return end  # `US$5`
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
        elif self.roman or self._is_word(run, end, spaced=spaced) or not run.isascii() or is_prose(run, spaced=spaced):
            self._add("word", run)
        else:
            self._split(run)
        return end

    def _is_word(self, run: str, end: int, *, spaced: bool) -> bool:
        """Return whether a table has a run of letters; of two letters only units, or words between blanks."""
        number = bool(self.tokens) and self.tokens[-1].kind == "number"
        ends = self.text[end : end + 1] in (*" ,.;:)}\\", "")
        opened = bool(self.tokens) and self.tokens[-1].text == "(" and self.text[end : end + 1] == " "
        apart = spaced and ends and (self.gap > 0 or not self.tokens or opened)
        return run.lower() in KNOWN_WORDS and (len(run) > 2 or apart or (number and unit_of(run) is not None))

    def _split(self, run: str) -> None:
        start = 0
        measured = bool(self.tokens) and self.tokens[-1].kind == "number" and unit_of(run) is not None  # `1230 meV`
        compounds = () if measured else self.compounds
        while start < len(run):
            word = next((word for word in compounds if run.startswith(word, start)), "")
            function = "" if word else next((name for name in _BARE if run.startswith(name, start)), "")
            if word:
                self._add("word", word)
            elif function:
                self._add("command", function)
            else:
                self._add("letter", run[start])
            start += len(word or function) or 1


_NUMERALS = frozenset(["II", "III", "IV", "VI", "VII", "VIII", "IX"])
_STATEMENTS = re.compile(r"\bIII?\b")
"""A Roman numeral that is no product: next to it `IV` is one too."""
_ALONE = frozenset(["Reals", "EmptySet", "Infinity"])
"""Words of SymPy in capitals that no bracket follows."""
_ACIDITY = frozenset(["pH", "pOH", "pKa", "pKb", "pKw"])
_MODULES = frozenset(["math", "np", "numpy", "sympy", "sp", "S", "cmath", "mp", "mpmath"])
