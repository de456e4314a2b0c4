r"""Removes the formatting of a final answer: fonts, spacing, Unicode signs, sizes of brackets, units, a number's base.

Runs between extraction and comparison, for the answer and the gold answer. The result is plain LaTeX for the parser;
this module makes no decision and evaluates no expression. It also rewrites forms that the parser misreads: math-verify
0.9 reads `2(5)` as 2 + 5, `x<2 or x>3` as two answers, `pi` as p times i, and any last letter as a unit (`2k m`; its
rule for units is therefore not used). Pure; standard library only. It runs in the caller's process on text of a model,
so no pattern may take more than quadratic time; `verify.compare` bounds the length.
"""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple


class NormalizedAnswer(NamedTuple):
    """An answer without its formatting."""

    value: str
    """LaTeX; for a number with a base, its digits."""
    unit: str = ""
    """A unit of UNITS with its power, or `%`; empty without a unit, or with an unknown one (`apples`)."""
    base: str = ""
    """Base of a number, such as `8` in `52_8`."""


UNITS = {
    "mm": "mm millimeter millimetre",
    "cm": "cm centimeter centimetre",
    "m": "m meter metre",
    "km": "km kilometer kilometre",
    "in": "in inch inches",
    "ft": "ft foot feet",
    "yd": "yd yard",
    "mi": "mi mile",
    "g": "g gram",
    "kg": "kg kilogram",
    "lb": "lb pound",
    "l": "l liter litre",
    "s": "s sec second",
    "min": "min minute",
    "h": "h hr hour",
    "day": "day",
    "week": "week",
    "year": "year",
    "mph": "mph",
    "dollar": "dollar usd",
    "cent": "cent",
    "degree": "degree deg",
    "radian": "radian rad",
    "%": "percent pct percentage",
}
"""Unit -> its names without plurals in s. Two answers with units must have the same one."""

_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_SIGNS = str.maketrans(
    {
        "\N{MINUS SIGN}": "-",
        "\N{EN DASH}": "-",
        "\N{HYPHEN}": "-",
        "\N{MULTIPLICATION SIGN}": r"\times ",
        "÷": r"\div ",
        "·": r"\cdot ",
        "⋅": r"\cdot ",
        "±": r"\pm ",
        "π": r"\pi ",
        "∞": r"\infty ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "≠": r"\ne ",
        "\N{UNION}": r"\cup ",
        "∩": r"\cap ",
        "∈": r"\in ",
        "°": r"^\circ ",
        "“": '"',
        "”": '"',
    }
)
_FONT = r"\\(?:text(?:bf|it|rm|normal|sf)?|mbox|math(?:rm|bf|it|sf)|boldsymbol|bm|operatorname)\s*"
_NAMES = {name + end: unit for unit, names in UNITS.items() for name in names.split() for end in ("", "s")}
_NAME = "|".join(sorted((name for name in _NAMES if len(name) > 1), key=len, reverse=True))
_POWER = r"(?:\s*\^\s*\{?([23])\}?)?"
_SQUARED = r"(?:(sq(?:uare)?|cu(?:bic)?)\.?\s+)?"

