r"""Splits the LaTeX of an answer into tokens, and defines the nodes of the tree that `latex` builds from them.

Numbers are read here: thousands marks, repeated decimals, powers of ten. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from fractions import Fraction
from typing import NamedTuple

MAX_EXPONENT = 5000
"""Largest absolute exponent of a number in scientific notation."""


class ParseError(ValueError):
    """The text is not an answer that the grammar covers."""


class Node(NamedTuple):
    """A node of the tree.

    Kinds: number, constant (`pi`, `e`, `i`), infinity, name, text, add, mul, div, neg, pow, root, call (a known
    function), apply (an unknown one), pm, degree, list, tuple, set, interval, builder, relation, union, intersection,
    difference, reals, empty, matrix, row, ratio, congruent, dots.
    """

    kind: str
    parts: tuple[Node, ...] = ()
    text: str = ""
    """Name, operators of a relation, brackets of an interval, separators of a list."""
    number: Fraction = Fraction(0)
    """Value of a number."""
    decimals: int | None = None
    """Decimals of a number that was written as a decimal, less its power of ten; None for other nodes."""


def nodes(node: Node) -> Iterator[Node]:
    """Yield a tree's nodes."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        stack += current.parts


def names(node: Node) -> set[str]:
    """Return the names in a tree, unknown functions included."""
    return {part.text for part in nodes(node) if part.kind in ("name", "text", "apply")}


class Token(NamedTuple):
    """A token: `kind` is number, letter, word, command, sign or end."""

    kind: str
    text: str
    node: Node | None = None
    """The value of a number."""


def word_set(*texts: str) -> frozenset[str]:
    """Return the words in texts with blanks between them."""
    return frozenset(" ".join(texts).split())


FUNCTIONS = word_set(
    "sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh coth sech csch arsinh arcosh",
    "artanh ln log lg exp cis sqrt max min gcd lcm det arg Re Im sgn floor ceil",
)
_ALIASES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "cosec": "csc", "tg": "tan", "ctg": "cot"}
_ALIASES |= {"arctg": "arctan", "arcsinh": "arsinh", "arccosh": "arcosh", "arctanh": "artanh", "sign": "sgn"}
_BARE = sorted(FUNCTIONS - {"arg", "Re", "Im", "det", "lg", "sgn"}, key=len, reverse=True)
_VARIANTS = {"varepsilon": "epsilon", "vartheta": "theta", "varphi": "phi", "varrho": "rho", "varsigma": "sigma"}
_SKIPPED = word_set(
    "left right middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr displaystyle textstyle",
    "scriptstyle limits nolimits quad qquad thinspace enspace angle measuredangle triangle square therefore because",
    ", ; : ! $ mathstrut strut rm bf it hfill",
) | {" "}
_FONTS = word_set("mathrm mathbf mathit mathsf mathtt mathnormal boldsymbol bm pmb operatorname")
_TEXTS = word_set("text textbf textit textrm textsf textnormal mbox hbox")
_SIGNS = {
    "cdot": "*", "times": "*", "ast": "*", "bullet": "*", "div": "/", "pm": "\\pm", "mp": "\\mp",
    "lbrace": "\\{", "rbrace": "\\}", "{": "\\{", "}": "\\}", "lbrack": "[", "rbrack": "]",
    "le": "<=", "leq": "<=", "leqslant": "<=", "ge": ">=", "geq": ">=", "geqslant": ">=", "lt": "<", "gt": ">",
    "ne": "!=", "neq": "!=", "equiv": "\\equiv", "approx": "~", "simeq": "~", "cong": "~", "sim": "~", "in": "\\in",
    "to": "\\to", "rightarrow": "\\to", "Rightarrow": "\\to", "implies": "\\to", "mapsto": "\\to", "iff": "\\to",
    "cup": "\\cup", "bigcup": "\\cup", "cap": "\\cap", "bigcap": "\\cap", "setminus": "\\setminus",
    "backslash": "\\setminus", "lor": "or", "vee": "or", "land": "and", "wedge": "and", "vert": "|", "lvert": "|",
    "rvert": "|", "mid": "|", "Vert": "|", "lVert": "|", "rVert": "|", "|": "|", "colon": ":", "%": "%", "\\": "\\\\",
    "degree": "\\degree", "circ": "\\degree", "prime": "'", "ldots": "...", "dots": "...", "cdots": "...",
    "dotsc": "...", "vdots": "...", "langle": "\\langle", "rangle": "\\rangle",
}  # fmt: skip
_UNICODE = {
    "\N{MINUS SIGN}": "-", "\N{MULTIPLICATION SIGN}": "*", "·": "*", "÷": "/", "≤": "<=", "≥": ">=", "≠": "!=",
    "≈": "~", "∈": "\\in", "\N{UNION}": "\\cup", "∩": "\\cap", "±": "\\pm", "∓": "\\mp", "°": "\\degree",
    "…": "...", "→": "\\to", "\N{PRIME}": "'", "\N{SET MINUS}": "\\setminus",
}  # fmt: skip
_COMMAND = re.compile(r"\\(?:[a-zA-Z]+|.)", re.DOTALL)
_GROUPED = re.compile(r"\d{1,3}(?:\{,\}\d{3})+(?!\d)(?:\.\d+)?|\d{1,3}(?: \d{3})+(?! ?\d)(?:\.\d+)?")
_COMMAS = re.compile(r"\d{1,3}(?:,\d{3})+(?!\d|,\d)(?:\.\d+)?")
_DIGITS = re.compile(r"\d+(?:\.\d+|\.(?!\.))?|\.\d+")
_EXPONENT = re.compile(r"[eE]([-+]?\d+)(?![\w.]|\s*\^)")
_REPEATED = re.compile(
    r"\s*\\(?:overline|bar|dot)\s*(?:\{\s*(\d+)\s*\}|(\d))(?:(\d*)\\dot\s*(?:\{\s*(\d)\s*\}|(\d)))?|\((\d+)\)"
)
_DOTS = re.compile(r"\s*(?:\.{3}|…|\\(?:ldots|dots|cdots)(?![a-zA-Z]))")
_JOINED_WORDS = re.compile(r"([A-Za-z][A-Za-z ]*?)(?:\s*,|\s+(and|or))")
_BARE_LETTERS = re.compile(r"[a-zA-Z]+")


