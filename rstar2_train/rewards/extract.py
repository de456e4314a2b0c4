r"""Finds the final answer in the model's text: the last `<answer>` block, and the last `\boxed{}` inside it.

The text has no tool output: a number that a tool printed, or a number outside of the answer block, is not an answer.
Pure; standard library only.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TAG = re.compile(r"</?answer>")
_BOX = re.compile(r"\\boxed\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


class AnswerTags(NamedTuple):
    """The counts of answer tags for p_format (eq. 5)."""

    blocks: int
    """Complete `<answer>...</answer>` blocks."""
    balanced: bool
    """Whether every `<answer>` is closed before the next one opens, and every closing tag has an opening one."""


def count_answers(text: str) -> AnswerTags:
    """Return the number of complete answer blocks in the model's text, and whether its tags are balanced.

    A text without tags is balanced, with 0 blocks. Of two consecutive opening tags, the second one opens the block.
    """
    blocks, balanced = _blocks(text)
    return AnswerTags(len(blocks), balanced)


def extract_answer(text: str) -> str | None:
    r"""Return the stripped content of the last balanced `\boxed{}` inside the last complete answer block of `text`.

    Return None if the block or the box is missing, or the box is empty.
    """
    block = last_answer(text)
    return None if block is None else last_boxed(block) or None


def last_answer(text: str) -> str | None:
    """Return the content of the last complete answer block of `text`; None if there is none."""
    blocks, _ = _blocks(text)
    return blocks[-1] if blocks else None


def last_boxed(text: str) -> str | None:
    r"""Return the stripped content of the last `\boxed{...}` with balanced braces in `text`; None if there is none."""
    closing = _closing_braces(text)
    for match in reversed(list(_BOX.finditer(text))):
        end = closing.get(match.end() - 1)
        if end is not None:
            return text[match.end() : end].strip()
    return None


def _blocks(text: str) -> tuple[list[str], bool]:
    blocks: list[str] = []
    balanced = True
    start: int | None = None
    for tag in _TAG.finditer(text):
        opening = tag.group() == "<answer>"
        balanced = balanced and opening == (start is None)
        if opening:
            start = tag.end()
        elif start is not None:
            blocks.append(text[start : tag.start()])
            start = None
    return blocks, balanced and start is None


def _closing_braces(text: str) -> dict[int, int]:
    """Return the position of the closing brace of each opening one. A backslash escapes the next character."""
    closing: dict[int, int] = {}
    opened: list[int] = []
    for match in _BRACE.finditer(text):
        if match.group() == "{":
            opened.append(match.start())
        elif match.group() == "}" and opened:
            closing[opened.pop()] = match.start()
    return closing
