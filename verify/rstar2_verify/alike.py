r"""Gives two answers the notation of each other: the base of `\log`, arrows on vectors, names of angles.

Pure functions of typed values; standard library only.
"""

from __future__ import annotations

import re

from .tree import Node, has, integer, mapped, names, nodes, substituted

_REDUCED = Node("div", (Node("name", text="h"), Node("mul", (integer(2), Node("constant", text="pi")))))
"""The reduced Planck constant."""


def alike(known: Node, answer: Node, known_text: str, answer_text: str) -> tuple[Node, Node]:
    """Return both values in one notation."""
    for marked, change in ((_is_common, _common), (_has_arrow, _without_arrow), (_is_direction, _without_direction)):
        if len({any(map(marked, nodes(side))) for side in (known, answer)}) > 1:
            known, answer = mapped(known, change), mapped(answer, change)
    constants = [names(side) & {"\\hbar", "h"} for side in (known, answer)]
    if {"\\hbar"} in constants and {"h"} in constants:
        known, answer = (substituted(side, {"\\hbar": _REDUCED}) for side in (known, answer))
    known, answer = _identities(known, answer)
    known, answer = _without_functions(known, answer)
    answer = _engineering(answer, known)
    known = _engineering(known, answer)
    answer = _sympy_constants(answer, answer_text, known)
    known = _sympy_constants(known, known_text, answer)
    figures = [{name for name in names(side) if name.startswith(("angle ", "triangle "))} for side in (known, answer)]
    if any(figures):
        short = any(len(name) == 7 for side in figures for name in side)
        bare = not all(figures)
        known, answer = (mapped(side, lambda node: _figure(node, short=short, bare=bare)) for side in (known, answer))
    return known, _python_list(answer, answer_text, known)


def _sympy_constants(node: Node, text: str, other: Node) -> Node:
    """Return a tree with the constants that SymPy prints as `E` and `I`."""
    if "\\" in text or not ("*" in text or len(text) < 3):
        return node
    letters = ("E", "I") if "*" in text else ("E",)
    return substituted(
        node, {name: Node("constant", text=name.lower()) for name in letters if name not in names(other)}
    )


def _without_functions(*sides: Node) -> list[Node]:
    """Return both values with products for `h(1-x)`, if the letter is a factor and no function in one of them."""
    factors = [{part.text for part in nodes(side) if part.kind == "name"} for side in sides]
    functions = [{part.text for part in nodes(side) if part.kind == "apply"} for side in sides]
    letters = (functions[0] & factors[1] - functions[1]) | (functions[1] & factors[0] - functions[0])

    def product(node: Node) -> Node | None:
        if node.kind != "apply" or node.text not in letters or len(node.parts) != 1:
            return None
        return Node("mul", (Node("name", text=node.text), mapped(node.parts[0], product)))

    return [mapped(side, product) for side in sides] if letters else list(sides)


def _identities(*sides: Node) -> list[Node]:
    """Return both values with `I` for the `I_3` of one, if these are their only names and neither is an equation."""
    letters = set().union(*map(names, sides))
    sized = re.fullmatch(r"I I_[2-9]", " ".join(sorted(letters)))
    if not sized or any(len(names(side)) != 1 or side.kind == "relation" for side in sides):
        return list(sides)
    return [substituted(side, dict.fromkeys(letters, Node("name", text="I"))) for side in sides]


def _engineering(node: Node, other: Node) -> Node:
    """Return a tree with the imaginary unit for `j`, if the other one has the unit and no such letter."""
    units = [any(part == Node("constant", text="i") for part in nodes(side)) for side in (node, other)]
    if units != [False, True] or "j" not in names(node) or "j" in names(other):
        return node
    return substituted(node, {"j": Node("constant", text="i")})


def _figure(node: Node, *, short: bool, bare: bool) -> Node | None:
    r"""Return `\angle C` for `\angle ACB`, and the points of a triangle in one order."""
    if node.kind == "relation" and node.text in ("\\sim", "\\cong"):
        letters = [part.text.partition(" ")[2] for part in node.parts]
        if len(letters) == 2 and len(letters[0]) == len(letters[1]):
            pairs = min(sorted(map("".join, zip(*order, strict=True))) for order in (letters, letters[::-1]))
            return Node("relation", (Node("name", text=" ".join(pairs)), Node("name", text=node.text)), node.text)
    kind, _, points = node.text.partition(" ")
    if kind == "triangle":
        return Node("name", text="triangle " + "".join(sorted(points)))
    if kind != "angle":
        return None
    vertex = points[len(points) // 2] if short and len(points) == 3 else points
    return Node("name", text=vertex if bare and len(vertex) == 1 else f"angle {vertex}")


def _is_common(node: Node) -> bool:
    return node.kind == "call" and node.text == "log" and len(node.parts) == 2 and node.parts[1] == integer(10)


def _common(node: Node) -> Node | None:
    if node.kind == "call" and node.text == "log" and len(node.parts) == 1:
        return Node("call", (mapped(node.parts[0], _common), integer(10)), "log")
    return None


def _has_arrow(node: Node) -> bool:
    return node.kind == "name" and node.text.startswith("vec ")


def _without_arrow(node: Node) -> Node | None:
    if not _has_arrow(node):
        return None
    return Node("reals") if node.text == "vec R" else Node("name", text=node.text[4:])


def _without_direction(node: Node) -> Node | None:
    r"""Return a value without its unit vector. A sum of several directions, such as `2\hat{r}+3\hat\theta`, stays."""
    if node.kind == "add":
        terms = [part.parts[0] if part.kind == "neg" else part for part in node.parts]
        return node if len({part.parts[1].text if _is_direction(part) else "" for part in terms}) > 1 else None
    return node.parts[0] if _is_direction(node) else None


def _is_direction(node: Node) -> bool:
    r"""Return whether a value has a radial unit vector as its last factor: `\frac{kq}{r^2}\hat{r}`."""
    return node.kind == "mul" and node.parts[1].text in ("hat r", "hat \\theta", "hat \\phi", "hat n")


def _python_list(answer: Node, text: str, known: Node) -> Node:
    """Return a list for `[2, 3]` as Python prints it, if the known answer is a list."""
    if answer.kind == "relation" and answer.text == "=" and "[" in text:
        return answer._replace(parts=(answer.parts[0], _python_list(answer.parts[1], text[text.index("[") :], known)))
    values = known.kind in ("list", "set", "tuple") or has("pm", known)
    pair = answer.kind == "interval" and answer.text == "[]" and values
    several = answer.kind == "tuple" and text.startswith("[") and known.kind in ("list", "set")
    printed = (pair or several) and "\\" not in text and ", " in text
    return Node("list", answer.parts, ",") if printed else answer
