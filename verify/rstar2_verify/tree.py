"""The typed values of answers: trees of nodes, and the errors of reading and computing them. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import NamedTuple


class ParseError(ValueError):
    """The text is not an answer that the grammar covers."""


class NotExact(Exception):
    """The value is not a fraction, or its fraction is too long."""


class Undefined(Exception):
    """The value does not exist, as of a division by zero."""


class Unknown(Exception):
    """The node has no numeric value: words, dots, a set."""


class TooLarge(Exception):
    """The value is beyond any number that can be computed."""


class Undecided(Exception):
    """The values agree in all digits within the limits, which does not prove equality."""


class Node(NamedTuple):
    """A typed value.

    Numbers: number, constant (`pi`, `e`, `i`), infinity. Expressions: name, text (a word), add, mul, div, neg, pow,
    root, call (a known function), apply (an unknown one), bind (a sum, product, integral or limit), pm, degree,
    percent, quantity (a value with its unit). Structures: list, tuple, set, interval, builder, relation, union,
    intersection, difference, reals, empty, matrix, row, ratio, congruent, dots, remainder, noted (a value with
    words around it).
    """

    kind: str
    parts: tuple[Node, ...] = ()
    text: str = ""
    """Name, operators of a relation, brackets of an interval, separators of a list, words of a note."""
    number: Fraction = Fraction(0)
    """Value of a number."""
    decimals: int | None = None
    """Decimals of a number that was written as a decimal, less its power of ten; None for other nodes."""
    unit: tuple[tuple[str, int], ...] = ()
    """Unit of a quantity: symbols with their powers, sorted."""


def nodes(node: Node) -> Iterator[Node]:
    """Yield a tree's nodes."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        stack += current.parts


def has(kind: str, *sides: Node) -> bool:
    """Return whether one of some trees has a node of a kind."""
    return any(part.kind == kind for side in sides for part in nodes(side))


def names(node: Node) -> set[str]:
    """Return the names in a tree, unknown functions included; not the variables that a sum or an integral binds."""
    if node.kind in ("name", "text", "apply"):
        return {node.text}.union(*map(names, node.parts))
    if node.kind == "bind":
        bound = node.parts[1].text
        return (names(node.parts[0]) - {bound}).union(*map(names, node.parts[2:])) | (
            {bound} if len(node.parts) < 4 and node.text == "int" else set()
        )
    return set().union(*map(names, node.parts)) if node.parts else set()


def depth(node: Node) -> int:
    """Return the number of levels of a tree."""
    levels, current = 0, [node]
    while current:
        levels, current = levels + 1, [part for inner in current for part in inner.parts]
    return levels


def integer(value: int) -> Node:
    """Return the node of an integer."""
    return Node("number", number=Fraction(value))


MINUS_ONE = Node("neg", (integer(1),))


def matrix(rows: Iterable[tuple[Node, ...]], kind: str = "matrix") -> Node:
    """Return a matrix, or `cases`, with these rows."""
    return Node("matrix", tuple(Node("row", row) for row in rows), kind)


def difference(first: Node, second: Node) -> Node:
    """Return one value less another one."""
    return Node("add", (first, Node("neg", (second,))))


def groups(node: Node, between: Collection[str]) -> list[list[Node]]:
    """Return the parts of a list in groups, between which are these separators."""
    grouped = [[node.parts[0]]]
    for separator, part in zip(node.text.split(), node.parts[1:], strict=True):
        if separator in between:
            grouped.append([])
        grouped[-1].append(part)
    return grouped


def mapped(node: Node, change: Callable[[Node], Node | None]) -> Node:
    """Return a tree in which `change` replaces nodes; where it returns None, the parts are visited."""
    changed = change(node)
    if changed is not None:
        return changed
    return node._replace(parts=tuple(mapped(part, change) for part in node.parts)) if node.parts else node


def substituted(node: Node, values: Mapping[str, Node], kinds: Collection[str] = ("name",)) -> Node:
    """Return a tree with other nodes for some names, or nodes of other kinds."""
    return mapped(node, lambda part: values.get(part.text) if part.kind in kinds else None)
