"""Parses JSON without a loss: numbers keep their digits, and an object has each key once. Pure.

Python's own parser keeps the last of repeated keys, and rounds a number to a double. `readers.py` reads rows with this
one, `demonstrations.py` the arguments of calls.
"""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation

from rstar2_train.utils.json_objects import unique_object

MAX_DIGITS = 4000
"""Python does not convert more than 4300 digits to an int."""
EXACT_CHARACTERS = 15
"""Characters of a number, without exponent, that a double always keeps."""


class WrittenInteger(str):
    """An integer with more than MAX_DIGITS digits, as it is written."""


class WrittenFloat(float):
    """A number that a double does not keep. It has the value of the next double."""

    digits: str
    """The number as it is written."""


def json_decoder() -> json.JSONDecoder:
    """Return a decoder, which raises JSONDecodeError, RepeatedKeyError and RecursionError."""
    return json.JSONDecoder(parse_int=_integer, parse_float=_float, object_pairs_hook=unique_object)


def _integer(digits: str) -> int | WrittenInteger:
    return int(digits) if len(digits) <= MAX_DIGITS else WrittenInteger(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if len(digits) <= EXACT_CHARACTERS and "e" not in digits.lower():
        return value
    try:
        if Decimal(repr(value)) == Decimal(digits):
            return value
    except InvalidOperation:  # an exponent of many digits
        pass
    kept = WrittenFloat(value)
    kept.digits = digits
    return kept
