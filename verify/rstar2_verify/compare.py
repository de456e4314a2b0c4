r"""Compares two typed values: what equal means for each pair of types.

`verifier` calls `same_answer` for each reading of both answers. docs and README have the table of types.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from fractions import Fraction

import mpmath
from mpmath import mp

from .amounts import approximated, same_amounts, without_units
from .constants import same_curves, same_spans, with_constants, with_spans
from .declarations import ANY_PARAMETERS, Declared, declared, same_declarations
from .descriptions import described
from .exact import exact
from .expression_grammar import UNNAMED
from .expressions import constant_factor, same_derivatives, same_expressions, without_denominators
from .families import PARAMETERS, has_parity, is_periodic, parameter, same_families, same_residues
from .labels import evaluated, function_values, is_alternative, without_labels
from .numerals import same_numerals
from .pieces import same_pieces
from .propositions import same_propositions
from .real_sets import TURNED, equal_intervals, excluded_points, intervals, is_set, limited_letters, same_integers
from .shapes import (
    EQUALITIES,
    as_bound,
    as_cases,
    as_column,
    as_links,
    as_matrix,
    as_point,
    as_range,
    as_vector,
    components,
    componentwise,
    from_rows,
    in_order,
    members,
    operands,
    same_products,
    spelled_out,
    with_binomials,
    with_first_index,
    with_names,
    with_systems,
)
from .texts import compatible_notes, opposed, repeated, same_directions, unnoted, with_common_note, words_around
from .tree import Node, NotExact, TooLarge, Undecided, Undefined, Unknown, difference, has, names, substituted
from .values import structure

MAX_PAIRED = 40
"""Most members of a list that are compared with each one of another list."""


def same_answer(given: Node, known: Node) -> bool:
    """Return whether two answers are equal, with their declarations. Raises Undecided."""
    propositions = same_propositions(given, known)
    if propositions is not None:
        return propositions
    given, known = described(given, known), described(known, given)
    given, known = (as_cases(with_systems(with_first_index(side))) for side in (given, known))
    given, known = with_names(given, known), with_names(known, given)
    given, known = as_bound(given, known), as_bound(known, given)
    ours, theirs = declared(given, known), declared(known, given)
    if not same_declarations(ours, theirs):
        return False
    given, known = _one_parameter(ours, theirs)
    around = [words_around(side) for side in (given, known)]
    if opposed(*around) or not same_directions(*around):
        return False
    if same(given, known):
        return True
    if _same_parametric(given, known, ours.free, all_integers="Z" in theirs.sets.values()):
        return True
    return bool(ours.sets or theirs.sets) and same_integers(given, known, listed=not theirs.sets)


def _one_parameter(ours: Declared, theirs: Declared) -> tuple[Node, Node]:
    """Return both values with the known answer's name for the only declared parameter."""
    given, known = ours.node, theirs.node
    sides = [names(_values(side)) for side in (given, known)]
    mine = [name for name in ours.sets if name in sides[0]] or [name for name in sides[0] if name in ANY_PARAMETERS]
    letters = ANY_PARAMETERS if _values(known).kind == "tuple" else PARAMETERS
    other = [name for name in theirs.sets if name in sides[1]] or [name for name in sides[1] if name in letters]
    if (ours.sets or theirs.sets) and len(mine) == len(other) == 1 and mine != other and other[0] not in sides[0]:
        given = substituted(given, {mine[0]: Node("name", text=other[0])})
    return given, known


def _values(node: Node) -> Node:
    return node.parts[-1] if node.kind == "relation" and node.text == "=" else node


def _same_parametric(given: Node, known: Node, free: Collection[str], *, all_integers: bool) -> bool:
    """Return whether two values are the same with another letter for an integer parameter or a constant."""
    ours, theirs = parameter(given), parameter(known)
    if ours and theirs and ours != theirs and ours in PARAMETERS and is_periodic(known):
        given = substituted(given, {ours: Node("name", text=theirs)})
        if same(given, known):
            return True
    listed = "list" in (given.kind, known.kind) or has_parity(given) or has("pm", given, known)
    periodic = listed and ours in PARAMETERS and theirs in PARAMETERS and is_periodic(known)
    if (all_integers or periodic) and same_families(given, known):
        return True
    if same_curves(given, known):
        return True
    spanned = with_spans(given, known), with_spans(known, given)
    free = {*free, *(names(spanned[0]) - names(given))}
    given, known = spanned
    renamed = list(with_constants(given, known, free))
    return any(same(node, known) for node in renamed) or any(same_spans(node, known) for node in renamed[:1])


