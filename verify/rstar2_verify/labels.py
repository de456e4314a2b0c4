"""Removes the labels of an answer: `x = 5`, `f(x) = 2x`, `m+n = 2+3 = 5`, `x = 1, y = 2`.

`compare` calls it: a label is compared only if both answers have one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .evaluator import TRIGONOMETRIC
from .expressions import same_expressions
from .lexicon import word_set
from .numerals import in_tens
from .shapes import EQUALITIES, defined_function, is_equation, with_binomials
from .tree import MINUS_ONE, Node, TooLarge, Undecided, Undefined, Unknown, names, nodes, substituted
from .values import equal_values

_ACCENT = re.compile("(?:hat|bar|tilde) |°")
_COMPOSED = word_set("add tuple neg div call root list ratio matrix row union intersection")
"""Nodes that are a label if all their parts are labels."""
_OF_SEVERAL = ("gcd", "lcm", "max", "min")
_FAMILIES = ("abcdefgh", "hk", "mn", "pqrs", "st", "rt", "uvw", "xyz")
"""Letters that a tuple has in the order of the alphabet."""


def _is_label(node: Node) -> bool:
    """Return whether the left side of an equation only names the right one: `x`, `f(2)`, `a+b`, `(x,y)`."""
    if node.kind in ("name", "apply", "text", "constant", "bind", "noted"):
        return node.text != "not"
    if node.kind == "mul":
        first, second = node.parts
        event = second.kind in ("relation", "union", "intersection")  # `\\mathbb{P}(X=1)`
        return _is_label(first) and (_is_label(second) or second.kind == "number" or event)  # `P(2)`
    if node.kind == "pow":
        return _is_label(node.parts[0])
    if node.kind == "call" and node.text in (*TRIGONOMETRIC, *_OF_SEVERAL):
        return bool(names(node))  # `\\cos 2\\theta`, `\\gcd(n,n+1)`
    if node.kind in _COMPOSED:
        parts = node.parts[:1] if node.kind == "root" else node.parts
        return all(_is_label(part) for part in parts) and bool(names(node))
    return False


def _is_name(node: Node) -> bool:
    """Return whether the left side of a known equation is only a name of the right one, and no expression."""
    if node.kind in ("name", "text", "constant", "bind", "tuple", "noted", "matrix", "union", "intersection"):
        return True
    if node.kind == "apply":
        return node.text not in ("dot", "cross", "curl", "divergence", "compose")
    if node.kind == "pow":
        return _is_name(node.parts[0]) and node.parts[1] == MINUS_ONE
    if node.kind == "mul":
        function = node.parts[0]
        if node.text != "()":
            return False
        return _is_name(function) or all(part.kind == "name" for part in function.parts)
    if node.kind == "call" and node.text in TRIGONOMETRIC:
        return bool(re.fullmatch(r"[A-Z]|\\[a-z]+|angle .*", node.parts[0].text))  # `\\cos\\theta = 3/5`
    return node.kind == "call" and node.text in ("abs", "det") and _is_name(node.parts[0])


def without_labels(node: Node, other: Node, *, known: bool = False) -> Node:
    """Return the value of `x = 5`, unless the other side is an equation too.

    `known`: whether the node is the known answer, whose equation is more than a label after an expression.
    """
    if node.kind == "set" and other.kind != "set" and all(is_equation(part) for part in node.parts):
        node = Node("list", node.parts, " ".join("," for _ in node.parts[1:]))
    if node.kind == "list":
        return _list_without_labels(node, other)
    if node.kind != "relation":
        return node
    operators = node.text.split()
    if operators[1::2] == ["\\to"] * (len(node.parts) // 2 - 1) and set(operators[::2]) == {"="} != {*operators}:
        pairs = zip(node.parts[::2], node.parts[1::2], strict=True)
        return _conclusion([Node("relation", pair, "=") for pair in pairs]) or node
    if "~" in operators:
        at = operators.index("~")
        kept = at + 1 if at == 0 and _is_label(node.parts[0]) and names(node.parts[0]) else at
        operators = ["=" if operator == "~" else operator for operator in operators[:kept]]
        *parts, last = node.parts[: kept + 1]
        last = last._replace(text="~") if kept > at and last.kind == "number" else last
        node = Node("relation", (*parts, last), " ".join(operators)) if operators else last
    if len(node.parts) > 2 and is_equation(node) and is_equation(other) and len(other.parts) == 2:
        first, *middle, last = node.parts  # `x = 2+3 = 5`
        node = Node("relation", (first, last), "=") if all(_equal_or_unknown(part, last) for part in middle) else node
    if node.kind != "relation" or is_equation(other) or not set(operators) <= EQUALITIES:
        distributed = operators == ["\\sim"] and other.kind != "relation"  # `X \\sim N(0,1)`
        if (distributed or operators == ["\\in"]) and node.kind == "relation" and _is_label(node.parts[0]):
            return node.parts[1]
        return node
    *labels, value = node.parts
    named = _is_name(labels[0]) or (names(labels[0]) and _is_number(labels[0], value))
    if known and len(labels) == 1 and not named:
        return node
    if len(labels) == 1 and _is_label(value) and not _is_label(labels[0]) and value.kind == "name":
        labels, value = [value], labels[0]  # `5 = x`
    for label in labels:
        written_out = label.kind == "add" and any(part.kind == "dots" for part in label.parts)
        remainder = value.kind == "congruent" and not names(label)  # `2^{100} \\equiv 2 \\pmod 7`
        if not (written_out or remainder or _is_label(label) or _equal_or_unknown(label, value)):
            return node
    return value


def _is_number(label: Node, value: Node) -> bool:
    """Return whether an equation states letters or a quotient of names: `AB = 5`, `NPV = 5`, `\\frac{m}{n} = 3`."""
    letters = nodes(label) if label.kind == "mul" else ()
    segment = bool(letters) and all(part.kind == "mul" or re.fullmatch("[A-Z]", part.text) for part in letters)
    quotient = label.kind == "div" and all(part.kind in ("name", "mul") for part in label.parts)
    return (segment or quotient) and not names(value)


def evaluated(node: Node) -> Node:
    r"""Return the value of an equation of numbers, such as `\binom{10}{3} = 120`; other nodes unchanged."""
    if not is_equation(node) or names(node) - {"C", "P"} or any(part.kind == "text" for part in node.parts):
        return node
    *sides, value = (with_binomials(part) for part in node.parts)
    try:
        return value if not names(value) and all(same_expressions(side, value) for side in sides) else node
    except (Unknown, TooLarge, Undefined, Undecided):
        return node


def function_values(given: Node, known: Node) -> tuple[Node, Node] | None:
    """Return the right sides of `f(x)=2x` and `y=2x`, of `y(x)=2x`, and of `f(t)=2t`, with the same argument."""
    if is_equation(given) and is_equation(known):
        (label, *_, value), (second, *_, known_value) = given.parts, known.parts
        named = bool(names(label)) and not (names(label) & names(value) or names(second) & names(known_value))
        pairs = given.text == known.text and len(given.parts) == len(known.parts) == 2
        if named and pairs and _same_label(label, second):
            return value, known_value
        phrase = next((side.text for side in (label, second) if side.kind == "text"), "")
        worded = (label.kind == "text") != (second.kind == "text") and (
            phrase[1:] == phrase[1:].lower() or label.text == second.text
        )
        if _is_term(given, known) or _is_term(known, given) or worded:
            return value, known_value
    functions = [defined_function(side) for side in (given, known)]
    if functions[0] and known.kind != "relation" and len(names(known)) == 1:
        (letter,), argument, value = names(known), functions[0][1], given.parts[1]
        if names(value) == {argument} != {letter} and value.kind != "name":
            return substituted(value, {argument: Node("name", text=letter)}), known
    if functions[0] is None or functions[1] is None or given.parts[0] == known.parts[0]:
        return None
    (name, argument), (other, theirs) = functions[0], functions[1]
    terms = {name, other} <= {"a_", "u_", "t_", "T_"}  # `b_n` may be another sequence of the problem
    if name != other and "y" not in (name, other) and not terms:
        return None
    value = given.parts[1]
    if argument and theirs and argument != theirs:
        if theirs in names(value):
            return None
        value = substituted(value, {argument: Node("name", text=theirs)})
    return value, known.parts[1]


def _same_label(first: Node, second: Node) -> bool:
    r"""Return whether two labels are the same without accents, or of one name of which one has an index: `\theta_c`.

    A number as an index selects one of several values: `x_2 = 5` does not answer `x = 5`.
    """
    if _bare(first) == _bare(second):
        return True
    if {first.kind, second.kind} == {"tuple", "name"}:  # `(x,y,z) =` and `\\vec r =`
        point, vector = (first, second) if first.kind == "tuple" else (second, first)
        position = vector.text in ("vec r", "r")
        return position and [part.text for part in point.parts] == ["x", "y", "z"][: len(point.parts)]
    texts = [_bare(side).text for side in (first, second) if side.kind == "name"]
    if len(texts) < 2:
        return False
    plain, indexed = sorted(texts, key=len)
    return re.fullmatch(re.escape(plain) + r"_(?!\d+\Z).+", indexed) is not None


def _bare(label: Node) -> Node:
    r"""Return a label without its accent, `y` for `\hat{y}`, and the determinant for `|A|`."""
    if label.kind == "call" and label.text == "abs" and re.fullmatch("[A-Z]", label.parts[0].text):
        return label._replace(text="det")
    return label._replace(text=_ACCENT.sub("", label.text)) if label.kind == "name" else label


def _is_term(first: Node, second: Node) -> bool:
    """Return whether two equations define a function as `x` and as `x(t)`."""
    if len(first.parts) != 2 or len(second.parts) != 2:
        return False
    label, term = first.parts[0], second.parts[0]
    if label.kind != "name" or term.kind != "mul" or [part.kind for part in term.parts] != ["name", "name"]:
        return False
    values = [names(side.parts[1]) for side in (first, second)]
    name = term.parts[1].text
    argument = (term.text == "()" or name == "t") and all(name in used and label.text not in used for used in values)
    return argument and label == term.parts[0]


def _equal_or_unknown(label: Node, value: Node) -> bool:
    if value.kind == "quantity" and label.kind != "quantity":
        value = value.parts[0]  # `A = 6 \\cdot 4 = 24 cm^2`
    label, value = in_tens(label), in_tens(value)
    try:
        return equal_values(label, value) or same_expressions(label, value)
    except (Unknown, TooLarge, Undefined):
        return False


def _conclusion(equations: Sequence[Node]) -> Node | None:
    """Return the last of the equations `2x = 20, x = 10`, if it solves the others; None for other lists."""
    *steps, last = equations
    if not all(is_equation(part) and len(part.parts) == 2 for part in equations) or last.parts[0].kind != "name":
        return None
    letter, value = last.parts
    if names(value) or any(names(step) != {letter.text} or letter in step.parts for step in steps):
        return None
    solved = (substituted(step, {letter.text: value}) for step in steps)
    return last if all(_equal_or_unknown(*step.parts) for step in solved) else None


def _list_without_labels(node: Node, other: Node) -> Node:
    """Return `1, 2` for `x = 1, 2` and for `x = 1 or x = 2`; the values by the order of their names for `y=2, x=1`."""
    if all(part.text == "=" and part.parts[0].kind == "text" for part in node.parts):
        noted = (Node("noted", (part.parts[-1],), part.parts[0].text) for part in node.parts)
        return node._replace(parts=tuple(noted))  # `median = 7, mode = 5`
    labelled = [is_equation(part) and part.parts[0].kind == "name" for part in node.parts]
    others = other.parts if other.kind == "list" else ()
    last = None if others else _conclusion(node.parts)
    if last is not None:
        return last
    if not any(labelled) or is_alternative(node):
        return node
    if all(labelled) and others and all(is_equation(part) for part in others):
        ours, theirs = ({part.parts[0].text for part in side} for side in (node.parts, others))
        letters = {label.partition("_")[0] for label in ours | theirs}
        if ours == theirs or len(letters) > 1:
            return node
        return Node("list", tuple(part.parts[-1] for part in node.parts), node.text)  # `x_1=1, x_2=2` and `x=1, x=2`
    if all(labelled):
        values = {part.parts[0].text: part.parts[-1] for part in node.parts}
        letters = {name.partition("_")[0] for name in values}
        vector = other.kind in ("tuple", "matrix") and [*values] == sorted(values)
        if len(letters) < len(node.parts) and not vector:
            return Node("list", tuple(part.parts[-1] for part in node.parts), node.text)
        order = _named_order(other) or _usual_order(list(values))
        return Node("tuple", tuple(values[name] for name in order)) if set(order) == set(values) else node
    if labelled[0] and not any(part.kind == "relation" for part in node.parts[1:]):
        return node._replace(parts=(node.parts[0].parts[-1], *node.parts[1:]))
    return node


def is_alternative(node: Node) -> bool:
    """Return whether a list is `x = 0 or y = 0`: equations of different names, of which one holds."""
    equations = [part for part in node.parts if is_equation(part) and part.parts[0].kind == "name"]
    letters = {part.parts[0].text.partition("_")[0] for part in equations}
    return node.kind == "list" and "or" in node.text.split() and 1 < len(equations) == len(node.parts) == len(letters)


def _named_order(node: Node) -> list[str]:
    """Return the names of `(n,k)=(3,2)` in order; empty for other trees."""
    if not is_equation(node) or node.parts[0].kind != "tuple":
        return []
    return [part.text for part in node.parts[0].parts if part.kind == "name"]


def _usual_order(written: list[str]) -> list[str]:
    """Return names in the order of a tuple: `y, x` is `(x,y)`, but `n, k` remain as they are written."""
    letters = {name.lstrip("\\").lower()[:1] for name in written}
    usual = any(letters <= set(family) for family in _FAMILIES)
    return sorted(written, key=lambda name: name.lstrip("\\")) if usual else written
