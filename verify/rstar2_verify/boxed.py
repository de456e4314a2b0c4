r"""Finds the last `\boxed{}` with balanced braces in a text. Standard library only."""

from __future__ import annotations

import re

_BOX = re.compile(r"\\boxed\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def last_boxed(text: str) -> str | None:
    r"""Return the stripped content of the last `\boxed{...}`; None if there is none."""
    closing: dict[int, int] = {}
    opened: list[int] = []
    for match in _BRACE.finditer(text):
        if match.group() == "{":
            opened.append(match.start())
        elif match.group() == "}" and opened:
            closing[opened.pop()] = match.start()
    for box in reversed(list(_BOX.finditer(text))):
        end = closing.get(box.end() - 1)
        if end is not None:
            return text[box.end() : end].strip()
    return None
