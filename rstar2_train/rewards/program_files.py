"""Finds the programs that an answer writes to files: here documents of a shell, notebooks, values of JSON. Pure."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

_HERE_DOCUMENT = re.compile(r"(?P<before>[^#<]*+)<<-?[ \t]*+(?P<quote>['\"]?)(?P<end>\w++)(?P=quote)(?P<after>[^<]*+)")
_WRITES_PROGRAM = re.compile(r".*(?:>|\btee\b)[^|;&]*\.py\b.*|.*\bpython[\d.]*+(?:[ \t]+-)?[ \t]*")
"""A command that writes its input to a Python file, or runs it; not one that runs a program on it."""
_FIELDS = ("code", "program", "solution", "python", "python_code", "source_code", "script", "content", "answer")
_ARGUMENTS = ("arguments", "parameters", "function", "input")
"""Fields of a call that have others."""
_JSON = ("{", "[", '"')
_MOST_NESTED = 4


def written_programs(text: str) -> list[str]:
    """Return the programs that a script of a shell writes to files, or that a notebook or a value of JSON has."""
    if text.lstrip().startswith(_JSON):
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
    """Return the programs of a JSON value: a text, a notebook, an object or a call with code, or a list of them."""
    value = _literal(text)
    return [value] if isinstance(value, str) else _value_programs(value, _MOST_NESTED)


def _literal(text: str) -> Any:
    """Return a value of JSON, or an object or list that is written as in Python; None if the text is neither."""
    readers = (json.loads,) if text.lstrip().startswith('"') else (json.loads, ast.literal_eval)
    for read in readers:
        try:
            return read(text.strip())
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
    return None


def _value_programs(value: Any, depth: int) -> list[str]:
    """Return the code cells of a notebook as one program, or the text of the first field that holds code."""
    if isinstance(value, list):
        return [program for part in value if isinstance(part, dict) for program in _value_programs(part, depth)]
    if not isinstance(value, dict):
        return []
    if isinstance(value.get("cells"), list):
        cells = [cell for cell in value["cells"] if isinstance(cell, dict) and cell.get("cell_type") == "code"]
        return ["\n".join([*("".join(cell.get("source") or "") for cell in cells), ""])]
    fields = [value[name] for name in _FIELDS if value.get(name)]
    texts = ["\n".join(field) if _is_lines(field) else field for field in fields]
    if programs := [text for text in texts if isinstance(text, str)]:
        return programs[:1]
    inner = [value[name] for name in _ARGUMENTS if isinstance(value.get(name), (dict, str))] if depth else []
    return [
        program
        for part in inner
        for program in (_value_programs(part, depth - 1) if isinstance(part, dict) else _json_programs(part))
    ]


def _is_lines(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(line, str) for line in value)
