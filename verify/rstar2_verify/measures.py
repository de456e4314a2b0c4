"""Reads one number with its unit, for a comparison with tolerances: `x = \\frac12`, `1.0 x 10^3 kg`, `about 5`."""

from __future__ import annotations

import math

from .extract import final_answer
from .grammar import Reading, parse, tokenized
from .lexicon import NEUTRAL
from .texts import unnoted
from .tree import Node, ParseError, Unknown
from .units import Unit
from .values import real_value


def read_measure(text: str, *, strict: bool = False) -> tuple[float, Unit] | None:
    """Return the number and the unit of an answer; None if it is not one real number. A label is ignored.

    `strict`: for a known answer, which has no words around its number.

    A word next to it that is no unit may be one that is unknown: then there is no measure.
    """
    try:
        node = parse(tokenized(final_answer(text), Reading()), Reading())
    except (ParseError, RecursionError):
        return None
    node, notes = unnoted(node)
    if node.kind == "relation" and set(node.text.split()) <= {"=", "~"} and node.parts[0].kind == "name":
        node, inner = unnoted(node.parts[-1])
        notes += " " + inner
    if not NEUTRAL.issuperset(notes.split()) or (strict and notes.strip()):
        return None
    unit: Unit = ()
    if node.kind == "quantity":
        node, unit = node.parts[0], node.unit
    value = _value(node)
    return None if value is None else (value, unit)


def _value(node: Node) -> float | None:
    try:
        number = float(real_value(node))
    except Unknown:
        return None
    return number if math.isfinite(number) else None
