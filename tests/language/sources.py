"""The tracked files of the repository and their text, as the language tests read it."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GENERATED = re.compile(
    r"(^|/)(LICENSE|requirements[a-z-]*\.lock|go\.mod|go\.sum)$|^bench/results/|(^|/)vendor/|\.(png|svg)$"
)
"""Files of other origin: licences, lock files, measured results, code of other projects, pictures."""


@cache
def tracked() -> tuple[str, ...]:
    """Return the paths of all files that git tracks or would add, sorted."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(sorted(path for path in set(listing.split("\0")) if path and (ROOT / path).is_file()))


@cache
def texts() -> dict[str, str]:
    """Return path -> content of every text file that a person writes."""
    return {path: (ROOT / path).read_text("utf-8") for path in tracked() if not GENERATED.search(path)}


@cache
def tree(path: str) -> ast.Module:
    """Return the syntax tree of a Python file."""
    return ast.parse(texts()[path], path)


def modules(*folders: str) -> list[str]:
    """Return the paths of the Python files below the folders, in order."""
    return [path for path in texts() if path.endswith(".py") and path.startswith(folders)]


def as_prose(text: str) -> str:
    """Return the text with the words of names, wrapped comments and joined strings separated by white space alone.

    `snake_case` and `CamelCase` become words. A comment sign at the start of a line and the quotes between two parts of
    a string become spaces, so that a phrase is found across the line break. Line breaks keep their number.
    """
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text).replace("_", " ")
    text = re.sub(r"[\"']([ \t]*)\n([ \t]*)[rfbRFB]{0,2}[\"']", r" \1\n\2 ", text)
    return re.sub(r"\n[ \t]*(#+:?|//+|\*+|>+)(?=\s)", "\n ", text)
