r"""Rewrites trees into the shape of the other answer: vectors, matrices, plus-minus signs, binomial coefficients.

`compare` calls it. Nothing here compares two answers.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from .expression_grammar import UNNAMED
from .expressions import decimal
from .tree import MINUS_ONE, Node, groups, has, integer, matrix, names, substituted

MAX_SPELLED = 1000
"""Most numbers of a list with dots that is compared with a list without them."""
EQUALITIES = frozenset(["=", "\\equiv", "\\to"])
"""Operators of an equation."""
_BOUNDS = {"at least": ">=", "no less than": ">=", "no fewer than": ">=", "at most": "<=", "no more than": "<=",
           "more than": ">", "fewer than": "<"}  # fmt: skip
_INDEXED = re.compile(r"(?P<sequence>[A-Za-z]+)_(?P<letter>[a-z])(?P<offset>[-+]\d{1,3})?")
_FACTORS = frozenset("kstru")
"""Letters of a parameter before a vector: `t(1,2,-1)`."""
OTHERWISE = re.compile("otherwise|else(?:where)?")


def is_equation(node: Node) -> bool:
    """Return whether a node is an equation, or a chain of equalities."""
    return node.kind == "relation" and set(node.text.split()) <= EQUALITIES


def as_tuple(node: Node) -> Node:
    """Return a list as a tuple; other nodes unchanged."""
    return Node("tuple", node.parts) if node.kind == "list" else node


def defined_function(node: Node) -> tuple[str, str] | None:
    """Return the name and the argument of the function that an equation defines; an empty argument for `y = 2x`."""
    if not is_equation(node) or len(node.parts) != 2:
        return None
    left = node.parts[0]
    if left.kind == "name" and left.text in ("y", "f", "g", "h"):
        return left.text, ""
    indexed = re.fullmatch(r"(\w+_)([i-n])", left.text) if left.kind == "name" else None
    if indexed:
        return indexed[1], indexed[2]
    if left.kind == "mul" and left.parts[0].kind == "pow" and left.parts[1].kind == "name":
        base, exponent = left.parts[0].parts
        if base.text in ("f", "g", "h") and exponent == MINUS_ONE:
            return f"{base.text}^-1", left.parts[1].text
    if left.kind == "apply" and len(left.parts) == 1 and left.parts[0].kind == "name":
        return left.text, left.parts[0].text
    if left.kind == "mul" and [part.kind for part in left.parts] == ["name", "name"]:
        function, argument = left.parts[0].text, left.parts[1].text
        if function == "y" or (left.text == "()" and argument in names(node.parts[1]) & {"x", "t", "\\lambda"}):
            return function, argument
        indices = {"n", "k"} & names(node.parts[1])
        if re.fullmatch("[a-uA-U]", function) and argument in indices:  # `a(n)`: a term of a sequence
            return f"{function}_", argument
    return None


def spelled_out(node: Node) -> Node:
    r"""Return `1, 2, 3, 4` for `1, 2, \dots, 4`, and `1+2+4+8+16` for `1+2+\dots+16`; other nodes unchanged."""
    *start, dots, last = node.parts if len(node.parts) > 3 else (node,) * 4
    numbers = [part.number for part in (*start, last) if part.kind == "number" and part.number.denominator == 1]
    if dots.kind != "dots" or len(numbers) < len(node.parts) - 1:
        return node
    first, second, end = (number.numerator for number in (*numbers[:2], numbers[-1]))
    steps = range(first, end + 1, second - first) if first < second and end - first < MAX_SPELLED else range(0)
    ratio = second // first if 0 < 2 * first <= second else 0
    powers = (first * ratio**at for at in range(MAX_SPELLED if ratio else 0))
    for terms in (list(steps), list(itertools.takewhile(lambda power: power <= end, powers))):
        if terms[: len(start)] == numbers[:-1] and terms[-1] == end:
            return node._replace(parts=tuple(map(integer, terms)), text=" ".join("," * (len(terms) - 1)))
    return node


def signed(node: Node, upper: bool) -> Node:
    """Return a tree with the upper or the lower signs of all its plus-minus signs."""
    if node.kind == "pm":
        inner = signed(node.parts[0], upper)
        if upper == (node.text == "pm"):
            return inner
        return Node("neg", (inner,))
    return node._replace(parts=tuple(signed(part, upper) for part in node.parts))


def members(node: Node) -> Iterator[Node]:
    """Yield the members of a list or set, with both signs of a plus-minus sign."""
    for part in node.parts if node.kind in ("list", "set") else (node,):
        if has("pm", part):
            yield from (signed(part, upper=True), signed(part, upper=False))
        else:
            yield part


def operands(node: Node) -> list[Node]:
    """Return the operands of nested unions or intersections."""
    return [inner for part in node.parts for inner in (operands(part) if part.kind == node.kind else [part])]


def as_vector(node: Node, other: Node) -> Node:
    r"""Return the tuple or the matrix of the components of `3\mathbf{i}+4\mathbf{j}`, like the other side."""
    letters = [f"unit {letter}" for letter in "ijk"]
    used = names(node).intersection(letters)
    if not used or other.kind not in ("tuple", "matrix") or not used.issubset(letters[: len(other.parts)]):
        return node
    parts = tuple(substituted(node, {name: integer(name == letter) for name in letters}) for letter in letters)
    parts = parts[: len(other.parts)]
    return Node("tuple", parts) if other.kind == "tuple" else matrix((part,) for part in parts)


def as_range(node: Node, other: Node) -> Node:
    r"""Return the ends of `50 \pm 1.96` and `48 to 52` next to a pair of decimals or an interval; else the node.

    A sign next to other pairs has two solutions.
    """
    ends = other.kind in ("tuple", "interval") and all(decimal(part) for part in other.parts)
    if node.kind == "ratio" and node.text == "to" and (ends or other.kind == "interval"):
        return node._replace(kind=other.kind, text="[]")
    if not ends or node.kind != "add" or not has("pm", node):
        return node
    return Node("tuple", (signed(node, upper=False), signed(node, upper=True)))


def as_matrix(node: Node, other: Node) -> Node:
    r"""Return the matrix that is written as a number times a matrix, as a transposed one, or as `I_2`."""
    size = len(other.parts)
    if other.kind == "matrix" and node.kind != "matrix" and size == len(other.parts[0].parts):
        identity = matrix(tuple(integer(row == column) for column in range(size)) for row in range(size))
        node = substituted(node, {"I": identity, f"I_{size}": identity})
        node = node._replace(parts=tuple(as_matrix(part, other) for part in node.parts))
    if node.kind == "pow" and node.parts[1] == Node("name", text="T"):
        return _transposed(node.parts[0]) or node
    operands = [part for part in node.parts if part.kind == "matrix" and part.text == "matrix"]
    if (
        node.kind not in ("mul", "neg", "div")
        or len(operands) != 1
        or (node.kind == "div" and node.parts[0].kind != "matrix")
    ):
        return node

    def scaled(cell: Node) -> Node:
        return node._replace(parts=tuple(cell if part is operands[0] else part for part in node.parts))

    return matrix(tuple(map(scaled, row.parts)) for row in operands[0].parts)


def _transposed(node: Node) -> Node | None:
    """Return the transpose of a matrix or of a row of numbers; None for other bases, whose power is a power."""
    if node.kind in ("tuple", "interval"):
        return matrix((part,) for part in node.parts)
    if node.kind != "matrix" or node.text != "matrix" or len({len(row.parts) for row in node.parts}) != 1:
        return None
    return matrix(zip(*(row.parts for row in node.parts), strict=True))


def from_rows(node: Node) -> Node:
    """Return the matrix that is written as a list of rows: `[[1,2],[3,4]]`; other nodes unchanged."""
    rows = node.parts if node.kind == "tuple" or node.text == "[]" else ()
    if len(rows) < 2 or not all(row.kind == "tuple" or row.text == "[]" for row in rows):
        return node
    return matrix(row.parts for row in rows)


def componentwise(node: Node) -> Node:
    """Return the tuple of a line in space, `(1,2,3)+t(4,5,6)`; other nodes unchanged."""
    multiple = node.kind == "apply" and node.text in _FACTORS and len(node.parts) > 1
    if node.kind not in ("add", "mul", "neg", "div") and not multiple:
        return node
    parts = vector_components(node)
    return node if parts is None else Node("tuple", tuple(parts))


def vector_components(node: Node) -> list[Node] | None:
    """Return the components of a vector, or of a sum of multiples of vectors; None for other values."""
    if node.kind == "matrix":
        node = components(node)
    if node.kind == "tuple":
        return list(node.parts)
    if node.kind == "apply" and len(node.parts) > 1 and len(node.text) == 1:
        return [Node("mul", (Node("name", text=node.text), part)) for part in node.parts]
    if node.kind == "add":
        sides = [vector_components(part) for part in node.parts]
        if any(side is None or len(side) != len(sides[0] or ()) for side in sides):
            return None
        return [Node("add", column) for column in zip(*(side or () for side in sides), strict=True)]
    if node.kind in ("mul", "neg", "div"):
        sides = [vector_components(part) for part in node.parts]
        vectors = [at for at, side in enumerate(sides) if side is not None]
        if len(vectors) != 1 or (node.kind == "div" and vectors != [0]):
            return None
        at = vectors[0]
        return [
            node._replace(parts=(*node.parts[:at], part, *node.parts[at + 1 :]), text="") for part in sides[at] or ()
        ]
    return None


def same_products(given: Node, known: Node) -> bool | None:
    """Compare products of matrices, whose order counts: `(AB)^{-1}` is `B^{-1}A^{-1}`; None for other values."""
    sides = [_factors(side) for side in (given, known)]
    if None in sides or not any(mark for _, mark in sides[1] or ()):
        return None
    return sides[0] == sides[1]


def _factors(node: Node) -> list[tuple[str, str]] | None:
    """Return the capital letters of a product in order, each with its inverse or transpose mark."""
    if node.kind == "name" and re.fullmatch(r"(?:vec )?[A-Z]", node.text):
        return [(node.text[-1], "")]
    if node.kind == "mul":
        first, second = (_factors(part) for part in node.parts)
        return None if first is None or second is None else first + second
    if node.kind == "pow":
        base, exponent = node.parts
        inner = _factors(base)
        mark = "-1" if exponent == MINUS_ONE else exponent.text if exponent.text in ("T", "\\top") else ""
        if inner is None or not mark or any(own for _, own in inner):
            return None
        return [(letter, mark) for letter, _ in reversed(inner)]
    return None


def with_systems(node: Node) -> Node:
    """Return alternatives that are systems as lists: `x=0, y=0 \\text{ or } x=1, y=1`; other nodes unchanged."""
    separators = node.text.split() if node.kind == "list" else []
    if not {"or", ";"} & set(separators) or not all(map(is_equation, node.parts)):
        return node
    point = Node("tuple")
    if all(len(part.parts) > 2 and with_names(part, point) != part for part in node.parts):
        return Node("list", tuple(with_names(part, point) for part in node.parts), ",")  # `x=y=0 or x=y=1`
    if len(set(separators)) != 2:
        return node
    systems = tuple(Node("list", tuple(group), " ".join("," * (len(group) - 1))) for group in groups(node, ("or", ";")))
    sizes = {len(system.parts) for system in systems}
    return Node("list", systems, ",") if len(sizes) == 1 and sizes != {1} else node


def with_names(node: Node, other: Node) -> Node:
    """Return `x=1, y=1, z=1` for `x=y=z=1` next to a tuple or a list; other nodes unchanged."""
    *labels, value = node.parts if is_equation(node) else [node]
    if len(labels) < 2 or names(value) or any(label.kind != "name" for label in labels):
        return node
    if not (other.kind in ("tuple", "list", "set") or (is_equation(other) and other.parts[0].kind == "tuple")):
        return node
    equations = (Node("relation", (label, value), "=") for label in labels)
    return Node("list", tuple(equations), " ".join("," * len(labels[1:])))


def in_order(node: Node, other: Node) -> Node:
    r"""Return the members of `3 \to 6 \to 12` and `a < b < c` in order next to a list of values; else the node."""
    signs = node.text.split() if node.kind == "relation" and other.kind == "list" else []
    ordered = len(signs) > 1 and len(set(signs)) == 1 and signs[0] in ("\\to", "<", ">")
    return Node("tuple", node.parts) if ordered and all(part.kind != "relation" for part in other.parts) else node


def as_point(node: Node, other: Node) -> Node:
    """Return `P = (1,2)` for `P(1,2)` next to a point; other nodes unchanged."""
    point = other.parts[-1] if is_equation(other) else other
    if node.kind != "apply" or len(node.parts) < 2 or point.kind != "tuple" or node.text in _FACTORS:
        return node
    return Node("relation", (Node("name", text=node.text), Node("tuple", node.parts)), "=")


def with_first_index(node: Node) -> Node:
    """Return `a_{n+1} = 3a_n` for the recurrence `a_n = 3a_{n-1}`: its smallest index is a letter; else the node."""
    indices = [match for name in names(node) if (match := _INDEXED.fullmatch(name))]
    letters = {match["letter"] for match in indices}
    offsets = {int(match["offset"] or 0) for match in indices}
    if len(letters) != 1 or len(offsets) < 2 or min(offsets) == 0:
        return node
    (letter,), low = letters, min(offsets)
    values = {letter: Node("add", (Node("name", text=letter), integer(-low)))}
    for match in indices:
        offset = int(match["offset"] or 0) - low
        values[match[0]] = Node("name", text=f"{match['sequence']}_{letter}" + (f"+{offset}" if offset else ""))
    return substituted(node, values)


def as_bound(node: Node, other: Node) -> Node:
    """Return the inequality of `at least 5` next to a value without words; other nodes unchanged."""
    sign = _BOUNDS.get(node.text) if node.kind == "noted" and other.kind != "noted" else None
    return Node("relation", (UNNAMED, *node.parts), sign) if sign else node


def as_links(node: Node) -> Node:
    """Return the list of `a < b and b < c` for the inequality `a < b < c`; other nodes unchanged."""
    operators = node.text.split() if node.kind == "relation" else []
    if len(operators) < 2:
        return node
    pairs = zip(itertools.pairwise(node.parts), operators, strict=True)
    links = tuple(Node("relation", pair, operator) for pair, operator in pairs)
    return Node("list", links, " ".join("and" for _ in links[1:]))


def as_cases(node: Node) -> Node:
    r"""Return the cases of `x^2 \text{ for } x<0, 2x \text{ otherwise}`; other nodes unchanged."""
    rows: list[Node] = []
    label: Node | None = None
    pieces = node.kind == "list" and "or" not in node.text.split()
    for separator, part in zip(["", *node.text.split()], node.parts, strict=False) if pieces else ():
        if separator == "where":
            rows[-1] = rows[-1]._replace(parts=(rows[-1].parts[0], part))
            continue
        last = Node("text", text=part.text) if part.kind == "noted" and OTHERWISE.fullmatch(part.text) else None
        value = part.parts[0] if last else part
        if is_equation(value) and len(value.parts) == 2:
            label, value = value.parts
        rows.append(Node("row", (value, last) if last else (value,)))
    if len(rows) < 2 or not all(len(row.parts) == 2 and row.parts[1].kind in ("relation", "text") for row in rows):
        return node
    cases = Node("matrix", tuple(rows), "cases")
    return Node("relation", (label, cases), "=") if label else cases


def components(node: Node) -> Node:
    """Return the tuple of the cells of a matrix with one row or one column; other nodes unchanged."""
    if node.kind != "matrix" or node.text != "matrix":
        return node
    cells = tuple(cell for row in node.parts for cell in row.parts)
    return Node("tuple", cells) if len(cells) == max(len(node.parts), len(node.parts[0].parts)) > 1 else node


def as_column(node: Node) -> Node:
    r"""Return the column vector that is written as `\binom{1}{2}`."""
    if node.kind != "call" or node.text != "binom":
        return node
    return matrix((part,) for part in node.parts)


def with_binomials(node: Node) -> Node:
    """Return a tree with binomial coefficients for `C(10,3)`, and with the number of permutations for `P(5,2)`."""
    parts = tuple(with_binomials(part) for part in node.parts)
    if node.kind == "apply" and node.text == "C" and len(parts) == 2:
        return Node("call", parts, "binom")
    if node.kind == "apply" and node.text == "P" and len(parts) == 2 and all(part.kind == "number" for part in parts):
        return Node("call", parts, "permutations")
    return node._replace(parts=parts)
