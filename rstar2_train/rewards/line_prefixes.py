"""Removes the line numbers and plus signs that listings and diffs write before each line of a program. Pure."""

from __future__ import annotations

import re

_NUMBERED = re.compile(r"[ \t]*+(?P<number>\d++)(?:[ \t]*+[|:\u2502]|\t)(?P<code>.*)")
_LISTED = re.compile(r"[ \t]*+0*+(?P<number>\d++)(?:[ \t]*+[|:\u2502]|[.)]|(?=\s|$))(?P<code>.*)")
"""Also the numbers of a list and those before a space, which an answer without a block has in its text."""
_DIFF_HEADER = re.compile(r"(?:diff |index |new file mode |--- |\+\+\+ |@@ |\\ No newline).*")


def without_numbers(lines: list[str], *, is_block: bool = False) -> list[str] | None:
    """Return the lines without their numbers (`1 | x`, `1: x`, number and tab); None if they do not count from 1.

    `is_block`: the lines are a block of code, whose numbers may also be `1. x`, `1) x`, `1 x` and `01: x`.
    """
    pattern = _LISTED if is_block else _NUMBERED
    matches = [pattern.fullmatch(line) for line in lines]
    counted = [match["number"] for match in matches if match]
    filled = sum(bool(line.strip()) for line in lines)
    if not counted or len(counted) < filled or counted != [str(n + 1) for n in range(len(counted))]:
        return None
    return [match["code"] if match else "" for match in matches]


def added_lines(lines: list[str]) -> list[str] | None:
    """Return the lines that a diff adds; None if it also has lines of an older program, which the answer lacks."""
    body = [line for line in lines if line.strip() and not _DIFF_HEADER.fullmatch(line)]
    return [line[1:] for line in body] if body and all(line.startswith("+") for line in body) else None
