"""Reads the fenced blocks of a page, which tests compare with files and outputs."""

from __future__ import annotations

import re


def blocks(page: str, language: str = "") -> list[str]:
    """Return the contents of the fenced blocks of a language, in order. Pure."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    return [content for name, content in fenced if name == language]


def without_times(output: str) -> str:
    """Return an output without trailing white space, and with the times of calls as `N s`. Pure."""
    return re.sub(r"\d+\.\d\d s\b", "N s", re.sub(r"[ \t]+$", "", output, flags=re.MULTILINE)).strip()
