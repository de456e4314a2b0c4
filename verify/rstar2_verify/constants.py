r"""Arbitrary constants: `Ae^{2x}` for a gold answer `Ce^{2x}`, `\sin^2 x + K` for `-\cos^2 x + C`.

`compare` calls it. Only a gold answer that visibly has an arbitrary constant is compared in this way: a solution of a
differential equation, an antiderivative, a family of functions or of curves. A name of a quantity (`\frac12CV^2`) is
none. Another name replaces each constant one to one, so that no number and no variable changes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from .tree import Node, TooLarge, Undefined, Unknown, difference, integer, names, nodes, substituted
from .values import equal_values

_CONSTANT = re.compile(r"[Cc](?:_\d+)?")
"""Names of a constant in a gold answer."""
_OTHER = re.compile(r"[A-DKLa-dk](?:_\d+)?|const(?:ant)?")
"""Names of a constant in an answer."""
_MAX_CONSTANTS = 3
_LETTERS = frozenset("ABCD")
_WAVES = frozenset(["sin", "cos", "sinh", "cosh"])


def with_constants(given: Node, known: Node) -> Iterator[Node]:
    """Yield the answer's tree with the gold answer's names of arbitrary constants, in each order."""
    constants = sorted(_constants(known))
    if not 1 <= len(constants) <= _MAX_CONSTANTS:
        return
    fixed = names(_value(known)).difference(constants)
    others = sorted(names(_value(given)) - fixed)
    if len(others) != len(constants) or not all(_OTHER.fullmatch(name) for name in others):
        return
    for order in itertools.permutations(constants):
        renamed = {name: Node("name", text=constant) for name, constant in zip(others, order, strict=True)}
        yield substituted(given, renamed, kinds=("name", "text"))


def same_antiderivatives(given: Node, known: Node) -> bool:
    """Return whether both have one constant term, and differ by a number: `\\sin^2x+C`, `-\\cos^2x+C`, `(x^3+C)/3`."""
    given, known = _value(given), _value(known)
    constants = _added_constants(known) if _constants(known) else set()
    if len(constants) != 1 or not constants <= names(given):
        return False
    constant = constants.pop()
    plain, rest, moved = (
        substituted(side, {constant: integer(value)}) for side, value in ((given, 0), (known, 0), (given, 1))
    )
    return _is_number(difference(plain, rest)) and (
        constant in _added_constants(given) or _is_number(difference(moved, plain))
    )


def _is_number(node: Node) -> bool:
    """Return whether an expression is the same for two values of its only letter."""
    letters = names(node)
    if len(letters) != 1 or any(part.kind == "apply" for part in nodes(node)):
        return False
    moved = {letter: Node("name", text=f"{letter}_*") for letter in letters}
    try:
        return equal_values(node, substituted(node, moved))
    except (Unknown, TooLarge, Undefined):
        return False


def _constants(known: Node) -> set[str]:
    """Return the arbitrary constants of a gold answer; empty if it does not visibly have one."""
    value = _value(known)
    used = [part.text for part in nodes(value) if part.kind == "name" and _CONSTANT.fullmatch(part.text)]
    constants = set(used)
    others = names(value) - constants
    capital = all(name[0] == "C" for name in constants)
    if not constants and _is_homogeneous(value):
        return names(value) & _LETTERS
    if not constants or len(used) != len(constants):
        return set()
    if value is not known:
        return constants if capital or len(others) == 1 else set()
    if known.kind == "relation":
        curve = len(known.parts) == 2 and known.parts[1].text in constants and {"x", "y"} <= names(known.parts[0])
        return constants if curve and capital else set()
    if len(others) != 1:
        return set()
    subscripted = len(constants) > 1 and all("_" in name for name in constants)
    added = capital and _added_constants(value) == constants
    return constants if subscripted or added or (capital and _is_exponential(value)) else set()


def _is_homogeneous(node: Node) -> bool:
    """Return whether a tree is a solution such as `A\\cos 3t+B\\sin 3t`, with two constants and one variable."""
    used = names(node)
    letters = [part.text for part in nodes(node) if part.kind == "name" and part.text in _LETTERS]
    waves = any(part.kind == "call" and part.text in _WAVES and names(part) for part in nodes(node))
    solves = waves or _is_exponential(node)
    return len(letters) == len(set(letters)) == 2 and len(used) == 3 and bool(used & set("xt")) and solves


def _is_function(equation: Node) -> bool:
    """Return whether the left side of an equation is an unknown function: `y`, `y(x)`, `f(x)`."""
    left, right = equation.parts
    if left.kind == "mul":
        return all(part.kind == "name" for part in left.parts) and left.parts[1].text in names(right)
    return (left.kind == "name" and left.text in ("y", "u", "label")) or left.kind == "apply"


def _is_exponential(node: Node) -> bool:
    """Return whether a tree is a constant times an exponential function."""
    powers = [part for part in nodes(node) if part.kind == "pow" and part.parts[0] == Node("constant", text="e")]
    calls = [part for part in nodes(node) if part.kind == "call" and part.text == "exp"]
    return any(names(part) for part in (*powers, *calls))


def _added_constants(node: Node) -> set[str]:
    """Return the constants that are terms of a sum."""
    terms = node.parts if node.kind == "add" else ()
    return {term.text for term in terms if term.kind == "name" and re.fullmatch(r"C(?:_\d+)?", term.text)}


def _value(node: Node) -> Node:
    """Return the right side of an equation whose left side is a function; other nodes unchanged."""
    if node.kind == "relation" and node.text == "=" and _is_function(node):
        return node.parts[1]
    return node