_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"√\s*(\d+|[a-zA-Z])", r"\\sqrt{\1}"),
        (r"√", r"\\sqrt"),
        (r",?\{,\}(?:\\!)?|,(?:\\!\s*)+", ","),
        (r"(?<=\d)\\,(?=\d{3})", ","),
        (r"\\!|\\displaystyle|\\textstyle|\\limits", ""),
        (r"\\(?:left|right|middle|[bB]igg?[lrm]?)(?![a-zA-Z])\s*\.?", ""),
        (r"(?<!\\)\\(?:[,;: ]|q?quad(?![a-zA-Z])|thinspace|enspace)|~", " "),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\s*(?:\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))|\\degree(?![a-zA-Z]))", r"^\\circ "),
        (r"\\([lg]e)(?:q|qslant)(?![a-zA-Z])", r"\\\1 "),
        (r"(?<=[\w)}])\*\*(\d+)", r"^{\1}"),
        (r"(?<=[\w)}])\*\*(?=[a-zA-Z({])", "^"),
        (r"(?<![\\a-zA-Z])oo(?![a-zA-Z])", r"\\infty "),
        (r"\\mathrm\s*\{([ie])\}", r"\1"),
        (r"<=", r"\\le "),
        (r">=", r"\\ge "),
        (r"(\d\.\d+)[eE]([-+]?\d+)(?!\w)", r"\1\\cdot 10^{\2}"),
        (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (_FONT + r"\{\s*(\^\\circ)\s*\}", r"\1 "),
        (r"(?<![\w.}])(\d+)\s+(\d+)/(\d+)", r"\1\\frac{\2}{\3}"),
        (r"(?<![\\a-zA-Z])pi(?![a-zA-Z])", r"\\pi "),
        (r"(?<=\d)\s*(?:\\(?:text|mbox)\s*\{\s*(?:to|:)\s*\}|to)\s*(?=\d)", ":"),
        *[
            (rf"(?<=\d)\s*(?:{_FONT}\{{\s*{name}\s*\}}|{name}(?![a-z]))", rf"\\cdot 10^{{{power}}} ")
            for name, power in (("thousand", 3), ("million", 6), ("billion", 9), ("trillion", 12))
        ],
        (r"\(\s*\\b?mod(?![a-zA-Z])\s*([^()]*)\)", r"\\pmod{\1}"),
        (r"\\bigcup(?![a-zA-Z])", r"\\cup "),
        (r"\\varnothing(?![a-zA-Z])", r"\\emptyset "),
        (r"(\\\\)\s*\[[\d.]+\s*[a-z]{2}\]", r"\1 "),
        (r"\\(begin|end)\{(?:B|small)matrix\}", r"\\\1{pmatrix}"),
        (_FONT + r"\{([-+\d.,\s]+)\}", r"\1"),
    ]
]
_WRAPPED = re.compile(
    r"\$+(?P<a>[^$]*)\$+|\\\((?P<b>(?:(?!\\\)).)*)\\\)|\\\[(?P<c>(?:(?!\\\]).)*)\\\]|\*\*(?P<d>[^*]*)\*\*"
    r"|\"(?P<e>[^\"]*)\"|" + _FONT + r"\{(?P<f>[^{}]*\d[^{}]*)\}|\\fbox\s*\{(?P<g>[^{}]*)\}",
    re.DOTALL,
)
_SET_BUILDER = re.compile(r"\\\{\s*[a-zA-Z]\s*(?::|\||\\mid|\\vert)(?![a-zA-Z])(.*)\\\}", re.DOTALL)
_NUMERALS = [
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
]
_BASE_NAMES = {name: str(base) for base, name in enumerate(_NUMERALS, start=2)}
_BASE_NAMES |= {"binary": "2", "ternary": "3", "octal": "8", "decimal": "10", "hexadecimal": "16"}
_BASE = re.compile(rf"(?:[a-zA-Z]=)?(\d[0-9A-Z]*)(?:_(?:base)?|base)(\d+|{'|'.join(_BASE_NAMES)})")
_LAST_TEXT = re.compile(r"(.*\S)\s*" + _FONT + r"\{([^{}\d]*?(?:\$?\^\{?[23]\}?\$?)?\s*)\}" + _POWER, re.DOTALL)
_COMPOUND = re.compile(
    rf"(.*[\d}})\]])(?:(?:\\cdot(?![a-zA-Z])|/|[\s~])*{_FONT}\{{\s*[a-zA-Z/ .]+\s*\}}(?:\s*\^\s*\{{?-?\d\}}?)?){{2,9}}"
    rf"|(.*[\d}})\]])[\s~]*{_FONT}\{{\s*[a-zA-Z/ .]+\s*\}}\s*\^\s*\{{?-\d\}}?",
    re.DOTALL,
)
"""A value with a product of units, or a unit with a negative power."""
_JOINED = re.compile(_FONT + r"\{\s*(?:or|and|not|to|if|plus|minus)\s*\}")
_UNFINISHED = re.compile(r"(?:or|and|[,_^=+\-*/<>(]|\\(?:cdot|times|div|pm|mp|le|ge|ne|in|sim|approx|to))\s*$")
"""The start of an expression that continues, so that the words after it are not a unit."""
_JOINS = re.compile(r"\s*(?:or|and|not|to|if|plus|minus)\b", re.IGNORECASE)
_LAST_NAME = re.compile(r"(.*[\d})])\s*" + _SQUARED + rf"({_NAME})" + _POWER, re.DOTALL | re.IGNORECASE)
_COUNTED = re.compile(r"((?:[a-zA-Z]\s*=\s*)?[-+]?\d[\d.,]*(?:/\d+)?)\s+([a-zA-Z]{3,}(?:\s+[a-zA-Z]+){0,4})")
"""A number and the counted things: `18 eggs`."""
_NO_UNIT = re.compile(
    r"\b(?:sin|cos|tan|cot|sec|csc|ln|log|exp|sqrt|mod|pmod|base|min|max|gcd|lcm|inf|infinity|pi)\b", re.IGNORECASE
)
_ANGLE = re.compile(r"\\?(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])")
_UNIT = re.compile(_SQUARED + r"([a-z]+)\.?\s*([23])?")
_MONEY = re.compile(r"(?:\\?\$|USD|" + _FONT + r"\{\s*USD\s*\})\s*(.*\d)|(.*\d)\s*\\?\$", re.DOTALL)
_INTEGER_TIMES = re.compile(r"((?<![\w.^}])\d+|\))\s*(?=\()")
_APART = re.compile(r"((?<![\w^])\d+)\s+(?=\d)")
_TEXT_WORDS = re.compile(r"\\(?:text|mbox)\s*\{(?!\s*(?:and|or)\s*\})[^{}]*[A-Za-z]{2}[^{}]*\}(?!\s*=)")
_OR = re.compile(r"\s*(?:\\text\s*\{\s*or\s*\}|(?<![a-zA-Z\\])or(?![a-zA-Z])|\\lor(?![a-zA-Z]))\s*")
_AND = re.compile(r"\s*(?:\\text\s*\{\s*and\s*\}|(?<![a-zA-Z\\])and(?![a-zA-Z])|\\land(?![a-zA-Z]))\s*")
_LESS = re.compile(r"(<|>|\\[lg]e(?![a-zA-Z]))")
_TURNED = {">": "<", r"\ge": r"\le"}
_ELEMENT = re.compile(r"\s*[a-zA-Z]\s*\\in(?![a-zA-Z])\s*")


