r"""Compares two answers by the rules of docs/verification.md: labels, lists, tuples, sets, equations, expressions.

`check` calls `equal` for each pair. Each rule works on trees (`latex`), and on the values of expressions (`values`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import mpmath
from mpmath import mp

from .latex import Unsupported, parse
from .real_sets import TURNED, equal_intervals, excluded_points, intervals, is_set
from .tokens import Node, ParseError
from .values import (
    DIGITS,
    NotExact,
    TooLarge,
    Undefined,
    Unknown,
    equal_values,
    evaluate,
    exact,
    names,
    nodes,
    real_value,
    structure,
)

ROUNDED_DIGITS = 6
"""Decimals, and significant digits, that a rounded decimal must have to stand for an exact value."""
FLOAT_DIGITS = 14
"""Significant digits that must agree when a decimal has more than these: the output of floating-point programs."""
_WORD = re.compile(r"\\(?:text|textrm|textit|textbf|mbox|mathrm|mathit|operatorname)\s*\{\s*([A-Za-z]{2,})\s*\}")
_DERIVED = re.compile(
    r"([a-zA-Z])(?='|\s*\^\s*\{?\\prime)|\\d?dot\s*\{?\s*([a-zA-Z])|frac\s*\{\s*d(?:\s*\^\s*\{?\d\}?)?\s*([a-zA-Z])"
)
_THOUSANDS = re.compile(r"\d,\d{3}(?!\d)")
_DIVISION = re.compile(r"/\s*[\w\\]")
_BASE_10 = re.compile(r"\\?log\s*_\s*\{?\s*10(?!\d)|\\lg(?![a-zA-Z])")
_COMMON_LOG = re.compile(r"\\log(?![a-zA-Z]|\s*_)")
_INTEGER_PARAMETER = re.compile(
    r"(.*?\S)\s*(?:[,;(]|\\(?:text|mbox)\s*\{[^{}]*\}|\s)\s*(?:\\(?:text|mbox)\s*\{[^{}]*\}\s*)?"
    r"([k-n])\s*\\in\s*\\(?:mathbb|Bbb)\s*\{?\s*[ZN]\s*\}?\s*\)?",
    re.DOTALL,
)
_FONTED = r"\\(?:mathbf|hat|vec|boldsymbol|bm|widehat|overrightarrow)\s*"
_LETTER = r"(?:\\[ij]math|[ijk])(?![a-zA-Z])"
_UNIT_VECTOR = re.compile(
    rf"{_FONTED}(?:\{{\s*{_FONTED}(?:\{{\s*{_LETTER}\s*\}}|{_LETTER})\s*\}}|\{{\s*{_LETTER}\s*\}}|{_LETTER})"
)
_BARE_VECTOR = re.compile(r"(\\[a-zA-Z]+)|(?<![a-zA-Z_])([ijk])(?![a-zA-Z])")
_VECTOR = r"\nabla"
"""Name of a unit vector; its subscript is the letter."""
_EQUALITIES = frozenset(["=", "\\equiv", "\\to"])


def equal(answer: str, gold: str) -> bool:
    """Return whether an answer equals the gold answer.

    Ambiguous texts are read in each way, in both answers alike: `a/bc`, and `1,234` as one number or as two. Raises
    Unsupported for an operator of analysis, Undecided, and RecursionError.
    """
    answer, gold = _with_unit_vectors(*_with_one_parameter(*_without_arguments(answer, gold)))
    compounds = frozenset(_WORD.findall(answer) + _WORD.findall(gold))
    readings = [(True, False)]
    if _DIVISION.search(answer) or _DIVISION.search(gold):
        readings.append((True, True))
    if _THOUSANDS.search(answer) or _THOUSANDS.search(gold):
        readings.append((False, False))
    if _BASE_10.search(answer) or _BASE_10.search(gold):
        answer, gold = (_COMMON_LOG.sub(r"\\log_{10}", text) for text in (answer, gold))
    for commas, tight in readings:
        try:
            known = parse(gold, compounds, commas=commas, tight=tight)
        except Unsupported:
            raise
        except ParseError:
            if _bare(answer) == _bare(gold):
                return True
            continue
        try:
            given = parse(answer, compounds, commas=commas, tight=tight)
        except Unsupported:
            raise
        except ParseError:
            continue
        if not commas and known.kind != "set":
            known, given = _as_tuple(known), _as_tuple(given)
        if same(given, known):
            return True
    return False


def _bare(text: str) -> str:
    """Return a text without spaces, braces and fonts."""
    return re.sub(r"\\(?:text|mathrm|mbox|left|right|[,;:! ])|[\s{}$]", "", text)


def _as_tuple(node: Node) -> Node:
    return Node("tuple", node.parts) if node.kind == "list" else node


def _without_arguments(*texts: str) -> list[str]:
    """Return the texts with `y` for `y(t)` when one of them has a derivative of y."""
    letters = {letter for text in texts for match in _DERIVED.finditer(text) for letter in match.groups() if letter}
    result = list(texts)
    for letter in letters:
        argument = re.compile(rf"(\\[a-zA-Z]+)|({letter})\s*\(\s*[a-zA-Z]\s*\)")
        result = [argument.sub(lambda match: match[1] or f"{match[2]} ", text) for text in result]
    return result


def _with_one_parameter(answer: str, gold: str) -> tuple[str, str]:
    r"""Return the texts without `, k\in\mathbb{Z}`, with the gold answer's letter if one declares it."""
    matches = [_INTEGER_PARAMETER.fullmatch(text) for text in (answer, gold)]
    if not any(matches):
        return answer, gold
    answer, gold = (match[1] if match else text for match, text in zip(matches, (answer, gold), strict=True))
    used = [set(re.sub(r"\\[a-zA-Z]+", "", text)).intersection("klmn") for text in (answer, gold)]
    if len(used[0]) == len(used[1]) == 1:
        (given,), (known,) = used
        answer = re.sub(rf"(\\[a-zA-Z]+)|{given}", lambda match: match[1] or known, answer)
    return answer, gold


