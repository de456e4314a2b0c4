r"""Removes the formatting of a final answer: fonts, spacing, Unicode signs, sizes of brackets, units, a number's base.

Runs between extraction and comparison, for the answer and the gold answer. The result is plain LaTeX for the parser
(`equality`); this module makes no decision and evaluates no expression. `units` has the names of units. Pure; standard
library only. It runs in the caller's process on text of a model, so no pattern may take more than quadratic time;
`verify.compare` bounds the length.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import NamedTuple

from rstar2_train.rewards.declarations import REWRITES as DECLARATIONS
from rstar2_train.rewards.functions import REWRITES as FUNCTIONS
from rstar2_train.rewards.phrases import REWRITES as PHRASES
from rstar2_train.rewards.units import FONT, NAME, canonical_unit, in_one_unit, is_same_unit, mixed_amount


class NormalizedAnswer(NamedTuple):
    """An answer without its formatting."""

    value: str
    """LaTeX; for a number with a base, its digits."""
    unit: str = ""
    """A unit of UNITS with its power, or `%`; empty without a unit, or with an unknown one (`apples`)."""
    base: str = ""
    """Base of a number, such as `8` in `52_8`."""


CACHED_TEXTS = 512
"""Texts whose result is kept: all rollouts of a problem have the same gold answer."""
_GREEK = (
    *("alpha", "beta", "gamma", "delta", "varepsilon", "zeta", "eta", "theta", "lambda", "mu", "nu", "xi", "rho"),
    *(
        "sigma",
        "tau",
        "phi",
        "chi",
        "psi",
        "omega",
        "Gamma",
        "Delta",
        "Theta",
        "Lambda",
        "Sigma",
        "Phi",
        "Psi",
        "Omega",
    ),
)
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
        "≡": r"\equiv ",
        "∅": r"\emptyset ",
        **{letter: rf"\{name} " for letter, name in zip("αβγδεζηθλμνξρστφχψωΓΔΘΛΣΦΨΩ", _GREEK, strict=True)},
        **{unicodedata.lookup(f"DOUBLE-STRUCK CAPITAL {letter}"): rf"\mathbb{{{letter}}}" for letter in "RZNQC"},
        "“": '"',
        "”": '"',
    }
)
_POWER = r"(?:\s*\^\s*\{?[23]\}?)?"
_NAMED_UNIT = rf"(?:(?:sq(?:uare)?|cu(?:bic)?)\.?\s+)?(?:{NAME}){_POWER}"
_UNIT_TEXT = (
    r"\\(?:text(?:rm|normal|it|bf)?|mbox|mathrm)\s*\{(?:[^{}\d]|\^\s*(?:-?\d|\{\s*-?\d\s*\}))*\}(?:\s*\^\s*\{?-?\d\}?)?"
)
"""A font command without digits other than a power."""
_BETWEEN = r"(?:\\cdot(?![a-zA-Z])|/|[\s~])*"

_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        *FUNCTIONS,
        (r"√\s*(\d+|[a-zA-Z])", r"\\sqrt{\1}"),
        (r"√", r"\\sqrt"),
        (r",?\{,\}(?:\\!)?|,(?:\\!\s*)+", "{,}"),
        (r"(?<=\d)\\,(?=\d{3}(?!\d))", "{,}"),
        (r"(?<!\d)\{,\}|\{,\}(?!\d{3}(?!\d))", ","),
        (r"\\!|\\displaystyle|\\textstyle|\\limits", ""),
        (r"\\(?:left|right|middle|[bB]igg?[lrm]?)(?![a-zA-Z])\s*\.?", ""),
        (r"(?<!\\)\\(?:[,;: ]|q?quad(?![a-zA-Z])|thinspace|enspace)|~", " "),
        (r"\{\s*\\(?:rm|bf|it)\s+([^{}]*)\}", r"\\text{\1}"),
        (r"\\(?:tiny|small|large|Large|LARGE|huge|Huge)(?![a-zA-Z])|\\(?:text)?color\s*\{[^{}]*\}", ""),
        (r"\\underline\s*\{([^{}]*)\}", r"\1"),
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
        (FONT + r"\{\s*(\^\\circ)\s*\}", r"\1 "),
        (r"(?<![\w.}])(\d+)\s+(\d+)/(\d+)", r"\1\\frac{\2}{\3}"),
        (r"(?<![\\a-zA-Z])pi(?![a-zA-Z])", r"\\pi "),
        (r"(?<=\d)\s*(?:\\(?:text|mbox)\s*\{\s*(?:to|:)\s*\}|to)\s*(?=\d)", ":"),
        (r"(?<=\d)\s*\\text\s*\{\s*(thousand|million|billion|trillion)\s+([a-z ]+)\}", r"\\text{\1}\\text{ \2}"),
        *[
            (rf"(?<=\d)\s*(?:{FONT}\{{\s*{name}\s*\}}|{name}(?![a-z]))", rf"\\cdot 10^{{{power}}} ")
            for name, power in (
                ("hundred", 2),
                ("lakh", 5),
                ("crore", 7),
                ("thousand", 3),
                ("million", 6),
                ("billion", 9),
                ("trillion", 12),
            )
        ],
        (FONT + r"\{\s*(\d[\d.,:]*)\s+([a-zA-Z][a-zA-Z ./]*)\}", r"\1\\text{ \2}"),
        (r"\\text\s*\{\s*([A-Za-z](?:\s*,\s*(?:and\s+)?[A-Za-z]|\s+and\s+[A-Za-z])+)\s*\}", r"\1"),
        (r"\\(?:text|mbox)\s*\{\s*(cis|sin|cos|tan|cot|ln|log|exp)\s*\}", r"\\operatorname{\1}"),
        (r"\{:\}", ":"),
        (r"\(\s*(?:\\b?mod|" + FONT + r"\{\s*mod\s*\}|mod)(?![a-zA-Z])\s*([^()]*)\)", r"\\pmod{\1}"),
        (r"\(\s*" + FONT + r"\{\s*mod\s+(\d+)\s*\}\s*\)", r"\\pmod{\1}"),
        *[
            (rf"(?<=\d)\s*{ordinal}", "")
            for ordinal in (
                rf"\^\s*\{{\s*{FONT}\{{\s*(?:st|nd|rd|th)\s*\}}\s*\}}",
                rf"\^?\s*{FONT}\{{\s*(?:st|nd|rd|th)\s*\}}",
                r"\^\s*\{\s*(?:st|nd|rd|th)\s*\}",
                r"(?:st|nd|rd|th)(?![a-zA-Z])",
            )
        ],
        (r"\\overline\s*\{\s*([A-Z])\s*([A-Z])\s*\}", r"\1\2"),
        (r"\\bar\s*\{\s*([A-Z])\s*([A-Z])\s*\}", r"\1\2"),
        (
            r"(?<=\d)\s*\^\s*(?:\{\s*" + FONT + r"\{\s*o\s*\}\s*\}|" + FONT + r"\{\s*o\s*\}|\{o\}|o(?![a-zA-Z]))",
            r"^\\circ ",
        ),
        (r"\^\\circ\s*(?:" + FONT + r"\{\s*C\s*\}|C(?![a-zA-Z]))", r"\\text{ celsius}"),
        (r"\^\\circ\s*(?:" + FONT + r"\{\s*F\s*\}|F(?![a-zA-Z]))", r"\\text{ fahrenheit}"),
        (r"((?<=:\d\d)\s*[AaPp]\.?\s?[Mm]|(?<=\d)\s*[AaPp]\.\s?[Mm])(?![\w}])\.?", r"\\text{\1}"),
        (r"\\textdollar\s*", r"\\$"),
        (
            rf"(?<=[\d}}])\s*(?:{FONT}\{{\s*([kM]?)\s*\}})?\s*(?:{FONT}\{{\s*)?([kM]?)\s*\\Omega\s*\}}?\s*$",
            r"\\text{ \1\2ohm}",
        ),
        (rf"(?<=[\d}}])\s*(?:{FONT}\{{\s*\\mu\s*|\\mu\s*{FONT}\{{\s*)([a-zA-Z])\s*\}}\s*$", r"\\text{ u\1}"),
        (r"(?<=\d)\s*\\deg(?![a-zA-Z])", r"^\\circ "),
        (r"(?<=\d)\s+[xX]\s+10\s*\^", r"\\times 10^"),
        (r"\\mathcal\s*\{\s*O\s*\}", "O"),
        (r"(?<=\d)\s*¢", r"\\text{ cents}"),
        (r"(?<=[\w}])\s*\\cup\s*(?=[a-zA-Z]\s*(?:[<>]|\\[lg]e(?![a-zA-Z])))", r"\\text{ or }"),
        (FONT + r"\{\s*([,;])\s*(and|or)?\s*\}", r"\1 \2 "),
        (r"(\\mathbb\s*\{?\s*R\s*\}?)\s*-\s*(?=\\\{|\\lbrace)", r"\1\\setminus "),
        (r"\\mathbb\s*\{?\s*R\s*\}?\s*[\^_]\s*(?:\{\s*\+\s*\}|\+)", r"(0,\\infty)"),
        (r"\\mathbb\s*\{?\s*R\s*\}?\s*[\^_]\s*(?:\{\s*-\s*\}|-)", r"(-\\infty,0)"),
        (r"\\mathbb\s*\{?\s*R\s*\}?\s*_\s*\{\s*\\ge\s*0\s*\}", r"[0,\\infty)"),
        (r"\\mathbb\s*\{?\s*R\s*\}?\s*_\s*\{\s*>\s*0\s*\}", r"(0,\\infty)"),
        (r"^\s*<([^<>]*,[^<>]*)>\s*$", r"\\langle \1\\rangle "),
        (r"(?:(?<![\w})\]])|\{\s*\}\s*)[_^]\s*\{?(\d+|[a-z])\}?\s*C\s*_\s*\{?(\d+|[a-z])\}?", r"\\binom{\1}{\2}"),
        (r"(?<![\w.])(\d+)C(\d+)(?!\w)", r"\\binom{\1}{\2}"),
        (r"(?:(?<![\w})\]])|\{\s*\}\s*)[_^]\s*\{?(\d+)\}?\s*P\s*_\s*\{?(\d+)\}?", r"P(\1,\2)"),
        (r"\^\s*(?:\{\s*\\top\s*\}|\\top(?![a-zA-Z]))", "^T"),
        *DECLARATIONS,
        (FONT + r"\{\s*C\s*\}(?=\s*[_^])", "C"),
        (r"(?<![\\\w])C_\{?([4-9]|\d\d+)\}?\^\{?(\d+)\}?", r"\\binom{\1}{\2}"),
        (r"^\s*([A-J])\)\s*$", r"\1"),
        (r"^\s*(?:\{\s*\})?\^\{?(\d+)\}?/_\{?(\d+)\}?", r"\\frac{\1}{\2}"),
        (r"(?<!\\)\\\s*$", ""),
        *PHRASES,
        (
            r"^\s*\\text\s*\{\s*[Aa]ll(?: real| positive)?(?: numbers| integers)?\s*\}\s*"
            r"(?=[a-z]\s*(?:[<>]|\\[lg]e(?![a-zA-Z])))",
            "",
        ),
        (r"^\s*\\math(?:bf|rm)\s*\{\s*([RZ])\s*\}\s*$", r"\\mathbb{\1}"),
        (r"\+\s*\\text\s*\{\s*(?:an?\s)?(?:arbitrary\s)?const(?:ant|\.)?\s*\}\s*$", "+C"),
        (r"(\\(?:zeta|Gamma|varphi|phi))\s*\{\s*(\([^{}()]*\))\s*\}", r"\1\2"),
        (r"(?<!\d)\.(?=\s*\\(?:overline|bar|dot)(?![a-zA-Z]))", "0."),
        (r"(?<=[\d}])\s*=\s*(\d[\d.]*)\s*\\?%\s*$", r"=\\frac{\1}{100}"),
        (r"(?<![\d:.])(\d{1,2})(?=\s*(?:\\text\s*\{\s*)?[AaPp]\.?\s*[Mm]\.?\s*\}?\.?\s*$)", r"\1:00"),
        (
            r"\\\{\s*\\begin\{(array|aligned)\}(?:\{[^{}]*\})?((?:(?!\\end).)*)\\end\{\1\}(?!\s*\\\})",
            r"\\begin{cases}\2\\end{cases}",
        ),
        (r"\s\(\s*(?:" + FONT + r"\{\s*)?(?:\\approx|approx(?:imately|\.)?)[^()]*\)\s*$", ""),
        (r"^([a-z])_\{?\s*1\s*,\s*2\s*\}?\s*=", r"\1="),
        (r"^([a-zA-Z])\s*(?::|\\colon)\s*([a-z])\s*\\mapsto", r"\1(\2)="),
        (r"\\mathbb\s*\{?\s*Z\s*\}?\s*/\s*\{?\s*(\d+)\s*\}?\s*\\mathbb\s*\{?\s*Z\s*\}?", r"\\mathbb{Z}_{\1}"),
        (r"\\oplus\s*(?=\\mathbb)", r"\\times "),
        (r"^\\(?:vec|mathbf|overrightarrow|boldsymbol)\s*(?:\{\s*r\s*\}|r)\s*(?:\(\s*[a-z]\s*\)\s*)?=", ""),
        (r"(?<=\S)\s*\(\s*=([^()=]*)\)\s*$", r"=\1"),
        (r"(?<=[)\]])\s*U\s*(?=[(\[])", r"\\cup "),
        (r"\\bigcup(?![a-zA-Z])", r"\\cup "),
        (r"\\varnothing(?![a-zA-Z])", r"\\emptyset "),
        (r"(\\\\)\s*\[[\d.]+\s*[a-z]{2}\]", r"\1 "),
        (r"\\(begin|end)\{(?:B|small)matrix\}", r"\\\1{pmatrix}"),
        (FONT + r"\{([-+\d.,\s]+)\}", r"\1"),
    ]
]
_CONDITION = re.compile(r",?\s*\\text\s*\{\s*,?\s*(?:if|for|when)\s*\}")
_NEW_LINE = re.compile(r"\s*\\\\\s*(?=\S)")
_WRAPPED = re.compile(
    r"\$+(?P<a>[^$]*)\$+|\\\((?P<b>(?:(?!\\\)).)*)\\\)|\\\[(?P<c>(?:(?!\\\]).)*)\\\]|\*\*(?P<d>[^*]*)\*\*"
    r"|\{(?P<h>(?:(?!\\choose|\\over)[^{}])*)\}|\"(?P<e>[^\"]*)\"|"
    + FONT
    + r"\{(?P<f>[^{}]*\d[^{}]*)\}|\\fbox\s*\{(?P<g>[^{}]*)\}",
    re.DOTALL,
)
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
_BASE_NAMES |= {"bin": "2", "oct": "8", "dec": "10", "hex": "16"}
_BASE = re.compile(rf"(?:[a-zA-Z]=)?(\d[0-9A-Z]*)(?:_(?:base)?|(?:in)?base|in(?=[bdhot]))(\d+|{'|'.join(_BASE_NAMES)})")
_LAST_TEXT = re.compile(rf"(.*\S)\s*({_UNIT_TEXT})", re.DOTALL)
_COMPOUND = re.compile(
    rf"(.*[\d}})\]])((?:{_BETWEEN}{_UNIT_TEXT}){{2,9}}"
    rf"|\s*\\frac\{{\s*{_UNIT_TEXT}\s*\}}\s*\{{\s*{_UNIT_TEXT}(?:{_BETWEEN}{_UNIT_TEXT})*\s*\}})",
    re.DOTALL,
)
"""A value with a product or a quotient of units."""
_JOINED = re.compile(FONT + r"\{\s*(?:or|and|not|to|if|plus|minus)\s*\}")
_UNFINISHED = re.compile(r"(?:or|and|[,_^=+\-*/<>(]|\\(?:cdot|times|div|pm|mp|le|ge|ne|in|sim|approx|to))\s*$")
"""The start of an expression that continues, so that the words after it are not a unit."""
_SYMBOL = re.compile(r"\\[a-z]+\s*\{[A-Z][a-z]?\}(?<!\{[JNWVAKT]\})(?<!\{Pa\})(?<!\{Hz\})")
"""Part of a chemical formula: `\\text{O}`. The symbol of a unit is none."""
_SCIENTIFIC = re.compile(r"[-+]?[\d.,]+(?:\s*\\(?:times|cdot)\s*10\s*\^\s*\{?\s*-?\d+\s*\}?)?")
_JOINS = re.compile(rf"(?:{FONT}\{{)?\s*(?:or|and|not|to|if|plus|minus|is|are|even|odd|only)\b", re.IGNORECASE)
_LAST_NAME = re.compile(
    rf"(.*(?:[\d}})]|\\pi\s))\s*({_NAMED_UNIT}(?:\s*(?:/|per(?![a-z]))\s*(?:[hs]|{_NAMED_UNIT}))?)",
    re.DOTALL | re.IGNORECASE,
)
_RATE = re.compile(r"([-+]?[\d.,]*\d)\s+([a-zA-Z]{1,3}(?:\s*\^\s*\{?\d\}?)?/[a-zA-Z]{1,4}(?:\s*\^\s*\{?\d\}?)?)")
_COUNTED = re.compile(
    r"((?:[a-zA-Z]\s*=\s*)?[-+]?\d[\d.,]*(?:/\d+)?)\s+([a-zA-Z]{3,}(?:\s+[a-zA-Z]+){0,4}(?:\s*\^\s*\{?[23]\}?)?)"
)
"""A number and the counted things: `18 eggs`."""
_NO_UNIT = re.compile(
    r"\b(?:sin|cos|tan|cot|sec|csc|ln|log|exp|sqrt|mod|pmod|base|min|max|gcd|lcm|inf|infinity|pi)\b", re.IGNORECASE
)
_ANGLE = re.compile(r"(?:cis|sin|cos|tan|cot|sec|csc)(?![a-zA-Z])")
_MONEY = re.compile(r"(?:\\?\$|USD|" + FONT + r"\{\s*USD\s*\})\s*(.*\d)|(.*\d)\s*\\?\$", re.DOTALL)
_BARE_UNIT = re.compile(
    r"(.*[\d}])\s*((?:\\frac\s*\{\s*|\\mu\s+|/\s*)?[^\W\d_](?:[a-zA-Z/*\s^{}()-]|\\cdot\s|(?<=[\^{-])\d)*)", re.DOTALL
)
_CURRENCIES = {"€": "euro", "£": "lb", "¥": "yen", "₹": "rupee"}


@functools.lru_cache(maxsize=CACHED_TEXTS)
def normalize(text: str) -> NormalizedAnswer:
    """Return an answer, or a gold answer, without its formatting."""
    value = plain_latex(text)
    flat = re.sub(FONT + r"|(?<=\d)\{,\}|[{}()\s]", "", value)
    based = _BASE.fullmatch(flat)
    if based and _is_numeral(based[1], _BASE_NAMES.get(based[2], based[2])):
        return NormalizedAnswer(based[1].lstrip("0") or "0", base=_BASE_NAMES.get(based[2], based[2]))
    value, unit = mixed_amount(value) or _without_unit(value)
    return NormalizedAnswer(_WRAPPED.sub(_inside, value) if _WRAPPED.fullmatch(value) else value, unit)


def normalized_pair(answer: str, gold: str) -> tuple[NormalizedAnswer, NormalizedAnswer]:
    r"""Return both answers without their formatting; `5 m` has a unit if the other one is `5\text{ m}`."""
    first, second = normalize(answer), normalize(gold)
    first, second = _with_bare_unit(first, second.unit), _with_bare_unit(second, first.unit)
    return _in_unit_of(first, second), _in_unit_of(second, first)


def _in_unit_of(side: NormalizedAnswer, other: NormalizedAnswer) -> NormalizedAnswer:
    """Return `3 h 20 min` in hours or in minutes if the other side is."""
    value = in_one_unit(side.value, side.unit, other.unit)
    return NormalizedAnswer(value, other.unit) if value else side


def _with_bare_unit(side: NormalizedAnswer, unit: str) -> NormalizedAnswer:
    """Return the side with the unit of the other one, if its last letters are that unit."""
    match = _BARE_UNIT.fullmatch(side.value)
    if side.unit or side.base or not unit or match is None or not is_same_unit(canonical_unit(match[2]), unit):
        return side
    return NormalizedAnswer(match[1], unit)


def _is_numeral(digits: str, base: str) -> bool:
    """Return whether letters among the digits are digits of the base: `3A` of 12, but not `6P` of 4."""
    return digits.isdigit() or all(int(digit, 36) < int(base[:3]) for digit in digits)


@functools.lru_cache(maxsize=CACHED_TEXTS)
def plain_latex(text: str) -> str:
    """Return the text with signs as LaTeX and spacing as blanks, without a wrapper around the whole."""
    text = " ".join(text.split())
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+", lambda match: f"^{{{match[0].translate(_SUPERSCRIPTS)}}}", text)
    text = re.sub(r"[¼-¾⅐-⅞]", _vulgar_fraction, text)
    text = unicodedata.normalize("NFKC", text.translate(_SIGNS))
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    if "\\begin{cases}" in text:
        text = _CONDITION.sub(" ", text)
    elif "\\begin" not in text:
        text = _NEW_LINE.sub(", ", text)
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
        rate = _RATE.fullmatch(value)
        if money:
            value, last_unit = money[1] or money[2], "dollar"
        elif value[:1] in _CURRENCIES:
            value, last_unit = value[1:], _CURRENCIES[value[0]]
        elif degrees:
            value, last_unit = value.removesuffix("^\\circ"), "degree"
        elif percent:
            value, last_unit = percent[1], "%"
        elif compound:
            value, last_unit = compound[1], canonical_unit(compound[2])
        elif text and not (
            _UNFINISHED.search(text[1])
            or _JOINS.match(text[2])
            or (_SYMBOL.fullmatch(text[2]) and not _SCIENTIFIC.fullmatch(text[1]))
            or (re.fullmatch(r"[a-z]", text[1]) and not canonical_unit(text[2]) and "unit" not in text[2])
        ):
            value, last_unit = text[1], canonical_unit(text[2])
        elif name:
            value, last_unit = name[1], canonical_unit(name[2])
        elif rate and canonical_unit(rate[2]):
            value, last_unit = rate[1], canonical_unit(rate[2])
        elif counted and not _JOINS.match(counted[2]) and not _NO_UNIT.search(counted[2]):
            value, last_unit = counted[1], canonical_unit(counted[2])
        else:
            return value, unit
        value, unit = value.strip(), unit or last_unit
