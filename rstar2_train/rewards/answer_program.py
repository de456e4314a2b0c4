"""Finds the program in an answer: the content of a code fence, or the whole answer. Pure.

Used by the reward `Tests`. The fences are those of CommonMark, also unclosed ones and those whose end follows the code
on the same line.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_OPEN = re.compile(r"([ \t]*)(`{3,}|~{3,})[ \t]*([^`\n]*)")
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
        start = _OPEN.fullmatch(first.rstrip())
        if start is None:
            continue
        indent, fence, label = start.groups()
        language = _LANGUAGE.match(label)
        code: list[str] = []
        for line in lines:
            if _closes(line, fence):
                break
            spaces = len(line) - len(line.lstrip(" \t"))
            code.append(line[min(len(indent), spaces) :])
            if line.rstrip().endswith(fence):
                code[-1] = code[-1].rstrip().removesuffix(fence)
                break
        blocks.append(_Block(language[1].lower() if language else "", "\n".join([*code, ""])))
    return blocks


def _closes(line: str, fence: str) -> bool:
    """Return whether a line ends a block: at least as many marks as its start has, and nothing else."""
    text = line.strip()
    return len(text) >= len(fence) and not text.strip(fence[0])
