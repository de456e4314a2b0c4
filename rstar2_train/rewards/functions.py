r"""Notations of functions: `\sin x\, e^{-x}`, `\root 3 \of 2`, `\operatorname{cbrt}(2)`, `floor(n/2)`.

`normalize` applies REWRITES before it removes spacing, because a thin space can end the argument of a function. Pure;
standard library only. Each pattern takes linear time.
"""

from __future__ import annotations

_FUNCTION = r"\\(?:(?:arc)?(?:sin|cos|tan)h?|cot|sec|csc|ln|log|exp)(?:\s*\^\s*(?:\d|\{\s*-?\d\s*\}))?"
_GREEK = r"\\(?:theta|phi|varphi|alpha|beta|gamma|psi|varepsilon)"
_VARIABLE = rf"(?:[xtuvyzsr](?![a-zA-Z])|{_GREEK}(?![a-zA-Z]))"
r"""A letter that ends an argument before a thin space. In `\sin\omega\, t` and `\sin n\pi\, x` it continues."""
_BARE = rf"(?:\d+\s*)?(?:\\omega(?![a-zA-Z])\s*|[akmn](?=[xty]\s*\\))?{_VARIABLE}(?:\s*\^\s*(?:\d|\{{\s*\d\s*\}}))?"
_THIN = r"(?<!\\)\\(?:[,;: ]|q?quad(?![a-zA-Z])|thinspace(?![a-zA-Z]))"
_WORD = r"(?:\\(?:text|mbox|mathrm|operatorname\*?)\s*\{{\s*{0}\s*\}}|(?<![a-zA-Z\\]){0})\s*(?=[({{\[])"
_ROOTED = r"(?:(\d+|[a-zA-Z])|(?=[{(\\]))"

REWRITES = [
    (rf"({_FUNCTION})\s*({_BARE})\s*{_THIN}\s*(?=[\w\\(])", r"\1{\2} "),
    (r"\\root\s*(?:\{\s*(\w+)\s*\}|(\w))\s*\\of\s*" + _ROOTED, r"\\sqrt[\1\2]{\3}"),
    (_WORD.format("cbrt"), r"\\sqrt[3]"),
    (r"∛\s*" + _ROOTED, r"\\sqrt[3]{\1}"),
    (r"∜\s*" + _ROOTED, r"\\sqrt[4]{\1}"),
    (r"\\sqrt\[(\w+)\]\{\}", r"\\sqrt[\1]"),
    (_WORD.format("floor"), r"\\operatorname{floor}"),
    (_WORD.format("ceil(?:ing)?"), r"\\operatorname{ceil}"),
]
"""(pattern, replacement), in this order."""
