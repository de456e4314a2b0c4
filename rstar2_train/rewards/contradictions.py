r"""Finds words of two answers that contradict each other: `20\% increase` and `20\% decrease`, north and east.

`verify.compare` calls it first, because the comparison of values ignores words that are no unit. A word contradicts
only another word of its group, so that an answer without such a word is compared by its value. Pure; standard library
only.
"""

from __future__ import annotations

import re

_GROUPS = [
    re.compile("|".join(rf"(?<![\\a-zA-Z])({item})(?![a-zA-Z])" for item in group), re.IGNORECASE)
    for group in (
        ("forwards?", "backwards?"),
        ("clockwise", "(?:counter|anti)-?clockwise"),
        ("increas(?:e|es|ed|ing)", "decreas(?:e|es|ed|ing)"),
        ("gain(?:ed)?|profit", "loss|lost"),
        ("absorbed", "released"),
        ("AD|CE", "BCE?"),
        ("above", "below"),
        ("before", "after"),
        ("earlier", "later"),
        ("more|greater|larger?|bigger", "less|fewer|small(?:er)?"),
        ("into the page", "out of the page"),
        ("inwards?", "outwards?"),
        ("yes", "no"),
        ("true", "false"),
        ("odd", "even"),
        ("real", "complex|imaginary"),
        ("valid", "extraneous"),
        ("max(?:imum|ima|imi[sz]es?)?", "min(?:imum|ima|imi[sz]es?)?", "saddle"),
    )
]
"""Groups of words of which one excludes the others."""
_WORD = re.compile("[a-zA-Z]{2}")
_DIRECTION = re.compile(
    r"(?<![\\a-zA-Z])(north|south|east|west|up|down|left|right)(?=-?(?:east|west)|(?:wards?)?(?![a-zA-Z]))"
    r"|(?<=north|south)-?(east|west)",
    re.IGNORECASE,
)
_EXTREMUM = re.compile(r"(?<![a-zA-Z])(?:(max)|(min))(?:imum|ima)?(?![a-zA-Z])|(-?\d+(?:\.\d+)?)", re.IGNORECASE)


def contradict(answer: str, gold: str) -> bool:
    """Return whether one text has one word of a group, and the other text another word of it."""
    if not (_WORD.search(answer) and _WORD.search(gold)):
        return False
    for group in _GROUPS:
        ours, theirs = ({match.lastindex for match in group.finditer(text)} for text in (answer, gold))
        if len(ours) == len(theirs) == 1 and ours != theirs:
            return True
    directions = _directions(answer), _directions(gold)
    if all(directions) and directions[0] != directions[1]:
        return True
    extrema = _extrema(answer), _extrema(gold)
    return all(extrema) and extrema[0] != extrema[1]


def _directions(text: str) -> list[str]:
    """Return the directions of a text, in order if it is `north of east`."""
    matches = [(match[1] or match[2]).lower() for match in _DIRECTION.finditer(text)]
    return matches if re.search(r"\bof\b", text) else sorted(matches)


def _extrema(text: str) -> set[tuple[bool, str]]:
    """Return the pairs of maximum or minimum and its number; empty unless the text has both words and two numbers."""
    matches = list(_EXTREMUM.finditer(text))
    if [match.lastindex == 3 for match in matches] not in ([True, False] * 2, [False, True] * 2):
        return set()
    pairs = [(second, first) if first[3] else (first, second) for first, second in (matches[:2], matches[2:])]
    return {(bool(kind[1]), number[3]) for kind, number in pairs}