def _with_unit_vectors(answer: str, gold: str) -> tuple[str, str]:
    (
        r"""Return the texts with names for unit vectors (`\mathbf{i}`, `\hat{j}`) if one has them; then `i` is one."""
        ""
    )
    if not any(_UNIT_VECTOR.search(text) for text in (answer, gold)):
        return answer, gold
    answer, gold = (
        _UNIT_VECTOR.sub(lambda match: next(letter for letter in reversed(match[0]) if letter in "ijk"), text)
        for text in (answer, gold)
    )
    first, second = (
        _BARE_VECTOR.sub(lambda match: match[1] or f" {_VECTOR}_{match[2]} ", text) for text in (answer, gold)
    )
    return first, second


def same(given: Node, known: Node) -> bool:
    """Return whether two trees are the same answer."""
    if structure(given) == structure(known):
        return True
    given, known = excluded_points(given), excluded_points(known)
    given, known = _function_values(given, known) or (_without_labels(given, known), _without_labels(known, given))
    try:
        return _same_kind(given, known)
    except (Unknown, TooLarge, Undefined):
        return structure(given) == structure(known)


def _same_kind(given: Node, known: Node) -> bool:
    """Compare two trees without labels by the rule of their kinds."""
    if is_set(given) or is_set(known):
        return _same_sets(given, known)
    if given.kind == "relation" or known.kind == "relation":
        return given.kind == known.kind and _same_relations(given, known)
    given, known = _as_vector(given, known), _as_vector(known, given)
    given, known = _as_matrix(given), _as_matrix(known)
    if "empty" in (given.kind, known.kind):
        return given.kind == known.kind
    if "matrix" in (given.kind, known.kind):
        given, known = _as_column(given), _as_column(known)
        return _same_matrices(given, known)
    if given.kind == "ratio" or known.kind == "ratio":
        return _same_ratios(given, known)
    if given.kind == "apply" and len(given.parts) > 1 and known.kind == "tuple":
        given = Node("tuple", given.parts)  # `P(1,2)`
    given, known = _with_binomials(given), _with_binomials(known)
    collections = ("list", "set", "tuple")
    if given.kind in collections or known.kind in collections or _has_signs(given) or _has_signs(known):
        return _same_collections(given, known)
    if "congruent" in (given.kind, known.kind):
        return _same_congruences(given, known)
    return same_expressions(given, known)


