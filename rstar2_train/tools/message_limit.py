"""Limits the values in a message of an MCP or OpenEnv server: a message is read in the event loop.

    mcp_stdio, openenv (a message), bounded_http (a response) --> MessageLimit.count

Without this limit, a message of 1 MiB could hold the loop for half a second. A string is one value of any length. Pure.
"""

from __future__ import annotations

import re

MAX_OBJECTS = 4096
"""Objects and arrays of a message."""
MAX_VALUES = 1 << 14
"""Strings, and commas outside of strings, of a message."""
_STRING = re.compile(rb'(?:[^"\\\n]++|\\[^\n])*+')
"""The rest of a string up to its end, a line break (which no string has), or an escape that the next part continues."""


class MessageLimit:
    """Counts the values of one message, which arrives in parts."""

    def __init__(self) -> None:
        self._objects = self._values = 0
        self._in_string = self._escaped = False

    def count(self, part: bytes) -> None:
        """Count the values of the next part. Raises ValueError above a limit."""
        at = 0
        while at < len(part):
            if self._in_string:
                at = self._skip_string(part, at)
                continue
            quote = part.find(b'"', at)
            end = len(part) if quote < 0 else quote
            self._objects += part.count(b"{", at, end) + part.count(b"[", at, end)
            self._values += part.count(b",", at, end) + (quote >= 0)
            if self._objects > MAX_OBJECTS or self._values > MAX_VALUES:
                raise ValueError(
                    f"a message has more than {MAX_OBJECTS:,} objects and arrays, or {MAX_VALUES:,} values"
                )
            self._in_string = quote >= 0
            at = end + 1

    def _skip_string(self, part: bytes, start: int) -> int:
        """Return the position after the string, or after the part if the string continues."""
        if self._escaped:
            start, self._escaped = start + 1, False
        match = _STRING.match(part, start)
        end = match.end() if match else start
        if part[end : end + 1] == b"\\" and end + 1 == len(part):
            self._escaped = True
            return len(part)
        self._in_string = end >= len(part)
        return end + 1
