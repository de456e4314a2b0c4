r"""Separates what an answer declares from its value: `4k+1, k\in\mathbb{Z}`, `f(x)=2x \text{ for all } x`.

Pure functions of typed values; standard library only.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .tree import Node, names

_SETS = {"\\mathbbZ": "Z", "\\mathbbN": "N", "\\mathbbR": "R", "\\mathbbZ^+": "N", "\\mathbbZ_+": "N",
         "\\mathbbN^*": "N", "\\mathbbZ_>0": "N", "\\mathbbZ_>=0": "N", "\\mathbbN_0": "N",
         "\\mathbbC": "R", "\\mathbbQ": "R", "vec Z": "Z", "vec R": "R", "vec N": "N",
         "\\mathbbK": "K", "Z": "Z", "N": "N", "R": "R"}  # fmt: skip
_PARAMETERS = frozenset("jklmnpqrst")


class Declared(NamedTuple):
    """A value without its declarations."""

    node: Node
    sets: dict[str, str]
    """Letter of a parameter -> Z, or N for a part of the integers."""


def declared(node: Node, other: Node) -> Declared:
    """Return an answer's value and the sets of its parameters. A domain of a function is left out."""
    sets: dict[str, str] = {}
    if node.kind == "builder" and node.parts[1].kind == "relation":
        body, condition = node.parts
        letter, kind = _membership(condition)
        if letter and kind in ("Z", "N") and letter in names(body) and body.kind != "relation" and body.kind != "name":
            return Declared(body, {letter: kind})
    if node.kind != "list":
        return Declared(node, sets)
    separators = ["", *node.text.split()]
    parts = list(node.parts)
    while len(parts) > 1:
        last, separator = parts[-1], separators[-1]
        letter, kind = _membership(last)
        before = set().union(*(names(part) for part in parts[:-1]))
        bound = last.kind == "relation" and _is_bound(last, parts[:-1], other)
        parameter = letter in before and (letter in _PARAMETERS or separator == "where" or letter in "abcxyz")
        if parameter and kind in ("Z", "N"):
            sets[letter] = kind
        elif _is_series(parts):
            letter = parts[-4].parts[0].text
            sets[letter] = "Z"
            del parts[-3:], separators[-3:]
        elif not (letter in before and kind in ("R", "K")) and not (
            bound and (separator == "where" or _is_term(parts[0], last))
        ):
            break
        parts.pop()
        separators.pop()
    value = parts[0] if len(parts) == 1 else Node("list", tuple(parts), " ".join(separators[1:]))
    return Declared(value, sets)


def _membership(node: Node) -> tuple[str, str]:
    r"""Return (letter, set) of `k\in\mathbb{Z}`; empty texts for other values."""
    if node.kind != "relation" or node.text != "\\in" or node.parts[0].kind != "name":
        return "", ""
    target = node.parts[1]
    kind = "R" if target.kind == "reals" else _SETS.get(target.text, "") if target.kind == "name" else ""
    return node.parts[0].text, kind


def _is_series(parts: list[Node]) -> bool:
    """Return whether a list ends with `k = 0, \\pm 1, \\pm 2, ...`."""
    if len(parts) < 5 or parts[-1].kind != "dots" or [part.kind for part in parts[-3:-1]] != ["pm", "pm"]:
        return False
    first = parts[-4]
    return first.kind == "relation" and first.text == "=" and first.parts[0].kind == "name"


def _is_bound(node: Node, parts: list[Node], other: Node) -> bool:
    """Return whether a condition such as `n \\ge 1` only states where a value is defined, and the other has none."""
    if node.text not in (">=", ">", "!=", "<=", "<", "\\in"):
        return False
    others = other.parts if other.kind == "list" else (other,)
    return not any(part.kind == "relation" and part.text != "=" for part in others) and names(node) <= set().union(
        *map(names, parts)
    )


def _is_term(node: Node, condition: Node) -> bool:
    r"""Return whether a value is a term of a sequence, a function, or undefined where the condition has `\ne`."""
    if node.kind != "relation":
        return condition.text == "!=" and node.kind not in ("name", "text", "number")
    return node.text == "=" and bool(re.search(r"_[nk]$", node.parts[0].text) or node.parts[0].kind in ("apply", "mul"))


def same_declarations(ours: Declared, theirs: Declared) -> bool:
    """Return whether the parameters of both answers are from the same set, where both declare one."""
    first, second = set(ours.sets.values()), set(theirs.sets.values())
    return not (first and second) or first == second
