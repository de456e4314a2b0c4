r"""Arbitrary constants: `Ae^{2x}` for a gold answer `Ce^{2x}`, `\sin^2 x + K` for `-\cos^2 x + C`.

`compare` calls it. Only a gold answer that visibly has an arbitrary constant is compared in this way: a solution of a
differential equation, an antiderivative, a family of functions or of curves. A name of a quantity (`\frac12CV^2`) is
none. Another name replaces each constant one to one, so that no number and no variable changes. Values that
are linear in their constants are compared as spans of functions.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from fractions import Fraction
from typing import Any

from mpmath import mp

from .evaluator import evaluate
from .expressions import constant_factor
from .shapes import vector_components
from .tree import Node, TooLarge, Undefined, Unknown, difference, integer, mapped, names, nodes, substituted
from .values import DIGITS

_CONSTANT = re.compile(r"[Cc](?:_\d+)?")
"""Names of a constant in a gold answer."""
_OTHER = re.compile(r"[A-DK-NPQa-dk](?:_\d+)?|const(?:ant)?|\\(?:alpha|beta|gamma|lambda|mu)")
"""Names of a constant in an answer."""
_MAX_CONSTANTS = 3
_SMALL = 1e-60
"""Part of a column that is left by rounding."""
_LETTERS = frozenset("ABCD")
_WAVES = frozenset(["sin", "cos", "sinh", "cosh"])


def with_constants(given: Node, known: Node, free: Collection[str] = ()) -> Iterator[Node]:
    """Yield the answer's tree with the gold answer's names of arbitrary constants, in each order.

    `free`: names that the answer declares as real numbers or constants. They may have other names in the gold answer.
    """
    ours, theirs = names(_value(given)), names(_value(known))
    visible = _constants(known)
    constants = sorted(visible or theirs - ours)
    others = sorted(ours - theirs.difference(constants))
    if not 1 <= len(constants) <= _MAX_CONSTANTS or len(others) != len(constants):
        return
    vector = known.kind == "tuple"
    named = all(name in free or (visible and (vector or _OTHER.fullmatch(name))) for name in others)
    if not named or not (visible or _value(known).kind not in ("relation", "list", "builder")):
        return
    for order in itertools.permutations(constants):
        renamed = {name: Node("name", text=constant) for name, constant in zip(others, order, strict=True)}
        yield substituted(given, renamed, kinds=("name", "text"))


def with_spans(node: Node, other: Node) -> Node:
    r"""Return a value that is linear in constants, with the components of its vectors, next to a value of other names.

    `C_1(1,2)` for `\text{span}\{(1,2)\}`, `C_1\cos x+C_2\sin x` for `R\cos(x-\varphi)`; else the node.
    """
    used = names(other)
    node = mapped(node, lambda part: _span(part) or _waves(part, used))
    parts = vector_components(node)
    return node if parts is None else Node("tuple", tuple(parts))


def _span(node: Node) -> Node | None:
    if node.kind != "mul" or node.parts[0].text.lower() != "span" or node.parts[1].kind not in ("set", "tuple"):
        return None
    return _combined(node.parts[1].parts if node.parts[1].kind == "set" else node.parts[1:])


def _waves(node: Node, used: Collection[str]) -> Node | None:
    """Return the sum of two waves for one with an amplitude and a phase that the other value does not have."""
    amplitude, wave = node.parts if node.kind == "mul" else (node, node)
    angle = wave.parts[0] if wave.kind == "call" and wave.text in ("sin", "cos") else node
    if amplitude.kind != "name" or angle.kind != "add":
        return None
    phase = angle.parts[-1].parts[0] if angle.parts[-1].kind == "neg" else angle.parts[-1]
    if phase.kind != "name" or {amplitude.text, phase.text}.intersection(used):
        return None
    return _combined([Node("call", (Node("add", angle.parts[:-1]),), name) for name in ("cos", "sin")])


def _combined(values: Sequence[Node]) -> Node:
    """Return the sum of values times constants."""
    return Node("add", tuple(Node("mul", (Node("name", text=f"C_{at}"), part)) for at, part in enumerate(values, 1)))


def same_spans(given: Node, known: Node) -> bool:
    r"""Return whether both are the same functions: `A\cosh x+B\sinh x` and `C_1e^x+C_2e^{-x}`, `(x^3+C)/3`.

    Both must be linear in the arbitrary constants, which have the same names. Each is then a function and the span of
    others. The spans must be the same, and have the difference of the functions.
    """
    constants = sorted(_constants(known))
    size = len(constants)
    with mp.workdps(DIGITS):
        try:
            (first, *ours), (second, *theirs) = (_columns(_value(side), constants) for side in (given, known))
        except (Unknown, TooLarge, Undefined):
            return False
        moved = [first - second] if mp.norm(first - second) > mp.norm(first) * _SMALL else []
        return size > 0 and size == _rank(ours) == _rank(theirs) == _rank([*theirs, *ours, *moved])


def same_curves(given: Node, known: Node) -> bool:
    r"""Return whether two equations with an added constant are the same curves: `x^2-y^2=C` for `y^2=x^2+C`."""
    first, second = _curves(given, _OTHER), _curves(known, re.compile(r"C(?:_\d+)?"))
    try:
        return first is not None is not second and constant_factor(first, second) is not None
    except (Unknown, TooLarge, Undefined):
        return False


def _curves(node: Node, pattern: re.Pattern[str]) -> Node | None:
    """Return the difference of the sides of an equation in x and y without its only constant; None for others."""
    if node.kind != "relation" or node.text != "=" or len(node.parts) != 2 or not {"x", "y"} <= names(node):
        return None
    constants = [part.text for part in nodes(node) if part.kind == "name" and pattern.fullmatch(part.text)]
    single = len(constants) == 1 and constants[0] in set().union(*map(_terms, node.parts))
    return substituted(difference(*node.parts), {constants[0]: integer(0)}) if single else None


def _columns(node: Node, constants: Sequence[str]) -> list[Any]:
    """Return the values at drawn points without constants, and those of the factor of each constant. Raises Unknown."""
    count = 2 * len(constants) + 4
    settings = [dict.fromkeys(constants, 0)]
    settings += [dict.fromkeys(constants, 0) | {name: 1} for name in constants]
    settings += [{name: 2 + at for at, name in enumerate(constants)}]
    others = sorted(names(node).difference(constants))
    parts = node.parts if node.kind == "tuple" else (node,)
    columns = [mp.matrix(count * len(parts), 1) for _ in settings]
    for column, setting in zip(columns, settings, strict=True):
        for row, part in itertools.product(range(count), range(len(parts))):
            drawn = {name: Fraction(3 * row + 5 * at + 2, 7 + at) for at, name in enumerate(others)}
            values = {name: Node("number", number=Fraction(value)) for name, value in (drawn | setting).items()}
            column[row * len(parts) + part] = evaluate(substituted(parts[part], values), 0, DIGITS)[0]
    base, *factors, last = (columns[0], *(column - columns[0] for column in columns[1:]))
    linear = sum((factor * (2 + at) for at, factor in enumerate(factors)), mp.matrix(count * len(parts), 1))
    if not mp.norm(last - linear) <= mp.norm(last) * _SMALL:  # also for an infinite value
        raise Unknown("an expression that is not linear in its constants")
    return [base, *factors]


def _rank(columns: Sequence[Any]) -> int:
    """Return the number of columns that are no sum of multiples of those before them."""
    units: list[Any] = []
    for column in columns:
        rest = column
        for unit in units:
            rest = rest - unit * (unit.H * rest)[0]
        if mp.norm(rest) > mp.norm(column) * _SMALL:
            units.append(rest / mp.norm(rest))
    return len(units)


def _constants(known: Node) -> set[str]:
    """Return the arbitrary constants of a gold answer; empty if it does not visibly have one."""
    value = _value(known)
    used = [part.text for part in nodes(value) if part.kind == "name" and _CONSTANT.fullmatch(part.text)]
    constants = set(used)
    others = names(value) - constants
    capital = all(name[0] == "C" for name in constants)
    if not constants and _is_homogeneous(value):
        return names(value) & _LETTERS
    if not constants or (len(used) != len(constants) and value.kind != "tuple"):
        return set()
    if value is not known:
        return constants if capital or len(others) == 1 else set()
    if known.kind == "relation":
        return set()
    subscripted = len(constants) > (value.kind != "tuple") and all("_" in name for name in constants)
    if len(others) > 1 + bool(others & set("xt")) or (not others and value.kind != "tuple"):
        return set()
    added = capital and constants <= _terms(value)
    return constants if subscripted or added or (capital and _is_exponential(value)) else set()


def _is_homogeneous(node: Node) -> bool:
    """Return whether a tree is a solution such as `A\\cos 3t+B\\sin 3t`, with two constants and one variable."""
    used = names(node)
    letters = [part.text for part in nodes(node) if part.kind == "name" and part.text in _LETTERS]
    waves = any(part.kind == "call" and part.text in _WAVES and names(part) for part in nodes(node))
    solves = waves or _is_exponential(node)
    return len(letters) == len(set(letters)) == 2 and len(used) in (3, 4) and bool(used & set("xt")) and solves


def _is_function(equation: Node) -> bool:
    """Return whether the left side of an equation is an unknown function: `y`, `y(x)`, `f(x)`."""
    left, right = equation.parts
    if left.kind == "mul":
        return all(part.kind == "name" for part in left.parts) and left.parts[1].text in names(right)
    return (left.kind == "name" and left.text in ("y", "u", "label")) or left.kind in ("apply", "tuple")


def _is_exponential(node: Node) -> bool:
    """Return whether a tree is a constant times an exponential function."""
    powers = [part for part in nodes(node) if part.kind == "pow" and part.parts[0] == Node("constant", text="e")]
    calls = [part for part in nodes(node) if part.kind == "call" and part.text == "exp"]
    return any(names(part) for part in (*powers, *calls))


def _terms(node: Node) -> set[str]:
    """Return the names that are terms of a sum, or its only one, with any sign."""
    terms = node.parts if node.kind == "add" else (node,)
    return {part.text for term in terms for part in (term, *term.parts * (term.kind == "neg")) if part.kind == "name"}


def _value(node: Node) -> Node:
    """Return the right side of an equation whose left side is a function; other nodes unchanged."""
    if node.kind == "relation" and node.text == "=" and _is_function(node):
        return node.parts[1]
    return node
