r"""Compares dates: `March 14, 2024`, `14th of March 2024`, `2024-03-14`, `3/14/2024`. Standard library only."""

from __future__ import annotations

import re

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_NAME = (
    r"(jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DAY = r"(\d{1,2})(?:\s*(?:st|nd|rd|th))?"
_YEAR = r"(?:,?\s*(\d{4}))?"
_FORMS = (
    (re.compile(rf"{_NAME}\s*{_DAY}{_YEAR}"), "mdy"),
    (re.compile(rf"{_DAY}\s*(?:of\s+)?{_NAME}{_YEAR}"), "dmy"),
    (re.compile(r"(\d{4})[-/](\d{1,2})[-/](\d{1,2})(?:t00:00(?::00)?)?"), "ymd"),
    (re.compile(r"datetime\.date\((\d{4}),\s*(\d{1,2}),\s*(\d{1,2})\)"), "ymd"),
    (re.compile(r"(\d{1,2})/(\d{1,2})/(\d{4})"), "mdy"),
    (re.compile(r"(\d{1,2})[/.](\d{1,2})[/.](\d{4})"), "dmy"),
)
_AROUND = re.compile(
    r"\\(?:text|mathrm)\s*\{([^{}]*)\}|[{}$^]|\\[,; ]|^(?:on|the)\s+|^(?:mon|tues|wednes|thurs|fri|satur|sun)day,?\s+"
)
_MAX_CHARACTERS = 60
_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def dates(text: str) -> set[tuple[int, int, int]]:
    """Return the readings of a date as (year, month, day), with 0 for a missing year; empty for other texts."""
    if len(text) > _MAX_CHARACTERS:
        return set()
    plain, before = text.strip().lower(), ""
    while plain != before:
        before, plain = plain, _AROUND.sub(r"\1", plain).strip(" .,")
    readings = set()
    for form, order in _FORMS:
        match = form.fullmatch(plain)
        if match:
            parts = dict(zip(order, match.groups(), strict=True))
            month = parts["m"]
            number = int(month) if month.isdigit() else _MONTHS.index(month[:3]) + 1
            day = int(parts["d"])
            if 1 <= number <= 12 and 1 <= day <= _DAYS[number - 1]:
                readings.add((int(parts["y"] or 0), number, day))
    return readings


def same_dates(known: str, answer: str) -> bool | None:
    """Return whether two dates are the same; None if one of the texts is no date."""
    first, second = dates(known), dates(answer)
    return bool(first & second) if first and second else None