def same(given: Node, known: Node) -> bool:
    """Return whether two values are the same answer."""
    if structure(given) == structure(known):
        return True
    (given, ours), (known, theirs) = (unnoted(with_common_note(side)) for side in (given, known))
    if not compatible_notes(ours, theirs):
        return False
    if {given.kind, known.kind} == {"ratio", "list"} and {"am", "pm"} & {*ours.split(), *theirs.split()}:
        return False  # a time of day is no duration
    last = approximated(given)
    if last != given and same(last, known):
        return True
    amounts = same_amounts(given, known, same)
    if amounts is not None:
        return amounts
    if has("congruent", given, known):
        residues = same_residues(given, known)
        if residues is not None:
            return residues
    given, known = (spelled_out(side) if side.kind == "add" else side for side in (given, known))
    given, known = (evaluated(excluded_points(side)) for side in (given, known))
    given, known = as_point(in_order(given, known), known), as_point(known, given)
    pair = function_values(given, known) or (without_labels(given, known), without_labels(known, given, known=True))
    if pair != (given, known):
        return same(*pair)
    try:
        return _same_kind(given, known)
    except (Unknown, TooLarge, Undefined):
        return structure(given) == structure(known)


def _same_kind(given: Node, known: Node) -> bool:
    """Compare two values without labels by the rule of their types."""
    if known.kind == "matrix":
        given = from_rows(given)
    if {given.kind, known.kind} == {"set", "tuple"}:
        given, known = (
            side.parts[0] if side.kind == "set" and len(side.parts) == 1 else side for side in (given, known)
        )
    if "tuple" not in (given.kind, known.kind):  # the point `C(1,2)`
        given, known = with_binomials(given), with_binomials(known)
    given, known = as_range(given, known), as_range(known, given)
    given, known = componentwise(given), componentwise(known)
    ordered = same_products(given, known)
    if ordered is not None:
        return ordered
    if "based" in (given.kind, known.kind):
        return same_numerals(given, known)
    if is_set(given) or is_set(known):
        return _same_sets(given, known)
    if given.kind == "relation" or known.kind == "relation":
        return given.kind == known.kind and _same_relations(given, known)
    given, known = as_matrix(given, known), as_matrix(known, given)
    given, known = as_vector(given, known), as_vector(known, given)
    if "empty" in (given.kind, known.kind):
        return given.kind == known.kind
    pieces = same_pieces(given, known)
    if pieces is not None:
        return pieces
    if {given.kind, known.kind} == {"matrix", "tuple"}:
        given, known = components(given), components(known)
    if "matrix" in (given.kind, known.kind):
        given, known = as_column(given), as_column(known)
        return _same_matrices(given, known)
    if given.kind == "ratio" or known.kind == "ratio":
        return _same_ratios(given, known)
    collections = ("list", "set", "tuple")
    alternatives = given.kind == "list" and set(given.text.split()) == {"or"}
    if alternatives and known.kind not in collections and not has("pm", known):
        return all(same(part, known) for part in given.parts)  # `1/2 or 0.5`
    if given.kind in collections or known.kind in collections or has("pm", given, known):
        return _is_mixed(given, known) or (
            is_alternative(given) == is_alternative(known) and _same_collections(given, known)
        )
    if "congruent" in (given.kind, known.kind):
        return _same_congruences(given, known)
    return same_expressions(without_units(given), without_units(known))


def _is_mixed(given: Node, known: Node) -> bool:
    """Return whether `2 and 1/4` is a mixed number for a known answer that is one number."""
    if given.kind != "list" or given.text != "and" or len(given.parts) != 2 or known.kind in ("list", "set", "tuple"):
        return False
    whole, part = (unnoted(side)[0] for side in given.parts)
    if part.kind == "quantity" and (known.kind != "quantity" or part.unit == known.unit):
        part, known = part.parts[0], known.parts[0] if known.kind == "quantity" else known
    try:
        return 0 < exact(part) < 1 <= exact(whole) and same(Node("add", (whole, part)), known)
    except (NotExact, Undefined):
        return False


# Collections


