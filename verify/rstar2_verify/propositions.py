r"""Compares formulas of logic by their truth tables: `p \to q` is `\neg p \lor q`.

`compare` calls it. Pure functions of typed values; standard library only.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from .tree import Node, Unknown, names

MAX_LETTERS = 6
"""Most letters of a formula: its table has 64 rows."""
_CONNECTIVES = {"and": all, "or": any}


def same_propositions(given: Node, known: Node) -> bool | None:
    """Return whether two formulas have one truth table; None if one of them is no formula with a connective."""
    letters = sorted(names(given) | names(known))
    if len(letters) > MAX_LETTERS or "name" in (given.kind, known.kind):
        return None
    rows = (dict(zip(letters, row, strict=True)) for row in itertools.product((False, True), repeat=len(letters)))
    try:
        return all(_truth(given, row) == _truth(known, row) for row in rows)
    except Unknown:
        return None


def _truth(node: Node, row: Mapping[str, bool]) -> bool:
    """Return the truth of a formula in a row. Raises Unknown for other values."""
    if node.kind == "name" and len(node.text) == 1 and node.text in row:
        return row[node.text]
    parts = [_truth(part, row) for part in node.parts]
    match node.kind, node.text.split(), parts:
        case "apply" | "noted", ["not"], [inner]:
            return not inner
        case "list", ["and" | "or" as operator, *others], _ if set(others) <= {operator}:
            return _CONNECTIVES[operator](parts)
        case "relation", ["\\to"], [first, second]:
            return second or not first
        case "relation", ["\\iff"], [first, second]:
            return first == second
    raise Unknown
