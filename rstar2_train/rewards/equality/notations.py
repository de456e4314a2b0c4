r"""Rewrites the texts of an answer and the gold answer into one notation, where one of them shows what the other means.

`compare` calls it before it parses: unit vectors, integer parameters, functions of a differential equation. Standard
library only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_DERIVED = re.compile(
    r"([a-zA-Z])(?='|\s*\^\s*\{?\\prime)|\\d?dot\s*\{?\s*([a-zA-Z])|frac\s*\{\s*d(?:\s*\^\s*\{?\d\}?)?\s*([a-zA-Z])"
)
BASE_10 = re.compile(r"\\?log\s*_\s*\{?\s*10(?!\d)|\\lg(?![a-zA-Z])")
COMMON_LOG = re.compile(r"\\log(?![a-zA-Z]|\s*_)")
_DIFFERENTIAL = re.compile(r"(\\[a-zA-Z]+)|d([a-z])(?![a-zA-Z])")
_NO_DIFFERENTIAL = re.compile(r"\\int|frac\s*\{\s*d[^{}]*\}\s*\{\s*d[a-z]\s*\}|d[a-z]\s*/\s*d[a-z]|'")
_LETTERS = "jklmnpqrst"
"""Letters that a text may declare as an integer parameter."""
_INTEGERS = (
    rf"(?P<letter>[{_LETTERS}])\s*\\in\s*\\(?:mathbb|mathbf|Bbb)\s*\{{?\s*(?P<set>[ZN])\s*\}}?"
    r"(?P<part>\s*[\^_]\s*(?:\{[^{}]*\}|[+*\d]))?"
)
_INTEGER_PARAMETER = re.compile(
    r"(?P<body>.*?\S)\s*(?:[,;(]|\\forall|\\(?:text|mbox)\s*\{[^{}]*\}|\s)\s*"
    rf"(?:\\forall\s*|\\(?:text|mbox)\s*\{{[^{{}}]*\}}\s*)?{_INTEGERS}\s*\)?",
    re.DOTALL,
)
_PARAMETER_SET = re.compile(
    rf"(?:[a-z]\s*\\in\s*)?(?:\\\{{|\\lbrace)\s*(?:[a-z]\s*(?::|\|\s|\\mid)\s*)?(?P<body>[^:|]*?\S)\s*(?::|\||\\mid|,)\s*"
    rf"{_INTEGERS}\s*(?:\\\}}|\\rbrace)",
    re.DOTALL,
)
_FONTED = r"\\(?:mathbf|hat|vec|boldsymbol|bm|widehat|overrightarrow)\s*"
_LETTER = r"(?:\\[ij]math|[ijk])(?![a-zA-Z])"
_UNIT_VECTOR = re.compile(
    rf"{_FONTED}(?:\{{\s*{_FONTED}(?:\{{\s*{_LETTER}\s*\}}|{_LETTER})\s*\}}|\{{\s*{_LETTER}\s*\}}|{_LETTER})"
)
_BARE_VECTOR = re.compile(r"(\\[a-zA-Z]+)|(?<![a-zA-Z_])([ijk])(?![a-zA-Z])")
_BOLD = re.compile(r"\\(?:mathbf|boldsymbol|bm)\s*(?:\{\s*([a-zA-Z])\s*\}|([a-zA-Z])(?![a-zA-Z]))")
_ARROW = re.compile(r"\\(?:vec|overrightarrow)(?![a-zA-Z])")
VECTOR = r"\nabla"
"""Name of a unit vector; its subscript is the letter."""


def bare(text: str) -> str:
    """Return a text without spaces, braces and fonts."""
    return re.sub(r"\\(?:text|mathrm|mbox|left|right|[,;:! ])|[\s{}$]", "", text)


def without_arguments(*texts: str) -> list[str]:
    """Return the texts with `y` for `y(t)` when one of them has a derivative of y."""
    letters = {letter for text in texts for match in _DERIVED.finditer(text) for letter in match.groups() if letter}
    result = _with_derivatives(texts, letters)
    for letter in letters:
        order = re.compile(rf"(\\[a-zA-Z]+)|({letter})\s*\^\s*\{{\s*\(\s*([1-4])\s*\)\s*\}}")
        result = [order.sub(lambda match: match[1] or match[2] + "'" * int(match[3]), text) for text in result]
        argument = re.compile(rf"(\\[a-zA-Z]+)|({letter})\s*\(\s*[a-zA-Z]\s*\)")
        result = [argument.sub(lambda match: match[1] or f"{match[2]} ", text) for text in result]
    return result


def _with_derivatives(texts: Sequence[str], unknown: set[str]) -> list[str]:
    """Return the texts with `yy'=x` for `y dy=x dx` when another text has a derivative of y."""
    result = []
    for text in texts:
        letters = {match[2] for match in _DIFFERENTIAL.finditer(text) if match[2]}
        derived = letters & unknown
        if "=" in text and len(letters) == 2 and len(derived) == 1 and not _NO_DIFFERENTIAL.search(text):
            text = _divided(text, derived.pop())
        result.append(text)
    return result


def _divided(text: str, letter: str) -> str:
    """Return an equation in differentials divided by the one of the independent variable."""
    return _DIFFERENTIAL.sub(lambda match: match[1] or (f" {letter}' " if match[2] == letter else " {1} "), text)


def with_one_parameter(answer: str, gold: str) -> tuple[str, str, tuple[str, str]]:
    r"""Return the texts without `, k\in\mathbb{Z}`, with the gold answer's letter if one declares it.

    The last value has the set that each text declares: `Z`, `N` (a part of the integers), or empty.
    """
    texts = (answer, gold)
    matches = [_PARAMETER_SET.fullmatch(text) or _INTEGER_PARAMETER.fullmatch(text) for text in texts]
    if not any(matches):
        return answer, gold, ("", "")
    answer, gold = (match["body"] if match else text for match, text in zip(matches, texts, strict=True))
    first, second = ("" if match is None else "N" if match["part"] else match["set"] for match in matches)
    used = [set(re.sub(r"\\[a-zA-Z]+", "", text)).intersection(_LETTERS) for text in (answer, gold)]
    if len(used[0]) == len(used[1]) == 1:
        (given,), (known,) = used
        answer = re.sub(rf"(\\[a-zA-Z]+)|{given}", lambda match: match[1] or known, answer)
    return answer, gold, (first, second)


def with_unit_vectors(answer: str, gold: str) -> tuple[str, str]:
    r"""Return the texts with names for unit vectors (`\mathbf{i}`, `\hat{j}`) if one has them; then `i` is one."""
    if not any(_UNIT_VECTOR.search(text) for text in (answer, gold)):
        arrows = [bool(_ARROW.search(text)) for text in (answer, gold)]
        if arrows[0] != arrows[1]:  # `\vec{a}` and `\mathbf{a}`
            answer, gold = (_BOLD.sub(r"\\vec{\1\2}", text) for text in (answer, gold))
        return answer, gold
    answer, gold = (
        _UNIT_VECTOR.sub(lambda match: " " + next(letter for letter in reversed(match[0]) if letter in "ijk"), text)
        for text in (answer, gold)
    )
    first, second = (
        _BARE_VECTOR.sub(lambda match: match[1] or f" {VECTOR}_{match[2]} ", text) for text in (answer, gold)
    )
    return first, second