# Labels


def _is_label(node: Node) -> bool:
    """Return whether the left side of an equation only names the right one: `x`, `f(2)`, `a+b`, `(x,y)`."""
    if node.kind in ("name", "apply", "text", "constant"):
        return True
    if node.kind == "mul":
        first, second = node.parts
        return _is_label(first) and (_is_label(second) or second.kind == "number")  # `P(2)`
    if node.kind == "pow":
        return _is_label(node.parts[0])
    if node.kind in ("add", "tuple", "neg", "div", "call", "root", "list", "ratio"):
        parts = node.parts[:1] if node.kind == "root" else node.parts
        return all(_is_label(part) for part in parts) and bool(names(node))
    return False


def _without_labels(node: Node, other: Node) -> Node:
    """Return the value of `x = 5`, unless the other side is an equation too."""
    if node.kind == "list":
        return _list_without_labels(node, other)
    if (
        node.kind == "set"
        and len(node.parts) == 1
        and node.parts[0].kind != "empty"
        and other.kind not in ("set", "union", "difference", "builder")
    ):
        return node.parts[0]
    if node.kind != "relation":
        return node
    operators = node.text.split()
    if "~" in operators:
        at = operators.index("~")
        kept = at + 1 if at == 0 and _is_label(node.parts[0]) and names(node.parts[0]) else at
        operators = ["=" if operator == "~" else operator for operator in operators[:kept]]
        node = Node("relation", node.parts[: kept + 1], " ".join(operators)) if operators else node.parts[0]
    if node.kind == "relation" and len(node.parts) > 2 and _is_equation(other) and len(other.parts) == 2:
        node = _shortened(node)
    if node.kind != "relation" or _is_equation(other) or not set(operators) <= _EQUALITIES:
        if operators == ["\\in"] and node.kind == "relation" and _is_label(node.parts[0]):
            return node.parts[1]
        return node
    *labels, value = node.parts
    if len(labels) == 1 and _is_label(value) and not _is_label(labels[0]) and value.kind == "name":
        labels, value = [value], labels[0]  # `5 = x`
    for label in labels:
        if not _is_label(label) and not _equal_or_unknown(label, value):
            return node
    return value


def _function_values(given: Node, known: Node) -> tuple[Node, Node] | None:
    """Return the right sides of `f(x)=2x` and `y=2x`, of `y(x)=2x`, and of `f(t)=2t`, with the same argument."""
    if _is_equation(given) and _is_equation(known) and (_has_signs(given) or _has_signs(known)):
        same_label = given.parts[0] == known.parts[0] and given.parts[0].kind == "name"
        return (given.parts[-1], known.parts[-1]) if same_label else None
    functions = [_function(side) for side in (given, known)]
    if functions[0] is None or functions[1] is None or functions[0] == functions[1]:
        return None
    (name, argument), (other, theirs) = functions[0], functions[1]
    if name != other and "y" not in (name, other):
        return None
    value = given.parts[1]
    if argument and theirs and argument != theirs:
        if theirs in names(value):
            return None
        value = _substituted(value, {argument: Node("name", text=theirs)})
    return value, known.parts[1]


def _function(node: Node) -> tuple[str, str] | None:
    """Return the name and the argument of the function that an equation defines; an empty argument for `y = 2x`."""
    if not _is_equation(node) or len(node.parts) != 2:
        return None
    left = node.parts[0]
    if left == Node("name", text="y"):
        return "y", ""
    if left.kind == "apply" and len(left.parts) == 1 and left.parts[0].kind == "name":
        return left.text, left.parts[0].text
    if left.kind == "mul" and [part.kind for part in left.parts] == ["name", "name"] and left.parts[0].text == "y":
        return "y", left.parts[1].text
    return None


