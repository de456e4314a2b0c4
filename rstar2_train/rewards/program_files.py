"""Finds the programs that an answer writes to files: here documents of a shell, notebooks, objects of JSON. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

_HERE_DOCUMENT = re.compile(r"(?P<before>[^#<]*+)<<-?[ \t]*+(?P<quote>['\"]?)(?P<end>\w++)(?P=quote)(?P<after>[^<]*+)")
_WRITES_PROGRAM = re.compile(r".*(?:>|\btee\b)[^|;&]*\.py\b.*|.*\bpython[\d.]*+(?:[ \t]+-)?[ \t]*")
"""A command that writes its input to a Python file, or runs it; not one that runs a program on it."""
_FIELDS = ("code", "program", "solution", "python", "python_code", "source_code")


def written_programs(text: str) -> list[str]:
    """Return the programs that a script of a shell writes to files, or that a notebook or an object of JSON has."""
    if text.lstrip().startswith("{"):
        return _json_programs(text)
    programs: list[str] = []
    lines, at = text.split("\n"), 0
    while at < len(lines):
        start, at = _HERE_DOCUMENT.fullmatch(lines[at]), at + 1
        if start and _WRITES_PROGRAM.fullmatch(start["before"] + start["after"]):
            end = next((index for index in range(at, len(lines)) if lines[index].strip() == start["end"]), len(lines))
            programs.append("\n".join([*lines[at:end], ""]))
            at = end + 1
    return programs


def _json_programs(text: str) -> list[str]:
    """Return the code cells of a notebook as one program, or the text of the only field that holds code."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if isinstance(value.get("cells"), list):
        cells = [cell for cell in value["cells"] if isinstance(cell, dict) and cell.get("cell_type") == "code"]
        return ["\n".join([*("".join(cell.get("source") or "") for cell in cells), ""])]
    return [value[name] for name in _FIELDS if isinstance(value.get(name), str)][:1]
