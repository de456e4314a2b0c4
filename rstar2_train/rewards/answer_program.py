"""Finds the program in an answer: the content of a code fence, or the whole answer. Pure.

Used by the reward `Tests`. The fences are those of CommonMark, also unclosed ones, those that start after other text
(a sentence, a list marker, a quotation mark), and those whose end follows the code on the same line.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_OPEN = re.compile(r"(?P<before>[ \t]*)(?P<fence>`{3,}|~{3,})[ \t]*(?P<label>[^`]*)")
_OPEN_AFTER_TEXT = re.compile(r"(?P<before>[^`]*)(?P<fence>`{3,})[ \t]*(?P<label>\{?\.?[\w+#-]*\}?)")
_QUOTED = re.compile(r"[ \t]*(?:>[ \t]?)+")
_LIST_MARKER = re.compile(r"[ \t]*(?:[-*+]|\d+[.)])[ \t]+")
_LANGUAGE = re.compile(r"[\s{.]*([\w+#-]*)")
_PYTHON = re.compile(r"(i|c)?py(thon|py)?[\d.]*")
_LIKE_CODE = re.compile(
    r"(?m)^[ \t]*(?:import|from|def|class|for|while|if|with|try|[\w, ]+=)|\b(?:print|input)[ \t]*\("
)


class _Block(NamedTuple):
    language: str
    code: str


def answer_program(answer: str) -> str | None:
    """Return the program in an answer; None if it has no code block.

    Of several code blocks it is the last one in Python; without such a label the last one without a label that looks
    like code, else the last one.
    """
    blocks = _blocks(answer)
    if not blocks:
        return None
    python = [block for block in blocks if _PYTHON.fullmatch(block.language)]
    unlabelled = [block for block in blocks if not block.language and _LIKE_CODE.search(block.code)]
    return (python or unlabelled or blocks)[-1].code


def _blocks(answer: str) -> list[_Block]:
    blocks: list[_Block] = []
    lines = iter(answer.replace("\r\n", "\n").split("\n"))
    for first in lines:
        quoted = _QUOTED.match(first)
        first = first[quoted.end() :].rstrip() if quoted else first.rstrip()
        start = _OPEN.fullmatch(first) or _OPEN_AFTER_TEXT.fullmatch(first)
        if start is None:
            continue
        fence, language = start["fence"], _LANGUAGE.match(start["label"])
        code: list[str] = []
        for line in lines:
            if quoted and (mark := _QUOTED.match(line)):
                line = line[mark.end() :]
            if _closes(line, fence):
                break
            code.append(line)
            if line.rstrip().endswith(fence):
                code[-1] = line.rstrip().removesuffix(fence)
                break
        if any(line.strip() for line in code):
            blocks.append(_Block(language[1].lower() if language else "", _dedented(code, _columns(start["before"]))))
    return blocks


def _columns(before: str) -> int:
    """Return the columns that the start of a fence indents its code by, at most: its spaces and its list marker."""
    marker = _LIST_MARKER.fullmatch(before)
    return len(before) if marker else len(before) - len(before.lstrip(" \t"))


def _dedented(code: list[str], columns: int) -> str:
    """Return the code without the columns that all of its lines are indented by, up to `columns`."""
    common = min(len(line) - len(line.lstrip(" \t")) for line in code if line.strip())
    return "\n".join([*(line[min(columns, common) :] for line in code), ""])


def _closes(line: str, fence: str) -> bool:
    """Return whether a line ends a block: at least as many marks as its start has, and nothing else."""
    text = line.strip()
    return len(text) >= len(fence) and not text.strip(fence[0])
