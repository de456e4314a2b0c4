"""The statuses of a tool call."""

from __future__ import annotations

from typing import Literal

CallStatus = Literal[
    "ok",
    "error",
    "timeout",
    "memory",
    "output_limit",
    "killed",
    "invalid",
    "session_lost",
    "internal",
    "malformed",
    "unknown_tool",
]
"""The judge's statuses, and two of the parser: `malformed` (not a valid call) and `unknown_tool`."""
