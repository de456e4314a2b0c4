"""Text that cannot be encoded."""

from __future__ import annotations

import re

_SURROGATE = re.compile("[\ud800-\udfff]")


def half_character(text: str) -> str | None:
    """The first half of a surrogate pair in a text, which JSON can hold and no tokenizer takes; None: all is well."""
    found = _SURROGATE.search(text)
    return found and found.group()