def _shortened(node: Node) -> Node:
    """Return `x = 5` for `x = 2+3 = 5`."""
    first, *middle, last = node.parts
    if set(node.text.split()) <= _EQUALITIES and all(_equal_or_unknown(part, last) for part in middle):
        return Node("relation", (first, last), "=")
    return node


def _equal_or_unknown(label: Node, value: Node) -> bool:
    try:
        return equal_values(label, value)
    except (Unknown, TooLarge, Undefined):
        return False


def _is_equation(node: Node) -> bool:
    return node.kind == "relation" and set(node.text.split()) <= _EQUALITIES


def _list_without_labels(node: Node, other: Node) -> Node:
    """Return `1, 2` for `x = 1, 2` and for `x = 1 or x = 2`; the values by the order of their names for `y=2, x=1`."""
    labelled = [_is_equation(part) and part.parts[0].kind == "name" for part in node.parts]
    others = other.parts if other.kind == "list" else ()
    if not any(labelled):
        return node
    if all(labelled) and others and all(_is_equation(part) for part in others):
        ours, theirs = ({part.parts[0].text for part in side} for side in (node.parts, others))
        letters = {label.partition("_")[0] for label in ours | theirs}
        if ours == theirs or len(letters) > 1:
            return node
        return Node("list", tuple(part.parts[-1] for part in node.parts), node.text)  # `x_1=1, x_2=2` and `x=1, x=2`
    if all(labelled):
        ordered = sorted(node.parts, key=lambda part: part.parts[0].text)
        values = tuple(part.parts[-1] for part in ordered)
        different = len({part.parts[0].text for part in node.parts}) == len(node.parts)
        letters = {part.parts[0].text.partition("_")[0] for part in node.parts}
        ordered_names = different and len(letters) == len(node.parts)
        return Node("tuple" if ordered_names else "list", values, "," if not ordered_names else "")
    if labelled[0] and not any(labelled[1:]):
        return node._replace(parts=(node.parts[0].parts[-1], *node.parts[1:]))
    return node


# Collections


def _has_signs(node: Node) -> bool:
    return any(part.kind == "pm" for part in nodes(node))


def _signed(node: Node, upper: bool) -> Node:
    """Return a tree with the upper or the lower signs of all its plus-minus signs."""
    if node.kind == "pm":
        inner = _signed(node.parts[0], upper)
        if upper == (node.text == "pm"):
            return inner
        if inner.kind == "tuple":
            return Node("tuple", tuple(Node("neg", (part,)) for part in inner.parts))
        return Node("neg", (inner,))
    return node._replace(parts=tuple(_signed(part, upper) for part in node.parts))


def _members(node: Node) -> Iterator[Node]:
    """Yield the members of a list or set, with both signs of a plus-minus sign."""
    for part in node.parts if node.kind in ("list", "set") else (node,):
        if _has_signs(part):
            yield from (_signed(part, upper=True), _signed(part, upper=False))
        else:
            yield part


def _same_collections(given: Node, known: Node) -> bool:
    if "tuple" in (given.kind, known.kind) and not (_has_signs(given) or _has_signs(known)):
        if {given.kind, known.kind} <= {"tuple", "list"} and len(given.parts) == len(known.parts):
            return all(same(a, b) for a, b in zip(given.parts, known.parts, strict=True))
        if given.kind in ("tuple", "set") or known.kind in ("tuple", "set"):
            return False
    if {given.text, known.text} == {"and", "or"} and all(part.kind == "name" for part in given.parts):
        return False  # `p \\land q`
    ours, theirs = list(_members(given)), list(_members(known))
    if "set" in (given.kind, known.kind) or _has_signs(given) or _has_signs(known):
        ours, theirs = _distinct(ours), _distinct(theirs)
    return _same_members(ours, theirs)


def _distinct(members: Sequence[Node]) -> list[Node]:
    kept: list[Node] = []
    for member in members:
        if not any(same(member, other) for other in kept):
            kept.append(member)
    return kept


def _same_members(ours: list[Node], theirs: list[Node]) -> bool:
    """Return whether two lists have the same members in any order."""
    if len(ours) != len(theirs):
        return False
    rest = list(theirs)
    for member in ours:
        match = next((at for at, other in enumerate(rest) if same(member, other)), None)
        if match is None:
            return False
        del rest[match]
    return True