def repeating(whole: str, start: str, period: str) -> Fraction:
    """Return `whole.start` followed by `period` repeated without end."""
    shift = 10 ** len(start)
    return (Fraction(int(whole or "0")) + Fraction(int(start or "0"), shift)) + Fraction(
        int(period), shift * (10 ** len(period) - 1)
    )


def _continued(digits: str) -> tuple[str, str] | None:
    """Return (start, period) of decimals before dots: `1666` is 1 and 6; None if nothing repeats."""
    for length in range(1, len(digits) // 2 + 1):
        period = digits[-length:]
        start = digits
        count = 0
        while start.endswith(period):
            start, count = start[:-length], count + 1
        if count >= 3 or (count >= 2 and (not start or length > 1)):
            return start, period
    return None


class Lexer:
    """Splits a text into tokens."""

    def __init__(self, text: str, compounds: Collection[str], commas: bool) -> None:
        self.text, self.compounds, self.commas = text, compounds, commas
        self.tokens: list[Token] = []
        self.brackets: list[str] = []

    def read(self) -> list[Token]:
        """Return the tokens, with an end token."""
        at = 0
        while at < len(self.text):
            at = self._next(at)
        return [*self.tokens, Token("end", "")]

    def _sign(self, text: str) -> None:
        if text in ("(", "[", "{", "\\{"):
            self.brackets.append(text)
        elif text in (")", "]", "}", "\\}") and self.brackets:
            self.brackets.pop()
        self.tokens.append(Token("sign", text))

    def _next(self, at: int) -> int:
        character = self.text[at]
        if character == "\\":
            return self._command(at)
        if re.match(r"\.?[0-9]", self.text[at : at + 2]):
            return self._number(at)
        if self.text.startswith("...", at):
            self._sign("...")
            return at + 3
        if character.isascii() and character.isalpha():
            return self._letters(at)
        if character in " $~&£€¥\t\n":
            if character == "&":
                self._sign("&")
        elif character in _UNICODE:
            self._sign(_UNICODE[character])
        elif self.text[at : at + 2] in ("<=", ">=", "!=") and not self._is_factorial(at):
            self._sign(self.text[at : at + 2])
            return at + 2
        elif character in "+-*/^_!'|=<>,;:()[]{}%":
            self._sign(character)
        elif character.isalpha():
            self.tokens.append(Token("letter", character))
        else:
            raise ParseError(f"unknown character {character!r}")
        return at + 1

    def _is_factorial(self, at: int) -> bool:
        """Return whether the sign after a digit or a group is a factorial: `5!=120`."""
        return self.text[at] == "!" and bool(re.match(r"[\d)}]", self.text[max(at - 1, 0) : at]))

    def _command(self, at: int) -> int:
        match = _COMMAND.match(self.text, at)
        if match is None:
            raise ParseError("a backslash at the end")
        name, end = match[0][1:], match.end()
        if name in _TEXTS or name in _FONTS:
            return self._font(name, end)
        if match[0] in ("\\begin", "\\end"):
            closing = self.text.find("}", end)
            opening = self.text.find("{", end)
            if opening < 0 or closing < opening:
                raise ParseError(f"\\{name} without an environment")
            self.tokens.append(Token("command", f"\\{name} {self.text[opening + 1 : closing].strip().rstrip('*')}"))
            if match[0] == "\\begin" and self.text[opening + 1 : closing] == "array":
                column = re.compile(r"\s*\{[^{}]*\}").match(self.text, closing + 1)
                return column.end() if column else closing + 1
            return closing + 1
        if name in _SIGNS:
            self._sign(_SIGNS[name])
        elif name in _SKIPPED:
            if name in ("left", "right", "middle") and self.text[end : end + 1] == ".":
                return end + 1
        else:
            self.tokens.append(Token("command", _ALIASES.get(name, _VARIANTS.get(name, name))))
        return end

    def _font(self, name: str, end: int) -> int:
        """Read the content of a font command: a function, a letter, compounds, or an expression."""
        while self.text[end : end + 1] in (" ", "*"):
            end += 1
        if self.text[end : end + 1] != "{":
            return end  # `\mathbf x`: the font has no meaning
        depth, closing = 0, end
        while closing < len(self.text):
            depth += (self.text[closing] == "{") - (self.text[closing] == "}")
            if depth == 0:
                break
            closing += 1
        content = self.text[end + 1 : closing].strip()
        joined = _JOINED_WORDS.fullmatch(content)
        if joined:  # `2\\text{ apples and }3`
            self.tokens.append(Token("word", " ".join(joined[1].split())))
            self._sign("and" if joined[2] != "or" else "or")
            return closing + 1
        word = content.strip(" .,;:")
        if word.lower() in ("or", "and"):
            self._sign(word.lower())
        elif word in FUNCTIONS or word in _ALIASES:
            self.tokens.append(Token("command", _ALIASES.get(word, word)))
        elif len(word) == 1 and word.isalpha():
            self.tokens.append(Token("letter", word))
        elif re.fullmatch(r"[^\W\d_][^\\{}$^=+<>]*", word) and not (name in _FONTS and re.search(r"[\d(]", word)):
            self.tokens.append(Token("word", " ".join(word.split())))
        elif content:
            self._sign("{")
            for token in Lexer(content, self.compounds, self.commas).read()[:-1]:
                self.tokens.append(token)
            self._sign("}")
        return closing + 1

    def _number(self, at: int) -> int:
        """Read a number with thousands marks, a repeated part, or a power of ten."""
        match = _GROUPED.match(self.text, at)
        nested = bool(self.brackets) and self.brackets[-1] != "{"
        if match is None:
            match = _COMMAS.match(self.text, at)
            if match and (nested or not self.commas) and ",0" not in match[0]:
                match = None
        match = match or _DIGITS.match(self.text, at)
        assert match is not None
        whole, point, part = re.sub(r"[{}, ]", "", match[0]).partition(".")
        end = match.end()
        repeated, dots = (_REPEATED.match(self.text, end), _DOTS.match(self.text, end)) if point else (None, None)
        continued = _continued(part) if dots else None
        value = Fraction(f"{whole or 0}.{part or 0}")
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
            power = int(exponent[1])
            if abs(power) > MAX_EXPONENT:
                raise ParseError("an exponent beyond the limit")
            value, end = value * Fraction(10) ** power, exponent.end()
            decimals = None if decimals is None else decimals - power
        text = match[0] if end == match.end() else ""
        self.tokens.append(Token("number", text, Node("number", number=value, decimals=decimals)))
        return end

    def _letters(self, at: int) -> int:
        """Read a run of letters: the compounds of the other answer, known functions, else single letters."""
        match = _BARE_LETTERS.match(self.text, at)
        assert match is not None
        run, start = match[0], 0
        if run.lower() in ("or", "and"):
            self._sign(run.lower())
        elif run in ("pi", "infinity", "inf", "oo"):
            self.tokens.append(Token("command", "pi" if run == "pi" else "infty"))
        elif run in _ALIASES:
            self.tokens.append(Token("command", _ALIASES[run]))
        else:
            while start < len(run):
                word = next((word for word in self.compounds if run.startswith(word, start)), "")
                function = "" if word else next((name for name in _BARE if run.startswith(name, start)), "")
                if word:
                    self.tokens.append(Token("word", word))
                elif function:
                    self.tokens.append(Token("command", function))
                else:
                    self.tokens.append(Token("letter", run[start]))
                start += len(word or function) or 1
        return match.end()
