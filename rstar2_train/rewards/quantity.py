r"""Reads and compares quantities: a number with an optional unit, such as `3.0 \times 10^8 \text{ m/s}`. Pure.

A number without a unit is read by the grammar of `rstar2_verify`, one with a unit by a regular expression. Only a
short unit of a restricted alphabet reaches the units library (pint): its parser evaluates powers, so that a hostile
text could stop the process.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rstar2_verify import read_measure, written

MAX_CHARACTERS = 400
"""Longest text that is read."""
_LATEX = (
    (re.compile(r"\\(?:text|mathrm|rm|textrm|operatorname)\s*\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"\\(?:[,;:! ]|quad|qquad|left|right|displaystyle)|[$~]"), " "),
    (re.compile(r"\\d?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r" (\1)/(\2) "),
    (re.compile(r"\\(?:times|cdot)|[\u00d7·⋅]"), "*"),
    (re.compile(r"\^\s*\{([^{}]*)\}"), r"^\1"),
    (re.compile(r"\^?\\circ|°"), "deg"),
    (re.compile(r"\\(?:Omega|ohm)|Ω"), "ohm"),
    (re.compile(r"\\mu|μ"), "µ"),
    (re.compile(r"\\%"), "%"),
    (re.compile("\N{MINUS SIGN}"), "-"),
)
"""Pattern -> plain text, in this order."""
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_NUMBER = re.compile(
    r"\s*([+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d*)?)(?:[eE]([+-]?\d{1,3})|\s*\*\s*10\s*(?:\^|\*\*)\s*\(?([+-]?\d{1,3})\)?)?"
)
_UNIT = re.compile(r"[A-Za-zµ%/*^() .0-9-]{1,60}")
_FACTOR = r"[A-Za-zµ%]+(?:(?:\^|\*\*)\(?-?\d{1,2}\)?)?"
_JOIN = r"(?: ?[*/] ?| )"
_GROUP = rf"\({_FACTOR}(?:{_JOIN}{_FACTOR})*\)"
_PRODUCT = re.compile(rf"(?:1 ?)?(?:/ ?)?(?:{_FACTOR}|{_GROUP})(?:{_JOIN}(?:{_FACTOR}|{_GROUP}))*")
"""The only form that reaches the units library: names with a power of at most two digits, no power of a power."""
_SPELLINGS = {"Kg": "kg", "KJ": "kJ", "Mol": "mol", "Sec": "s", "sec": "s", "degC": "degC", "deg C": "degC"}
"""Common wrong spelling -> unit."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number and its unit."""

    value: float
    unit: str
    """Unit as text; empty: none."""


def read_quantity(text: str, *, strict: bool = False) -> Quantity | None:
    """Return the quantity of an answer; None if the text is not one number with at most one unit.

    The number may be any constant expression, and may have a label: `x = \\frac{1}{2}`, `2\\pi`, `about 5`.
    `strict`: for a known answer, which has no words around its number.
    """
    if len(text) > MAX_CHARACTERS:
        return None
    measure = None if "%" in text else read_measure(text, strict=strict)
    if measure is not None and not measure[1]:
        return Quantity(measure[0], "")
    plain = _plain_quantity(text)
    if measure is None or (plain is not None and (not plain.unit or _unit(plain.unit) is not None)):
        return plain
    return Quantity(measure[0], written(measure[1]))


def _plain_quantity(text: str) -> Quantity | None:
    """Return the quantity of a number in digits with a unit that pint may know."""
    plain = text.translate(_SUPERSCRIPTS) if not any(mark in text for mark in "⁰¹²³⁴⁵⁶⁷⁸⁹") else _superscripts(text)
    for pattern, replacement in _LATEX:
        plain = pattern.sub(replacement, plain)
    match = _NUMBER.match(plain)
    if match is None or not any(character.isdigit() for character in match[1]):
        return None
    value = float(f"{match[1].replace(',', '')}e{match[2] or match[3] or 0}")
    unit = " ".join(plain[match.end() :].split()).strip("* ").strip()
    if unit and not _UNIT.fullmatch(unit):
        return None
    return Quantity(value, unit) if math.isfinite(value) else None


def equal_quantities(got: Quantity, gold: Quantity, *, relative: float, absolute: float, needs_unit: bool) -> bool:
    """Return whether |got - gold| <= max(absolute, relative |gold|), in the unit of `gold`.

    `needs_unit`: whether an answer without a unit is wrong if `gold` has one. A unit of another dimension, or an
    unknown one, is wrong. Raises ValueError if the unit of `gold` is unknown.
    """
    value = got.value
    if got.unit != gold.unit:
        if not got.unit:
            if needs_unit:
                return False
            if gold.unit == "%" and _is_close(100 * got.value, gold.value, relative=relative, absolute=absolute):
                return True
        else:
            converted = _convert(got, gold.unit)
            if converted is None:
                return False
            value = converted
    return _is_close(value, gold.value, relative=relative, absolute=absolute)


def _is_close(value: float, gold: float, *, relative: float, absolute: float) -> bool:
    return abs(value - gold) <= max(absolute, relative * abs(gold))


def check_unit(unit: str) -> None:
    """Raise ValueError for an unknown unit of a gold answer."""
    if unit and _unit(unit) is None:
        raise ValueError(f"unknown unit {unit!r}")


def _superscripts(text: str) -> str:
    """Return the text with `^` before each run of superscript digits."""
    return re.sub("[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+", lambda run: "^" + run.group().translate(_SUPERSCRIPTS), text)


def _convert(got: Quantity, unit: str) -> float | None:
    """Return the value in another unit; None if it cannot be converted."""
    ours, theirs = _unit(got.unit), _unit(unit) if unit else _unit("dimensionless")
    if theirs is None:
        raise ValueError(f"unknown unit {unit!r}")
    if ours is None:
        return None
    try:
        value = float(_registry().Quantity(got.value, ours).to(theirs).magnitude)
    except Exception:  # pint: DimensionalityError, OffsetUnitCalculusError, OverflowError
        return None
    return value if math.isfinite(value) else None


@lru_cache(maxsize=4096)
def _unit(text: str) -> Any:
    """Return pint's unit of a text; None if it is unknown or could be costly to parse."""
    plain = _SPELLINGS.get(text, text).strip()
    if not _UNIT.fullmatch(plain) or not _PRODUCT.fullmatch(plain):
        return None
    plain = re.sub(r" ?([*/]) ?", r"\1", plain)
    plain = re.sub(r"(?<=[A-Za-zµ%)0-9]) (?=[A-Za-zµ%(])", "*", plain).replace("%", "percent")
    plain = f"1{plain}" if plain.startswith("/") else plain
    try:
        return _registry().parse_units(plain)
    except Exception:  # pint raises errors of tokenizer, AST and registry
        return None


@lru_cache(maxsize=1)
def _registry() -> Any:
    import pint

    return pint.UnitRegistry(autoconvert_offset_to_baseunit=True)
