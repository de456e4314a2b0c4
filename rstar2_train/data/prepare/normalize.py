r"""Turns the text of a problem into words, the same ones for every way of typesetting it.

Below decontaminate.py and near_duplicates.py, which compare texts by their words. Letters in one case, Unicode in its
plain form, numbers apart from letters; LaTeX layout, punctuation and operators are gone: `$\dfrac{1}{2}x$` and
`\frac 1 2 x` are both `frac 1 2 x`. Pure.
"""

from __future__ import annotations

import re
import unicodedata

_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_IDEOGRAPHS}]|\d+|[^\W\d_{_IDEOGRAPHS}]+")
"""Chinese and Japanese put no spaces between words: there each character counts as one."""
_LAYOUT = re.compile(r"\\(?:left|right|displaystyle|text|textbf|textit|mathrm|mathbf|operatorname)(?![a-z])")
_FRACTION = re.compile(r"\\[dt]frac(?![a-z])")
_THOUSANDS = re.compile(r"(?<=\d)(?:,|\{,\}|\\,)(?=\d{3}(?!\d))")


def normalized_words(text: str) -> list[str]:
    """The words of a text, in order; each is a run of letters, a run of digits, or one ideograph."""
    plain = unicodedata.normalize("NFKC", text).lower()
    plain = _THOUSANDS.sub("", plain)
    if "\\" in plain:
        plain = _FRACTION.sub(r"\\frac", _LAYOUT.sub(" ", plain))
    return _WORD.findall(plain)