def _as_vector(node: Node, other: Node) -> Node:
    r"""Return the tuple or the matrix of the components of `3\mathbf{i}+4\mathbf{j}`, like the other side."""
    letters = [f"{_VECTOR}_{letter}" for letter in "ijk"]
    used = names(node).intersection(letters)
    if not used or other.kind not in ("tuple", "matrix") or not used.issubset(letters[: len(other.parts)]):
        return node
    parts = tuple(_substituted(node, {name: _number(name == letter) for name in letters}) for letter in letters)
    parts = parts[: len(other.parts)]
    return (
        Node("tuple", parts)
        if other.kind == "tuple"
        else Node("matrix", tuple(Node("row", (p,)) for p in parts), "matrix")
    )


def _number(value: int) -> Node:
    return Node("number", number=Fraction(value))


def _substituted(node: Node, values: Mapping[str, Node]) -> Node:
    """Return a tree with other nodes for some names."""
    if node.kind == "name" and node.text in values:
        return values[node.text]
    return node._replace(parts=tuple(_substituted(part, values) for part in node.parts))


def _as_matrix(node: Node) -> Node:
    r"""Return the matrix that is written as a number times a matrix."""
    operands = [part for part in node.parts if part.kind == "matrix" and part.text == "matrix"]
    if (
        node.kind not in ("mul", "neg", "div")
        or len(operands) != 1
        or (node.kind == "div" and node.parts[0].kind != "matrix")
    ):
        return node

    def scaled(cell: Node) -> Node:
        return node._replace(parts=tuple(cell if part is operands[0] else part for part in node.parts))

    rows = (row._replace(parts=tuple(map(scaled, row.parts))) for row in operands[0].parts)
    return operands[0]._replace(parts=tuple(rows))


def _as_column(node: Node) -> Node:
    r"""Return the column vector that is written as `\binom{1}{2}`."""
    if node.kind != "call" or node.text != "binom":
        return node
    return Node("matrix", tuple(Node("row", (part,)) for part in node.parts), "matrix")


def _with_binomials(node: Node) -> Node:
    """Return a tree with binomial coefficients for `C(10,3)`."""
    parts = tuple(_with_binomials(part) for part in node.parts)
    if node.kind == "apply" and node.text == "C" and len(parts) == 2:
        return Node("call", parts, "binom")
    return node._replace(parts=parts)


def _same_matrices(given: Node, known: Node) -> bool:
    return (
        given.kind == known.kind
        and given.text == known.text
        and (
            [len(row.parts) for row in given.parts] == [len(row.parts) for row in known.parts]
            and all(
                same(a, b)
                for mine, other in zip(given.parts, known.parts, strict=True)
                for a, b in zip(mine.parts, other.parts, strict=True)
            )
        )
    )


def _same_ratios(given: Node, known: Node) -> bool:
    """Compare `3:2` with `6:4` and with `3/2`."""
    if given.kind != known.kind:
        ratio, other = (given, known) if given.kind == "ratio" else (known, given)
        return len(ratio.parts) == 2 and same_expressions(Node("div", ratio.parts), other)
    first, second = given.parts, known.parts
    if _is_clock(known):
        return given == known
    return len(first) == len(second) and all(
        same_expressions(Node("mul", (a, second[0])), Node("mul", (b, first[0])))
        for a, b in zip(first[1:], second[1:], strict=True)
    )


def _is_clock(node: Node) -> bool:
    """Return whether a ratio is a time of day, such as `3:30`: a ratio would be reduced."""
    numbers = [part.number for part in node.parts if part.kind == "number" and part.number.denominator == 1]
    if len(node.parts) != 2 or len(numbers) != 2 or numbers[0] > 24 or numbers[1] > 59:
        return False
    return numbers[1] == 0 or (numbers[1] >= 10 and math.gcd(numbers[0].numerator, numbers[1].numerator) > 1)