def _same_collections(given: Node, known: Node) -> bool:
    dotted = [any(part.kind == "dots" for part in side.parts) for side in (given, known)]
    if all(dotted):
        return _same_progressions(given, known)
    given, known = (spelled_out(side) if any(dotted) else side for side in (given, known))
    truths = [[part.text.lower() for part in side.parts] for side in (given, known)]
    if all(side and set(side) <= {"true", "false", "yes", "no"} for side in truths):
        return truths[0] == truths[1]
    if any(part.kind == "set" for part in (*given.parts, *known.parts)) and "set" in (given.kind, known.kind):
        nested = [sorted(part.kind in ("set", "empty") for part in side.parts) for side in (given, known)]
        if nested[0] != nested[1]:
            return False
    if "tuple" in (given.kind, known.kind) and not has("pm", given, known):
        if "or" in (*given.text.split(), *known.text.split()):
            return False
        return {given.kind, known.kind} <= {"tuple", "list"} and _same_in_order(given.parts, known.parts)
    alternatives = [set(side.text.split()) == {"or"} for side in (given, known)]
    propositions = all(part.kind in ("name", "text") or part.text == "not" for part in (*given.parts, *known.parts))
    if alternatives[0] != alternatives[1] and propositions:
        return False  # the choices `B or D`
    ours, theirs = list(members(given)), list(members(known))
    if "set" in (given.kind, known.kind) or has("pm", given, known):
        ours, theirs = _distinct(ours), _distinct(theirs)
    written = repeated(ours), repeated(theirs)
    counted = [len(full) > len(side) for full, side in zip(written, (ours, theirs), strict=True)]
    return _same_members(*(written if all(counted) or len(ours) != len(theirs) else (ours, theirs)))


def _same_progressions(given: Node, known: Node) -> bool:
    """Compare lists with an ellipsis: another number of terms may be spelled out."""
    sides = []
    for node in (given, known):
        at = [part.kind for part in node.parts].index("dots")
        sides.append((node.parts[:at], node.parts[at + 1 :]))
    (ours, ends), (theirs, known_ends) = sides
    if not _same_in_order(ends, known_ends):
        return False
    shorter, longer = sorted((ours, theirs), key=len)
    if not shorter or not all(same(a, b) for a, b in zip(shorter, longer, strict=False)):
        return False
    try:
        terms = [exact(part) for part in longer]
    except (NotExact, Undefined):
        return len(shorter) == len(longer)
    steps = {second - first for first, second in itertools.pairwise(terms)}
    ratios = {second / first for first, second in itertools.pairwise(terms) if first}
    return len(shorter) == len(longer) or (len(shorter) > 1 and 1 in (len(steps), len(ratios)))


def _key(node: Node) -> tuple[Node, Fraction | None]:
    """Return a key that only equal members have: the fraction that a number without notes has, else its tree."""
    try:
        return UNNAMED, exact(node)
    except (NotExact, Undefined):
        return structure(node), None


def _distinct(members: Sequence[Node]) -> list[Node]:
    kept: list[Node] = []
    by_key = {_key(member): member for member in reversed(members)}
    for key, member in reversed(by_key.items()):
        others = [] if key[1] is not None and len(by_key) > MAX_PAIRED else kept
        if not any(same(member, other) for other in others[:MAX_PAIRED]):
            kept.append(member)
    return kept


def _same_members(ours: list[Node], theirs: list[Node]) -> bool:
    """Return whether two lists have the same members in any order."""
    if len(ours) != len(theirs):
        return False
    notes = [[unnoted(member)[1] for member in side] for side in (ours, theirs)]
    rest = {at: _key(member) for at, member in enumerate(theirs)}
    places: dict[tuple[Node, Fraction | None], list[int]] = {}
    for at, key in rest.items():
        places.setdefault(key, []).append(at)
    left = []
    for member in ours:
        equal = places.get(_key(member))
        if equal:
            del rest[equal.pop()]
        else:
            left.append(member)
    if len(left) > MAX_PAIRED:
        raise Undecided
    for member in left:
        match = next((at for at in rest if same(member, theirs[at]) and _may_pair(member, theirs[at], notes)), None)
        if match is None:
            return False
        del rest[match]
    return True


def _may_pair(given: Node, known: Node, notes: list[list[str]]) -> bool:
    """Return whether two members may be the same: a note that both lists have belongs to one member of each."""
    first, second = unnoted(given)[1], unnoted(known)[1]
    return first == second or not ((first and first in notes[1]) or (second and second in notes[0]))


