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
    r"[ \t]*+(?:(?i:Line |Ln |L)?+(?P<open><!--|/\*|\*\*|[\[<({])?+)(?(open)[ \t]*+)(?P<number>\d{1,9}+)"
    r"(?(open)[ \t]*+(?:[\]>)}]|\*/|-->|\*\*)"
    r"|(?:[ \t]*+(?:\|\||-->|=>|>{1,2}|[|:\u2502\u2192\u2503\u250a\xa6])|[.),]|[ \t]?-(?=\s|$)|(?=\s|$)))(?P<code>.*)"
)
"""Also numbers in brackets and comments, after `L`, and before other marks, which may start lines of a program."""
_MARK = re.compile(r"[ \t]*+(?P<mark>[>|\u2502\u2022]|//)(?P<code>.*)")
"""A mark before each line of a quotation, a table or a comment."""
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
    """Return the lines of a text that is no Python without their numbers, which count from any number.

    `[1] x`, `<1> x`, `/* 1 */ x` and `L1 x` are numbers too.
    """
    code, _ = _counted(lines, _MARKED)
    return code if len(code) > 1 else None


def without_marks(lines: list[str]) -> list[str]:
    """Return lines without the mark, such as `>` of a quotation, with which all of them start; empty: none."""
    matches = [_MARK.fullmatch(line) for line in lines if line.strip()]
    marks = {match["mark"] if match else "" for match in matches}
    if len(marks) != 1 or "" in marks:
        return []
    return [match["code"] if (match := _MARK.fullmatch(line)) else "" for line in lines]


def numbered_parts(lines: list[str]) -> list[list[str]]:
    """Return each run of at least two numbered lines, without their numbers; other text may be around it."""
    runs: list[list[str]] = []
    next_number = -1
    for line in lines:
        match = _MARKED.fullmatch(line)
        number = int(match["number"]) if match else -1
        if match and number == next_number:
            runs[-1].append(match["code"])
        elif match:
            runs.append([match["code"]])
        elif line.strip():
            next_number = -1
        next_number = number + 1 if match else next_number
    return [run for run in runs if len(run) > 1]


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


def diff_part(lines: list[str]) -> list[str]:
    """Return the lines of a diff without the text around it; empty: there is no diff."""
    changed = [at for at, line in enumerate(lines) if line.startswith("+") or _DIFF_HEADER.fullmatch(line)]
    if not changed:
        return []
    first, last = changed[0], changed[-1]
    while first and lines[first - 1].startswith((" ", "-")):
        first -= 1
    while last + 1 < len(lines) and lines[last + 1].startswith((" ", "-")):
        last += 1
    return lines[first : last + 1]


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