def _same_congruences(given: Node, known: Node) -> bool:
    if given.kind == known.kind:
        (value, modulus), (other, theirs) = given.parts, known.parts
        if not same_expressions(modulus, theirs):
            return False
        try:
            return (exact(value) - exact(other)) % exact(modulus) == 0
        except (NotExact, Undefined, ZeroDivisionError):
            return same_expressions(value, other)
    value, other = (given.parts[0], known) if given.kind == "congruent" else (known.parts[0], given)
    return same_expressions(value, other)


# Sets and relations


def _same_sets(given: Node, known: Node) -> bool:
    try:
        return equal_intervals(intervals(given), intervals(known))
    except Unknown:
        pass
    if given.kind == known.kind == "list":
        return _same_members(list(given.parts), list(known.parts))
    if given.kind == known.kind == "relation":
        return _same_relations(given, known)
    pair = ("interval", "tuple")
    if given.kind in pair and known.kind in pair:
        brackets = (given.text or "()", known.text or "()")
        return brackets[0] == brackets[1] and all(same(a, b) for a, b in zip(given.parts, known.parts, strict=True))
    if given.kind == known.kind and given.kind in ("union", "intersection"):
        return _same_members(_operands(given), _operands(known))
    return structure(given) == structure(known)


def _operands(node: Node) -> list[Node]:
    """Return the operands of nested unions or intersections."""
    return [inner for part in node.parts for inner in (_operands(part) if part.kind == node.kind else [part])]


def _same_relations(given: Node, known: Node) -> bool:
    ours, theirs = given.text.split(), known.text.split()
    if len(ours) == len(theirs) == 1:
        return _same_simple(given, ours[0], known, theirs[0])
    if len(ours) != len(theirs):
        return False
    if set(ours) <= _EQUALITIES and set(theirs) <= _EQUALITIES:
        return _same_members(list(given.parts), list(known.parts))
    turned = tuple(reversed(given.parts)), [TURNED.get(operator, operator) for operator in reversed(ours)]
    return any(
        operators == theirs and all(same(a, b) for a, b in zip(operands, known.parts, strict=True))
        for operands, operators in ((given.parts, ours), turned)
    )


def _difference(node: Node, turned: bool) -> Node:
    left, right = reversed(node.parts) if turned else node.parts
    return Node("add", (left, Node("neg", (right,))))


def _same_simple(given: Node, ours: str, known: Node, theirs: str) -> bool:
    """Compare two relations of two sides: their differences must agree up to a constant factor."""
    inequality = ours in TURNED
    if not (ours == theirs or (ours in _EQUALITIES and theirs in _EQUALITIES) or TURNED.get(ours) == theirs):
        return False
    if given.parts[1].kind == known.parts[1].kind == "congruent":
        return same(given.parts[0], known.parts[0]) and _same_congruences(given.parts[1], known.parts[1])
    if any(part.kind in ("tuple", "set", "list", "matrix", "interval") for part in (*given.parts, *known.parts)):
        return any(
            all(same(a, b) for a, b in zip(sides, known.parts, strict=True))
            for sides in (given.parts, tuple(reversed(given.parts)))
        )
    if ours == theirs == "\\to" or (ours not in _EQUALITIES and not inequality and ours != "!="):
        return all(same(a, b) for a, b in zip(given.parts, known.parts, strict=True))
    first, second = _difference(given, inequality and ours != theirs), _difference(known, turned=False)
    if _texts(first) != _texts(second):
        return False
    factor = constant_factor(first, second)
    if factor is None:
        return not inequality and _same_derivatives(first, second)
    if inequality:
        return bool(mp.im(factor) == 0 and mp.re(factor) > 0)
    one_letter = any(part.kind in ("name", "apply", "text") for part in known.parts) and len(names(known)) == 1
    return not one_letter or bool(abs(abs(factor) - 1) < mpmath.mpf(10) ** -60)


