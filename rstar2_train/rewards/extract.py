r"""Finds the final answer in what the model wrote: the last `<answer>` block, and the last `\boxed{}` inside it.

Between rollout and verification. Callers pass model-written text only, never tool output: a number that a tool
printed, or that stands outside the answer block, is not an answer. Pure; standard library only.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TAG = re.compile(r"</?answer>")
_BOX = re.compile(r"\\boxed\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


class AnswerTags(NamedTuple):
    """What p_format (eq. 5) needs to know of the answer tags."""

    blocks: int
    """Complete `<answer>...</answer>` blocks."""
    balanced: bool
    """Every `<answer>` is closed before the next one opens, and nothing is closed that was not open."""


def count_answers(text: str) -> AnswerTags:
    """Complete answer blocks in model-written `text`, and whether its tags are balanced.

    No tag at all is balanced with 0 blocks. Of two openings in a row the later one makes the block.
    """
    blocks, balanced = _blocks(text)
    return AnswerTags(len(blocks), balanced)


def extract_answer(text: str) -> str | None:
    r"""The content, stripped, of the last balanced `\boxed{}` inside the last complete answer block of `text`.

    None when there is no such block, no such box in it, or the box is empty.
    """
    block = last_answer(text)
    return None if block is None else last_boxed(block) or None


def last_answer(text: str) -> str | None:
    """What stands in the last complete answer block of `text`; None when there is none."""
    blocks, _ = _blocks(text)
    return blocks[-1] if blocks else None


def last_boxed(text: str) -> str | None:
    r"""Content, stripped, of the last `\boxed{...}` in `text` whose braces balance; None when there is none."""
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
    """Where each brace that opens is closed. A backslash takes the next character's meaning away."""
    closing: dict[int, int] = {}
    opened: list[int] = []
    for match in _BRACE.finditer(text):
        if match.group() == "{":
            opened.append(match.start())
        elif match.group() == "}" and opened:
            closing[opened.pop()] = match.start()
    return closing
