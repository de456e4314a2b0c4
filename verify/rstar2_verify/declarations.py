r"""Separates what an answer declares from its value: `4k+1, k\in\mathbb{Z}`, `f(x)=2x \text{ for all } x`.

Pure functions of typed values; standard library only.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .shapes import vector_components
from .tree import Node, names, substituted

_SETS = {"\\mathbbZ": "Z", "\\mathbbN": "N", "\\mathbbR": "R", "\\mathbbZ^+": "N", "\\mathbbZ_+": "N",
         "\\mathbbN^*": "N", "\\mathbbZ_>0": "N", "\\mathbbZ_>=0": "N", "\\mathbbN_0": "N",
         "\\mathbbC": "R", "\\mathbbQ": "R", "vec Z": "Z", "vec R": "R", "vec N": "N",
         "\\mathbbK": "K", "Z": "Z", "N": "N", "R": "R"}  # fmt: skip
ANY_PARAMETERS = frozenset("jklmnpqrst")
"""Letters of a parameter that an answer may have without a declaration."""


class Declared(NamedTuple):
    """A value without its declarations."""

    node: Node
    sets: dict[str, str]
    """Letter of a parameter -> Z, or N for a part of the integers."""
    free: frozenset[str] = frozenset()
    """Names of real numbers and constants that the answer declares."""


def declared(node: Node, other: Node) -> Declared:
    """Return an answer's value and the sets of its parameters. A domain of a function is left out."""
    sets: dict[str, str] = {}
    node = _declaring(node)
    if node.kind != "list":
        return Declared(node, sets)
    first, last = node.parts[0], node.parts[-1]
    subject = first.parts[0] if first.kind in ("noted", "list") else first
    if node.text == "where" and subject.kind == "name" and last.kind == "relation" and not _membership(last)[1]:
        return Declared(first._replace(parts=(last,)) if first.kind == "noted" else last, sets)
    node = _with_definitions(_without_domains(node), other)
    separators = ["", *node.text.split()]
    parts = list(node.parts) if node.kind == "list" else [node]
    free: set[str] = set()
    while len(parts) > 1:
        last, separator = parts[-1], separators[-1]
        letter, kind = _membership(last)
        before = set().union(*(names(part) for part in parts[:-1]))
        bound = last.kind == "relation" and _is_bound(last, parts[:-1], other)
        parameter = letter in before and (letter in ANY_PARAMETERS or separator == "where" or letter in "abcxyz")
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
        else:
            free |= {letter} - {""}
        parts.pop()
        separators.pop()
    value = parts[0] if len(parts) == 1 else Node("list", tuple(parts), " ".join(separators[1:]))
    return Declared(value, sets, frozenset(free))


def _declaring(node: Node) -> Node:
    r"""Return a value and its declarations for `\{s(1,2)+t(3,4) : s,t\in\mathbb{R}\}`, with or without braces."""
    body, *conditions = node.parts or (node,)
    if node.kind == "builder" and conditions[0].kind == "list":
        conditions = [*conditions[0].parts]
    if node.kind not in ("builder", "list") or not _membership(conditions[-1])[1]:
        return node
    target = conditions[-1].parts[1]
    members = [Node("relation", (part, target), "\\in") if part.kind == "name" else part for part in conditions]
    vector = vector_components(body)
    body = body if vector is None else Node("tuple", tuple(vector))
    letters = [_membership(member) for member in members]
    plain = body.kind in ("relation", "name") or (node.kind == "list" and vector is None)
    if plain or not all(kind and letter in names(body) for letter, kind in letters):
        return node
    return Node("list", (body, *members), " ".join("where" for _ in members))


def _without_domains(node: Node) -> Node:
    r"""Return a list without `f: \mathbb{R}\to\mathbb{R}` at its start, and without `for all x` in its middle."""
    if "where" not in node.text and not _is_signature(node.parts[0]):
        return node
    separators = ["", *node.text.split()]
    kept = [
        (separator, part)
        for at, (separator, part) in enumerate(zip(separators, node.parts, strict=True))
        if not (_is_signature(part) if not at else separator == "where" and _membership(part)[1] == "R")
        or at == len(separators) - 1
    ]
    if len(kept) == 1:
        return kept[0][1]
    return Node("list", tuple(part for _, part in kept), " ".join(separator for separator, _ in kept[1:]))


def _is_signature(node: Node) -> bool:
    r"""Return whether a value is `f: \mathbb{R}\to\mathbb{R}`."""
    applied = node.kind == "relation" and node.text == "=" and node.parts[0].kind == "apply"
    return applied and _is_domain(node.parts[0].parts[0]) and _is_domain(node.parts[1])


def _is_domain(node: Node) -> bool:
    return node.kind == "reals" or node.text.startswith("\\mathbb")


def _with_definitions(node: Node, other: Node) -> Node:
    r"""Return `2 \cdot 3+1` for `2a+1, \text{ where } a = 3`, if the other answer has no `a`; else the node."""
    value, definitions = node.parts[0], node.parts[1:]
    defined = all(part.text == "=" and part.parts[0].kind == "name" for part in definitions)
    if node.text.split()[:1] != ["where"] or not defined:
        return node
    values = {part.parts[0].text: part.parts[1] for part in definitions}
    return node if not values.keys() <= names(value) - names(other) else substituted(value, values)


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
    present = set().union(*map(names, parts))
    present |= {name.rpartition("_")[2][:1] for name in present} | {"even", "odd", "any"}  # `a_{n+1}` has n
    return names(node) <= present and not any(part.kind == "relation" and part.text != "=" for part in others)


def _is_term(node: Node, condition: Node) -> bool:
    r"""Return whether a value is a term of a sequence, a function, or undefined where the condition has `\ne`."""
    if node.kind != "relation":
        return condition.text == "!=" and node.kind not in ("name", "text", "number")
    return node.text == "=" and bool(re.search(r"_[nk]$", node.parts[0].text) or node.parts[0].kind in ("apply", "mul"))


def same_declarations(ours: Declared, theirs: Declared) -> bool:
    """Return whether the parameters of both answers are from the same set, where both declare one."""
    first, second = ({*side.sets.values()} | ({"R"} if side.free else set()) for side in (ours, theirs))
    return not (first and second) or first == second