def normalize(text: str) -> NormalizedAnswer:
    """Return an answer, or a gold answer, without its formatting."""
    value = _plain_latex(text)
    flat = re.sub(_FONT + r"|[{}()\s]", "", value)
    based = _BASE.fullmatch(flat)
    if based and _is_numeral(based[1], _BASE_NAMES.get(based[2], based[2])):
        return NormalizedAnswer(based[1].lstrip("0") or "0", base=_BASE_NAMES.get(based[2], based[2]))
    value, unit = _without_unit(value)
    value = _rewrite_for_parser(_WRAPPED.sub(_inside, value) if _WRAPPED.fullmatch(value) else value)
    return NormalizedAnswer(value, unit)


def normalized_pair(answer: str, gold: str) -> tuple[NormalizedAnswer, NormalizedAnswer]:
    r"""Return both answers without their formatting; `5 m` has a unit if the other one is `5\text{ m}`."""
    first, second = normalize(answer), normalize(gold)
    return _with_letter_unit(first, second.unit), _with_letter_unit(second, first.unit)


def _with_letter_unit(side: NormalizedAnswer, unit: str) -> NormalizedAnswer:
    letter = unit.rstrip("23")
    if side.unit or side.base or len(letter) != 1 or not letter.isalpha():
        return side
    match = re.fullmatch(rf"(.*\d)\s*{letter}{_POWER}", side.value, re.DOTALL)
    return NormalizedAnswer(match[1], letter + (match[2] or "")) if match else side


def normalize_words(text: str) -> str:
    """Return an answer's words in lower case: `c` for `\\text{(C)}` and `Choice C`, `evelyn` for `\\text{Evelyn.}`."""
    plain = re.sub(_FONT + r"(?=\{)|[{}$*\"]", "", _plain_latex(text)).casefold()
    plain = " ".join(plain.split()).strip(".,:;() ")
    return re.sub(r"^(?:choice|option|answer)\s*\(?(?=[a-z]$)", "", plain)


def is_word_answer(gold: str) -> bool:
    """Return whether a gold answer is words, which are compared as words: letters in `\\text{}`, or a bare word."""
    bare = re.fullmatch(r"(?:[A-Za-z]{4,}|[A-Z][a-z]{2,}|(?i:yes|no))(?: [A-Za-z]{2,})*", gold.strip())
    return bool(bare or re.fullmatch(_FONT + r"\{[^{}\d\\^_=+<>]*[A-Za-z][^{}\d\\^_=+<>]*\}", gold.strip()))


def has_words(value: str) -> bool:
    """Return whether a plain value still has words, as in `\\text{not } 0`; ignores labels before `=`, `and`, `or`."""
    return bool(_TEXT_WORDS.search(value))


def _is_numeral(digits: str, base: str) -> bool:
    """Return whether letters among the digits are digits of the base: `3A` of 12, but not `6P` of 4."""
    return digits.isdigit() or all(int(digit, 36) < int(base[:3]) for digit in digits)