def _same_in_order(ours: Sequence[Node], theirs: Sequence[Node]) -> bool:
    return len(ours) == len(theirs) and all(same(a, b) for a, b in zip(ours, theirs, strict=True))


def _same_matrices(given: Node, known: Node) -> bool:
    if given.text == known.text == "cases" and given.kind == known.kind and len(given.parts) == len(known.parts):
        return _same_members(*([Node("tuple", row.parts) for row in side.parts] for side in (given, known)))
    if (given.kind, given.text) != (known.kind, known.text) or len(given.parts) != len(known.parts):
        return False
    return all(_same_in_order(a.parts, b.parts) for a, b in zip(given.parts, known.parts, strict=True))


def _same_ratios(given: Node, known: Node) -> bool:
    """Compare `3:2` with `6:4` and with `3/2`."""
    if given.kind != known.kind:
        ratio, other = (given, known) if given.kind == "ratio" else (known, given)
        return len(ratio.parts) == 2 and same_expressions(Node("div", ratio.parts), other)
    first, second = given.parts, known.parts
    return len(first) == len(second) and all(
        same_expressions(Node("mul", (a, second[0])), Node("mul", (b, first[0])))
        for a, b in zip(first[1:], second[1:], strict=True)
    )


def _same_congruences(given: Node, known: Node) -> bool:
    if given.kind == known.kind:
        return all(map(same_expressions, given.parts, known.parts))
    value, other = (given.parts[0], known) if given.kind == "congruent" else (known.parts[0], given)
    return same_expressions(value, other)


# Sets and relations


def _same_sets(given: Node, known: Node) -> bool:
    letters = [limited_letters(side) for side in (given, known)]
    if all(letters) and letters[0] != letters[1]:
        return False  # `y > 4` for `x > 4`
    given, known = spelled_out(given), spelled_out(known)
    try:
        return equal_intervals(intervals(given), intervals(known))
    except Unknown:
        pass
    given, known = as_links(given), as_links(known)
    if given.kind == known.kind == "list":
        either = ["or" in side.text.split() for side in (given, known)]
        return either[0] == either[1] and _same_members(list(given.parts), list(known.parts))
    if given.kind == known.kind == "relation":
        return _same_relations(given, known)
    pair = ("interval", "tuple")
    if given.kind in pair and known.kind in pair:
        brackets = (given.text or "()", known.text or "()")
        return brackets[0] == brackets[1] and _same_in_order(given.parts, known.parts)
    if given.kind == known.kind and given.kind in ("union", "intersection"):
        return _same_members(operands(given), operands(known))
    return structure(given) == structure(known)


def _same_relations(given: Node, known: Node) -> bool:
    ours, theirs = given.text.split(), known.text.split()
    if len(ours) == len(theirs) == 1:
        return _same_simple(given, ours[0], known, theirs[0])
    chains = len(ours) == len(theirs) and {*ours, *theirs} <= EQUALITIES
    return chains and _same_members(list(given.parts), list(known.parts))


def _same_simple(given: Node, ours: str, known: Node, theirs: str) -> bool:
    """Compare two relations of two sides: their differences must agree up to a constant factor."""
    inequality = ours in TURNED
    if not (ours == theirs or (ours in EQUALITIES and theirs in EQUALITIES) or TURNED.get(ours) == theirs):
        return False
    structured = any(
        part.kind in ("tuple", "set", "list", "matrix", "interval") for part in (*given.parts, *known.parts)
    )
    if structured or ours == theirs in ("\\parallel", "\\perp"):
        return _same_in_order(given.parts, known.parts) or _same_in_order(given.parts[::-1], known.parts)
    if ours == theirs == "\\to" or (ours not in EQUALITIES and not inequality and ours != "!="):
        return _same_in_order(given.parts, known.parts)
    sides = given.parts[::-1] if inequality and ours != theirs else given.parts
    first, second = difference(*sides), difference(*known.parts)
    factor = constant_factor(first, second)
    if factor is None and not inequality:
        factor = constant_factor(without_denominators(first), without_denominators(second))
    if factor is None:
        return not inequality and same_derivatives(first, second)
    if inequality:
        return bool(mp.im(factor) == 0 and mp.re(factor) > 0)
    one_letter = any(part.kind in ("name", "apply", "text") for part in known.parts) and len(names(known)) == 1
    return not one_letter or bool(abs(abs(factor) - 1) < mpmath.mpf(10) ** -60)
