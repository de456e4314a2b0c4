"""Text that cannot be encoded."""

from __future__ import annotations

import re

_SURROGATE = re.compile("[\ud800-\udfff]")


def lone_surrogate(text: str) -> str | None:
    """Return the first lone surrogate in a text, or None. JSON can contain one, tokenizers reject it."""
    match = _SURROGATE.search(text)
    return match and match.group()
