r"""Splits the text of a problem into words that do not depend on its typesetting.

`decontaminate.py` and `near_duplicates.py` compare texts by these words. Letters are lower case, Unicode is normalised
(NFKC), and numbers are separate from letters. LaTeX layout, punctuation and operators are removed: `$\dfrac{1}{2}x$`
and `\frac 1 2 x` both become `frac 1 2 x`. Pure.
"""

from __future__ import annotations

import re
import unicodedata

_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_IDEOGRAPHS}]|\d+|[^\W\d_{_IDEOGRAPHS}]+")
"""A word. Chinese and Japanese have no spaces between words, so each of their characters is a word."""
_LAYOUT = re.compile(r"\\(?:left|right|displaystyle|text|textbf|textit|mathrm|mathbf|operatorname)(?![a-z])")
_FRACTION = re.compile(r"\\[dt]frac(?![a-z])")
_THOUSANDS = re.compile(r"(?<=\d)(?:,|\{,\}|\\,)(?=\d{3}(?!\d))")


def normalized_words(text: str) -> list[str]:
    """Return the words of a text in order. A word is a run of letters, a run of digits, or one ideograph."""
    plain = unicodedata.normalize("NFKC", text).lower()
    plain = _THOUSANDS.sub("", plain)
    if "\\" in plain:
        plain = _FRACTION.sub(r"\\frac", _LAYOUT.sub(" ", plain))
    return _WORD.findall(plain)
