"""Text that cannot be encoded, would control a terminal, or is too long for a message."""

from __future__ import annotations

import re

_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {
    code: 0xFFFD for code in (*range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
}
"""Control characters, marks of a direction, which reorder the rest of a line, and separators of lines."""


def lone_surrogate(text: str) -> str | None:
    """Return the first lone surrogate in a text, or None. JSON can contain one, tokenizers reject it."""
    match = _SURROGATE.search(text)
    return match and match.group()


def replace_surrogates(text: str) -> str:
    """Return a text whose lone surrogates are replaced by U+FFFD, so that it can be encoded and tokenised."""
    return _SURROGATE.sub("\ufffd", text)


def printable(text: str) -> str:
    """Return the text with visible control characters: a program's output must not control the terminal."""
    return text.translate(_CONTROLS)


def reason(error: BaseException) -> str:
    """Return the words of an error for a message that names its file: without a number, and without the name again."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def one_line(error: BaseException, *, most: int) -> str:
    """Return the first characters of the text of an error, in one line."""
    return " ".join(str(error).split())[:most]


def short_repr(value: object) -> str:
    """Return `repr(value)` for a message, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
