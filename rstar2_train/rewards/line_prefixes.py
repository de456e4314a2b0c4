"""Removes the line numbers and signs that listings and diffs write before each line of a program. Pure."""

from __future__ import annotations

import re

_NUMBERED = re.compile(
    r"[ \t]*+(?:(?:L|Line )(?=\d++[|:]))?+(?P<number>\d{1,9}+)(?:[ \t]*+[|:\u2502\u2192]|\t)(?P<code>.*)"
)
_LISTED = re.compile(
    r"[ \t]*+(?:(?:L|Line )(?=\d++[|:]))?+0*+(?P<number>\d{1,9}+)"
    r"(?:[ \t]*+[|:\u2502\u2192]|[.)]|[ \t]-(?=\s|$)|(?=\s|$))(?P<code>.*)"
)
"""Also the numbers of a list and those before a space, which an answer without a block has in its text."""
_MARKED = re.compile(
    r"[ \t]*+(?:L|Line )?+(?P<open>[\[<(])?+(?P<number>\d{1,9}+)"
    r"(?(open)[\]>)]|(?:[ \t]*+[|:\u2502\u2192]|[.)]|[ \t]-(?=\s|$)|(?=\s|$)))(?P<code>.*)"
)
"""Also numbers in brackets and after `L`, which a program may have at the start of its lines."""
_DIFF_HEADER = re.compile(r"(?:diff |index |new file mode |--- |\+\+\+ |@@ |\\ No newline|\*\*\* ).*")
_DIFF_START = re.compile(r"\s*(?:diff --git |--- (?:a/|/dev/null)|\*\*\* (?:\w+ Patch\n|Add File: ))")
_WHOLE_FILE = re.compile(r"@@ -[01](?:,\d++)? \+1(?:,\d++)? @@.*")
"""The header of a hunk from the first line of a file."""


def without_numbers(lines: list[str], *, is_block: bool = False) -> list[str] | None:
    """Return the lines without their numbers (`1 | x`, `1: x`, number and tab); None if they do not count from 1.

    `L1: x` and `Line 1: x` are numbers too. `is_block`: the lines are a block of code, whose numbers may also be
    `1. x`, `1) x`, `1 - x`, `1 x` and `01: x`.
    """
    code, first = _counted(lines, _LISTED if is_block else _NUMBERED)
    return code if first == 1 else None


def without_marked_numbers(lines: list[str]) -> list[str] | None:
    """Return the lines of a block that is no Python without their numbers, which count from any number.

    `[1] x`, `<1> x` and `L1 x` are numbers too.
    """
    code, _ = _counted(lines, _MARKED)
    return code if len(code) > 1 else None


def _counted(lines: list[str], pattern: re.Pattern[str]) -> tuple[list[str], int]:
    """Return the lines without their numbers, and the first number; no lines if the numbers do not count them."""
    matches = [pattern.fullmatch(line) for line in lines]
    counted = [int(match["number"]) for match in matches if match]
    filled = sum(bool(line.strip()) for line in lines)
    if not counted or len(counted) < filled or counted != list(range(counted[0], counted[0] + len(counted))):
        return [], 0
    return [match["code"] if match else "" for match in matches], counted[0]


def is_diff(text: str) -> bool:
    """Return whether a text starts like a diff."""
    return _DIFF_START.match(text) is not None


def new_lines(lines: list[str]) -> list[str] | None:
    """Return the lines of the file that a diff writes; None if lines of an older program are missing in the diff.

    None is missing if the diff only adds, or has one hunk, from the first line.
    """
    hunks = [line for line in lines if line.startswith("@@ ")]
    body = [line for line in "\n".join(lines).rstrip().split("\n") if not _DIFF_HEADER.fullmatch(line)]
    if len(hunks) == 1 and _WHOLE_FILE.fullmatch(hunks[0]):
        is_complete = all(line[:1] in ("", " ", "+", "-") for line in body)
        return [line[1:] for line in body if line[:1] != "-"] if is_complete else None
    filled = [line for line in body if line.strip()]
    return [line[1:] for line in filled] if filled and all(line.startswith("+") for line in filled) else None
