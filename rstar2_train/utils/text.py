"""Text that cannot be encoded."""

from __future__ import annotations

import re

_SURROGATE = re.compile("[\ud800-\udfff]")


def lone_surrogate(text: str) -> str | None:
    """Return the first lone surrogate in a text, or None. JSON can contain one, tokenizers reject it."""
    match = _SURROGATE.search(text)
    return match and match.group()


def replace_surrogates(text: str) -> str:
    """Return a text whose lone surrogates are replaced by U+FFFD, so that it can be encoded and tokenised."""
    return _SURROGATE.sub("\ufffd", text)
