r"""Reads events of a probability or an expected value: `P(A|B)`, `\Pr[A\cap B]`, `\mathbb{E}[X|Y=1]`.

`commands` calls it at a bracket after the function's name. The result is one name, so that `P(B\cap A)` is
`P(A\cap B)`, and `P(A|B)P(B)` is a product of two names. Standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence

from .tokens import Token

OF_EVENTS = {"P": "P", "Pr": "P", "\\mathbbP": "P", "E": "E", "\\mathbbE": "E"}
"""Functions of events -> the first letter of the name."""
_SIGNS = frozenset(["|", "\\cap", "\\cup", "=", "<", ">", "<=", ">=", "!="])
_CLOSING = {"(": ")", "[": "]", "{": "}", "\\{": "\\}"}


def read_event(tokens: Sequence[Token], at: int) -> tuple[str, int] | None:
    r"""Return the text of an event in brackets and the position after it; None for brackets without an event.

    The operands of one `\cap` or `\cup` are in alphabetical order.
    """
    opening = tokens[at].text
    if opening not in _CLOSING:
        return None
    depth, texts = 0, []
    while tokens[at].kind != "end":
        text = tokens[at].text
        depth += (text in _CLOSING) - (text in _CLOSING.values())
        at += 1
        if depth == 0:
            break
        texts.append(text)
    event = texts[1:]
    if depth or tokens[at - 1].text != _CLOSING[opening] or not _SIGNS.intersection(event) or event.count("|") > 1:
        return None
    return "|".join(_one_order(part) for part in _split(event, "|")), at


def _split(texts: Sequence[str], sign: str) -> list[list[str]]:
    """Return the parts between the signs."""
    parts: list[list[str]] = [[]]
    for text in texts:
        if text == sign:
            parts.append([])
        else:
            parts[-1].append(text)
    return parts


def _one_order(texts: Sequence[str]) -> str:
    """Return the text of an event with the operands of its only operator in alphabetical order."""
    signs = {text for text in texts if text in _SIGNS or text in _CLOSING}
    operator = signs.pop() if signs in ({"\\cap"}, {"\\cup"}) else ""
    operands = sorted("".join(part) for part in _split(texts, operator)) if operator else ["".join(texts)]
    return operator.join(operands)
