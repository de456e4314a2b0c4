r"""Prepares the tokens of an answer for a reading: labels of parts, differentials, unit vectors, unknown functions.

`verifier` calls it before the tokens are parsed. Standard library only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from .tokens import Token
from .tree import integer


def unknown_functions(tokens: list[Token]) -> Iterator[str]:
    """Yield the letters of unknown functions, of which an answer has a derivative."""
    for at, token in enumerate(tokens):
        following = [other.text for other in tokens[at + 1 : at + 6]]
        if token.kind == "letter":
            if following[:1] == ["'"] or following[:2] == ["^", "'"] or following[:3] == ["^", "{", "'"]:
                yield token.text
            fraction = at > 1 and tokens[at - 1].text == "{" and tokens[at - 2].text == "frac"
            if token.text == "d" and fraction:
                name = following[0] if following[:1] != ["^"] else following[4] if following[1] == "{" else following[2]
                below = "".join(other.text for other in tokens[at + 1 : at + 12])
                if name.isalpha() and len(name) == 1 and "}{d" in below:
                    yield name


def has_unit_vector(tokens: list[Token]) -> bool:
    for at, token in enumerate(tokens):
        if token.kind == "command" and token.text in ("vec", "hat"):
            following = [other.text for other in tokens[at + 1 : at + 5] if other.text not in ("{", "vec")]
            if following and following[0] in ("i", "j", "k", "imath", "jmath"):
                return True
    return False


def has_components(known: list[Token], answer: list[Token]) -> bool:
    """Return whether the letters of an answer can be the unit vectors of a known tuple of numbers."""
    letters = [{token.text for token in side if token.kind == "letter"} for side in (known, answer)]
    return (
        not letters[0] and "j" in letters[1] <= {"i", "j", "k"} and any(token.text in (",", "\\\\") for token in known)
    )


def differentials(tokens: list[Token], unknown: Collection[str]) -> list[Token]:
    """Return `y y' = x` for `y dy = x dx`, if y is an unknown function and no fraction has the differentials."""
    places = [
        at
        for at, token in enumerate(tokens[:-1])
        if token.kind == "letter" and token.text == "d" and tokens[at + 1].kind == "letter" and not tokens[at + 1].gap
    ]
    letters = {tokens[at + 1].text for at in places}
    known = letters & set(unknown)
    fractions = any(token.text in ("int", "partial") for token in tokens) or bool(
        set(unknown_functions(tokens)) & known
    )
    if len(letters) != 2 or len(known) != 1 or fractions or not any(token.text == "=" for token in tokens):
        return tokens
    (function,) = known
    result: list[Token] = []
    for at, token in enumerate(tokens):
        if at in places and tokens[at + 1].text == function:
            result += [Token("letter", function, 1), Token("sign", "'")]
        elif at in places:
            result += [Token("sign", "("), Token("number", "1", 0, integer(1)), Token("sign", ")")]
        elif at - 1 not in places:
            result.append(token)
    return result


_PART_MARKS = (("a", "b", "c", "d", "e"), ("i", "ii", "iii", "iv", "v"), ("1", "2", "3", "4", "5"))


def without_part_labels(tokens: list[Token]) -> list[Token]:
    """Return a list for parts with letters: `(a) 5 (b) 10`, `a) 3, b) 7`."""
    marks_read, at = 0, 0
    result: list[Token] = []
    while at < len(tokens):
        length, mark = _part_mark(tokens, at)
        if mark and marks_read < 5 and any(marks[marks_read] == mark for marks in _PART_MARKS[:2]):
            if marks_read and result and result[-1].text not in (",", ";", "and"):
                result.append(Token("sign", ",", 1))
            marks_read += 1
            at += length
            continue
        result.append(tokens[at])
        at += 1
    starts = _part_mark(tokens, 0)[0] > 0
    if marks_read < 2 or not starts:
        return tokens
    return [Token("sign", "("), *result[:-1], Token("sign", ")"), result[-1]]  # the order counts


def _part_mark(tokens: list[Token], at: int) -> tuple[int, str]:
    text, end = "", at + (tokens[at].text == "(")
    while (
        end < len(tokens) and (tokens[end].kind in ("letter", "word")) and len(text) < 3 and tokens[end].text.islower()
    ):
        text += tokens[end].text
        end += 1
    if not text or end >= len(tokens) or tokens[end].text != ")":
        return 0, ""
    return end + 1 - at, text


def after_label(tokens: list[Token]) -> list[Token] | None:
    """Return the tokens after the last `=` (else after `~`) outside of brackets, if a label is before it."""
    depth, at = 0, -1
    for index, token in enumerate(tokens):
        if token.kind != "sign":
            if token.text in ("not", "wrong", "false", "no", "neg"):
                return None
            continue
        depth += (token.text in ("(", "[", "{", "\\{")) - (token.text in (")", "]", "}", "\\}"))
        if depth == 0 and (token.text == "=" or (token.text == "~" and at < 0)):
            at = index
        elif depth == 0 and token.text in (",", ";", "<", ">", "<=", ">=", "!=", "\\in", "\\notin", "and", "or"):
            return None
    if at < 1 or tokens[0].kind == "number":
        return None
    return tokens[at + 1 :]
