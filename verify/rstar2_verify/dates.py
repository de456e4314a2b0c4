r"""Compares dates and times of day: `March 14, 2024`, `2024-03-14`, `3:30 p.m.`, `15:30`, `half past three`.

`verifier` compares both texts here before any other type. Standard library only.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from .lexicon import CARDINALS

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_NAME = (
    r"(jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DAY = r"(?:the\s+)?(\d{1,2})(?:\s*(?:st|nd|rd|th))?"
_YEAR = r"(?:,?\s*(?:in\s+)?(\d{4}))?"
_WEEKDAY = re.compile(
    r"^(?P<first>mon|tues|wednes|thurs|fri|satur|sun)day,?\s+(?:the\s+|at\s+)?(?=.*\d)"
    r"|(?<=\w),?\s+(?:on\s+)?(?P<last>mon|tues|wednes|thurs|fri|satur|sun)day$"
)
_FORMS = (
    (re.compile(rf"{_NAME}\s*{_DAY}{_YEAR}"), "mdy"),
    (re.compile(rf"{_DAY}\s*(?:of\s+)?{_NAME}{_YEAR}"), "dmy"),
    (re.compile(r"(\d{4})[-/](\d{1,2})[-/](\d{1,2})(?:t00:00(?::00)?)?"), "ymd"),
    (re.compile(r"datetime\.date\((\d{4}),\s*(\d{1,2}),\s*(\d{1,2})\)"), "ymd"),
    (re.compile(r"(\d{1,2})/(\d{1,2})/(\d{4})"), "mdy"),
    (re.compile(r"(\d{1,2})[/.](\d{1,2})[/.](\d{4})"), "dmy"),
)
_SHORT = ((re.compile(r"(\d{1,2})/(\d{1,2})()"), "mdy"), (re.compile(r"(\d{1,2})/(\d{1,2})()"), "dmy"))
_HOUR = "|".join(word for word, number in CARDINALS.items() if 1 <= number <= 12)
_TIME = re.compile(
    rf"(?:(?:(?:an? )?(?P<part>half|quarter|\d{{1,2}}(?= minutes)|five|ten|twenty(?:-five)?)(?: minutes)? "
    rf"(?P<relation>past|after|to) )?"
    rf"(?P<hour>\d{{1,2}}|{_HOUR})(?:[:h](?P<minute>\d\d))?(?P<clock> o'?clock)?\s*"
    r"(?P<half>a\.?\s?m\.?|p\.?\s?m\.?|in the (?:morning|afternoon|evening)|at night)?\s*)?(?P<noon>noon|midnight)?"
)
_SEPARATOR = re.compile(r"\s*(?:,|\band\b|\bto\b|(?<=\w)\s*[-\N{EN DASH}])\s*")
_PARTS = {"half": 30, "quarter": 15, "twenty-five": 25} | CARDINALS
_AROUND = re.compile(r"\\(?:text|math)[a-z]*\s*\{([^{}]*)\}|[{}$^]|\\[,;:! ]|^(?:on|at|the)\s+")
_MAX_CHARACTERS = 60
_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def _plain(text: str) -> tuple[str, str]:
    """Return a short text without commands and its weekday, and the weekday."""
    if len(text) > _MAX_CHARACTERS:
        return "", ""
    plain, before = text.strip().lower().replace("~", " "), ""
    while plain != before:
        before, plain = plain, _AROUND.sub(r"\1", plain).strip(" .,")
    day = _WEEKDAY.search(plain)
    return (plain[: day.start()] + plain[day.end() :], day["first"] or day["last"]) if day else (plain, "")


def dates(text: str, *, short: bool = False) -> set[tuple[int, int, int, str]]:
    """Return the readings of a date as (year, month, day, weekday), with 0 and an empty text for missing parts.

    `short`: whether `12/25` is a date, and no fraction.
    """
    readings = set()
    plain, weekday = _plain(text)
    for form, order in (*_FORMS, *_SHORT * short) if re.search(r"\d", plain) else ():
        match = form.fullmatch(plain)
        if match:
            parts = dict(zip(order, match.groups(), strict=True))
            month = parts["m"]
            number = int(month) if month.isdigit() else _MONTHS.index(month[:3]) + 1
            day = int(parts["d"])
            if 1 <= number <= 12 and 1 <= day <= _DAYS[number - 1]:
                readings.add((int(parts["y"] or 0), number, day, weekday))
    return readings


class Time(NamedTuple):
    """A time of day."""

    hour: int
    minute: int
    half: str
    """`am`, `pm`, or an empty text for a clock of 24 hours or a missing half."""
    weekday: str = ""


def times(text: str) -> list[Time]:
    """Return the times of day that a text lists; empty for other texts."""
    plain, weekday = _plain(text)
    whole = _time(plain)
    read = [whole] if whole else [_time(part) for part in _SEPARATOR.split(plain) if part]
    return [time._replace(weekday=weekday) for time in read if time] if all(read) else []


def _time(text: str) -> Time | None:
    match = _TIME.fullmatch(text)
    if match is None or not (match["minute"] or match["half"] or match["part"] or match["clock"] or match["noon"]):
        return None
    half = (match["half"] or "")[:1]
    half = {"": "", "a": "am", "p": "pm"}.get(half, "am" if "morning" in (match["half"] or "") else "pm")
    hour = int(_PARTS.get(match["hour"] or "twelve", match["hour"] or 0))
    minute = int(match["minute"] or 0)
    if match["noon"]:
        half = "pm" if match["noon"] == "noon" else "am"
    if match["part"]:
        minute = int(_PARTS.get(match["part"], match["part"]))
        if match["relation"] == "to":
            hour, minute = (hour - 2) % 12 + 1, 60 - minute
    if hour > 24 or minute > 59:
        return None
    return Time(hour, minute, half)


def same_moments(known: str, answer: str) -> bool | None:
    """Return whether two dates or lists of times are the same; None if the known answer is neither.

    `4:15` is also a ratio: None if the answer is no such time. A ratio would be reduced, so `3:30` is none.
    """
    days = dates(known)
    if days:
        return any(_agree(first, second) for first in days for second in dates(answer, short=True))
    first = times(known)
    if not first:
        return None
    second = times(answer)
    if len(first) == len(second) and all(_same_time(a, b) for a, b in zip(first, second, strict=True)):
        return True
    hour, minute, half, _ = first[0]
    ratio = len(first) == 1 and not half and minute > 0 and (minute < 10 or math.gcd(hour, minute) == 1)
    return None if ratio else False


def _agree(first: tuple[int, int, int, str], second: tuple[int, int, int, str]) -> bool:
    """Return whether two dates are the same; a weekday may be missing."""
    return first[:3] == second[:3] and (not (first[3] and second[3]) or first[3] == second[3])


def _same_time(first: Time, second: Time) -> bool:
    if first.weekday and second.weekday and first.weekday != second.weekday:
        return False
    if bool(first.half) == bool(second.half) or first[:2] == second[:2]:
        return first[:2] == second[:2] and (first.half == second.half or not (first.half and second.half))
    return _hour_of_day(first) == _hour_of_day(second) and first.minute == second.minute


def _hour_of_day(time: Time) -> int:
    return time.hour % 12 + 12 * (time.half == "pm") if time.half else time.hour