def _same_derivatives(first: Node, second: Node) -> bool:
    """Return whether two differential equations differ by a factor that has no unknown function: `mx''=kx`, `x''=kx/m`.

    `first`, `second`: the differences of their sides. The factor must not change with the values of the functions.
    """
    unknown = {name.rstrip("'") for name in names(second) if name.endswith("'")}
    if not unknown or names(first) != names(second):
        return False
    others = {name: Node("name", text=f"{name}_*") for name in names(second) if name.rstrip("'") in unknown}
    pairs = [(first, second), (_substituted(first, others), _substituted(second, others))]
    with mp.workdps(2 * DIGITS):
        for point in range(3):
            values = [[evaluate(side, point, 2 * DIGITS)[0] for side in pair] for pair in pairs]
            if any(abs(value) < mpmath.mpf(10) ** -DIGITS for pair in values for value in pair):
                return False
            (a, b), (c, d) = values
            if abs(a * d - b * c) > abs(a * d) * mpmath.mpf(10) ** -100:
                return False
    return True


def constant_factor(first: Node, second: Node) -> Any:
    """Return the factor between two expressions that is the same at all sample points; None if there is none."""
    letters = names(first) | names(second)
    if not letters or names(first) != names(second):
        return None
    factor = None
    with mp.workdps(2 * DIGITS):
        for point in range(5):
            a, b = (evaluate(side, point, 2 * DIGITS)[0] for side in (first, second))
            if abs(a) < mpmath.mpf(10) ** -DIGITS or abs(b) < mpmath.mpf(10) ** -DIGITS:
                return None
            if factor is None:
                factor = a / b
            elif abs(a - factor * b) > abs(a) * mpmath.mpf(10) ** -100:
                real = abs(mp.im(a)) + abs(mp.im(b)) == 0
                if real or point < 3:
                    return None
    return factor


# Expressions


def _texts(node: Node) -> set[str]:
    return {part.text for part in nodes(node) if part.kind == "text"}


def same_expressions(given: Node, known: Node) -> bool:
    """Return whether two expressions are equal, or one is the other one rounded. Raises Unknown and Undecided."""
    if _texts(given) != _texts(known):
        return False
    ours, theirs = decimal(given), decimal(known)
    if (ours is None) != (theirs is None):
        rounded = is_rounded(ours, known) if ours else is_rounded(theirs, given) if theirs else False
        if rounded:
            return True
    return equal_values(given, known)


def decimal(node: Node) -> tuple[Fraction, int] | None:
    r"""Return (value, decimals) of a number that is written as a decimal, such as `-1.5` and `1.5 \cdot 10^{-9}`."""
    if node.kind == "number":
        return None if node.decimals is None else (node.number, node.decimals)
    if node.kind == "neg":
        inner = decimal(node.parts[0])
        return None if inner is None else (-inner[0], inner[1])
    if node.kind in ("mul", "div"):
        inner = decimal(node.parts[0])
        power = _power_of_ten(node.parts[1])
        if inner is None or power is None:
            return None
        power = power if node.kind == "mul" else -power
        return inner[0] * Fraction(10) ** power, inner[1] - power
    return None


def _power_of_ten(node: Node) -> int | None:
    """Return k for `10^k` with a moderate k."""
    if node.kind != "pow" or node.parts[0] != Node("number", number=Fraction(10)):
        return None
    try:
        exponent = exact(node.parts[1])
    except (NotExact, Undefined):
        return None
    return exponent.numerator if exponent.denominator == 1 and abs(exponent) <= 400 else None


def is_rounded(rounded: tuple[Fraction, int], value: Node) -> bool:
    """Return whether a decimal is the real value of a tree, rounded to its digits."""
    number, decimals = rounded
    if number == 0:
        return False
    unit = Fraction(10) ** -decimals
    digits = len(str(abs(number) // unit))
    if decimals < ROUNDED_DIGITS or digits < ROUNDED_DIGITS:
        return False
    tolerance = unit / 2
    if digits > FLOAT_DIGITS:
        tolerance = max(tolerance, abs(number) / 10**FLOAT_DIGITS)
    real = real_value(value)
    with mp.workdps(DIGITS):
        difference = abs(real - mpmath.mpf(number.numerator) / number.denominator)
        return bool(difference <= mpmath.mpf(tolerance.numerator) / tolerance.denominator)