def _plain_latex(text: str) -> str:
    """Return the text with signs as LaTeX and spacing as blanks, without a wrapper around the whole."""
    text = " ".join(text.split())
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+", lambda match: f"^{{{match[0].translate(_SUPERSCRIPTS)}}}", text)
    text = re.sub(r"[¼-¾⅐-⅞]", _vulgar_fraction, text)
    text = unicodedata.normalize("NFKC", text.translate(_SIGNS))
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    before = None
    while before != text:
        before = text
        text = text.strip()
        text = text[:-1] if text.endswith((".", ";")) and not text.endswith("..") else text
        wrapped = _WRAPPED.fullmatch(text)
        text = _inside(wrapped) if wrapped else text
    return text


def _vulgar_fraction(match: re.Match[str]) -> str:
    """Return the LaTeX of a sign such as ¾."""
    top, _, bottom = unicodedata.normalize("NFKC", match[0]).partition("\N{FRACTION SLASH}")
    return rf"\frac{{{top}}}{{{bottom}}}"


def _inside(wrapped: re.Match[str]) -> str:
    return next(content for content in wrapped.groups() if content is not None)


def _without_unit(value: str) -> tuple[str, str]:
    """Return the value, and the last unit at its end, or the currency at its start."""
    unit = ""
    while True:
        money, degrees, percent = (
            _MONEY.fullmatch(value),
            value.endswith("^\\circ") and not _ANGLE.search(value),
            re.fullmatch(r"(.*?)\s*\\?%", value),
        )
        text, name, counted = _LAST_TEXT.fullmatch(value), _LAST_NAME.fullmatch(value), _COUNTED.fullmatch(value)
        compound = _COMPOUND.fullmatch(value)
        if compound and _JOINED.search(value):
            compound = None
        if money:
            value, last_unit = money[1] or money[2], "dollar"
        elif degrees:
            value, last_unit = value.removesuffix("^\\circ"), "degree"
        elif percent:
            value, last_unit = percent[1], "%"
        elif compound:
            value, last_unit = compound[1] or compound[2], ""
        elif text and not _UNFINISHED.search(text[1]) and not _JOINS.match(text[2]):
            value, last_unit = text[1], _unit(f"{text[2]}{text[3] or ''}")
        elif name:
            value, last_unit = name[1], _unit(f"{name[2] or ''} {name[3]}{name[4] or ''}")
        elif counted and not _JOINS.match(counted[2]) and not _NO_UNIT.search(counted[2]):
            value, last_unit = counted[1], ""
        else:
            return value, unit
        value, unit = value.strip(), unit or last_unit


def _unit(written: str) -> str:
    """Return a unit with its power under its name in UNITS; empty for an unknown unit."""
    match = _UNIT.fullmatch(re.sub(r"[${}^]|\\circ", "", written).strip().lower())
    if match is None or match[2] not in _NAMES:
        return ""
    power = {"s": "2", "c": "3"}[match[1][0]] if match[1] else match[3]
    return _NAMES[match[2]] + (power or "")


def _rewrite_for_parser(value: str) -> str:
    """Return the value with the forms that the parser misreads rewritten."""
    builder = _SET_BUILDER.fullmatch(value)
    value = builder[1].strip() if builder else value
    for word, sign in ((_OR, r" \cup "), (_AND, r" \cap ")):
        parts = word.split(value)
        intervals = [_interval(part) for part in parts]
        if len(parts) > 1 and all(intervals) and intervals != [part.strip() for part in parts]:
            return sign.join(str(interval) for interval in intervals)
    return _APART.sub(r"\1,", _INTEGER_TIMES.sub(r"\1\\cdot ", value))


def _interval(text: str) -> str | None:
    """Return `x<2`, `1<x\\le 3` or `x\\in(1,3]` as an interval; None for other forms."""
    text = _ELEMENT.sub("", text.strip(), count=1)
    if re.fullmatch(r"[\[(][^()\[\]]*,[^()\[\]]*[\])]", text):
        return text
    parts = _LESS.split(text)
    if len(parts) > 1 and parts[1] in (">", r"\ge"):
        parts = [_TURNED.get(part, part) for part in reversed(parts)]
    operands, signs = [part.strip() for part in parts[::2]], parts[1::2]
    if len(operands) == 2:  # add the missing bound
        operands, signs = (
            ([r"-\infty", *operands], ["<", *signs])
            if operands[0].isalpha()
            else ([*operands, r"\infty"], [*signs, "<"])
        )
    if len(operands) != 3 or not re.fullmatch("[a-zA-Z]", operands[1]) or not set(signs) <= {"<", r"\le"}:
        return None
    return f"{'(' if signs[0] == '<' else '['}{operands[0]},{operands[2]}{')' if signs[1] == '<' else ']'}"
