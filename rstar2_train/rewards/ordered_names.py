r"""Reads notations whose letters have an order as one name: `\angle ABC`, `\vec a\times\vec b`, `f\circ g`, `P^{-1}AP`.

The parser would take them for products, whose factors commute. `paired_forms` calls `with_names` for both answers, and
`verify.compare` compares products of matrices by `matrix_product`. Pure; standard library only.
"""

from __future__ import annotations

import re

_VECTOR = r"\\(?:vec|mathbf|boldsymbol|bm|overrightarrow)\s*(?:\{\s*([a-zA-Z])\s*\}|([a-zA-Z]))"
_VECTORS = re.compile(rf"{_VECTOR}\s*\\(times|cdot)(?![a-zA-Z])\s*{_VECTOR}")
_FIELD = re.compile(rf"(?:\\vec\s*\{{?\s*)?\\nabla\s*\}}?\s*\\(times|cdot)(?![a-zA-Z])\s*{_VECTOR}")
_COMPOSED = re.compile(r"(?<![\^{a-zA-Z\\])([a-zA-Z])\s*\\circ(?![a-zA-Z])\s*([a-zA-Z])(?![a-zA-Z])")
_ANGLE = re.compile(r"\\angle\s*\{?\s*([A-Z]{3}|[A-Z])(?![A-Z])\s*\}?")
_TRIANGLES = re.compile(r"\\triangle\s*([A-Z]{3})\s*\\(sim|cong)(?![a-zA-Z])\s*\\triangle\s*([A-Z]{3})")
_FACTOR = re.compile(r"(?:([A-Z])|\(([A-Z]{2,6})\))(?:\^(?:\{(-1|T|\\top)\}|(T)))?")


def with_names(answer: str, gold: str) -> tuple[str, str]:
    """Return both answers with one name for each angle, product of vectors, composition and pair of triangles."""
    first, second = _with_names(answer), _with_names(gold)
    sizes = {len(match[1]) for text in (answer, gold) for match in _ANGLE.finditer(text)}
    if 3 in sizes:
        named = _angle if sizes == {3} else _vertex
        first, second = (_ANGLE.sub(named, text) for text in (first, second))
    return first, second


def _with_names(text: str) -> str:
    if "\\" not in text:
        return text
    text = _VECTORS.sub(lambda match: _product(match[3], match[1] or match[2], match[4] or match[5]), text)
    text = _FIELD.sub(lambda match: rf"\operatorname{{nabla{match[1]}{match[2] or match[3]}}}", text)
    text = _COMPOSED.sub(r"\\operatorname{composed\1\2}", text)
    return _TRIANGLES.sub(_triangles, text)


def _product(kind: str, first: str, second: str) -> str:
    letters = f"{first}{second}" if kind == "times" else "".join(sorted((first, second)))
    return rf"\operatorname{{{kind}{letters}}}"


def _angle(match: re.Match[str]) -> str:
    """Return the name of an angle; its first and last point have no order."""
    first, vertex, last = tuple(match[1])
    return rf"\operatorname{{angle{min(first, last)}{vertex}{max(first, last)}}}"


def _vertex(match: re.Match[str]) -> str:
    r"""Return `\angle C` for `\angle ACB`."""
    return rf"\angle {match[1][len(match[1]) // 2]}"


def _triangles(match: re.Match[str]) -> str:
    """Return the name of two similar or congruent triangles: the pairs of their points, in any order."""
    pairs = min(
        sorted(map("".join, zip(*sides, strict=True))) for sides in ((match[1], match[3]), (match[3], match[1]))
    )
    return rf"\operatorname{{{match[2]}{''.join(pairs)}}}"


def matrix_product(text: str) -> str | None:
    r"""Return `B^-1 A^-1` for `(AB)^{-1}`; None for other texts than products of capital letters."""
    plain = re.sub(r"\\(?:mathbf|boldsymbol|bm)\s*(?:\{([A-Z])\}|([A-Z]))|\s|\\[,;:! ]", r"\1\2", text)
    factors = list(_FACTOR.finditer(plain))
    if "".join(factor[0] for factor in factors) != plain or len(factors) > 12:
        return None
    written = []
    for factor in factors:
        power = (factor[3] or factor[4] or "").replace("\\top", "T")
        letters = factor[1] or factor[2]
        written += [f"{letter}^{power}" if power else letter for letter in (letters[::-1] if power else letters)]
    return " ".join(written)
