"""Builds the program that runs a user's function in the judge's sandbox, and its standard input. Pure but for reading.

    toolset (a call of the model), rewards.task_rewards (a checker) --> sandbox_program --> text for the judge

The user's file is never imported here: its text travels to the sandbox, where `sandbox_runner` imports it.
"""

from __future__ import annotations

import ast
import base64
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MAX_SOURCE_BYTES = 256 * 1024
"""Limit of a user's sources, which travel with each call."""
MAX_FILES_BYTES = 2 * 1024 * 1024
"""Limit of the files of one row: in base64 they must fit into the standard input of a call (4 MiB)."""

_RUNNER = Path(__file__).with_name("sandbox_runner.py").read_text(encoding="utf-8")


class SourceError(ValueError):
    """A user's file cannot be used. The message names the file and the fix."""


def read_sources(path: Path) -> tuple[str, dict[str, str]]:
    """Return the module's name and its files, as relative path -> text, of a Python file or the folder of a package.

    Raises SourceError for a missing, unreadable or too large source.
    """
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    if path.is_dir() and not (path / "__init__.py").is_file():
        raise SourceError(f"{path}: a package needs a file __init__.py")
    if not path.stem.isidentifier() or (not path.is_dir() and path.suffix != ".py"):
        raise SourceError(f"{path}: must be a Python file, or the folder of a package, whose name is an identifier")
    try:
        texts = {str(file.relative_to(path.parent)): file.read_text(encoding="utf-8") for file in files}
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: cannot be read: {error}") from error
    size = sum(len(text.encode()) for text in texts.values())
    if size > MAX_SOURCE_BYTES:
        raise SourceError(f"{path}: {size} bytes of Python; the limit is {MAX_SOURCE_BYTES}")
    return path.stem, texts


def function_program(module: str, sources: Mapping[str, str], function: str, *, scores: bool = False) -> str:
    """Return the program that calls `function` of `module`. `scores`: it returns a score, as a checker does."""
    packed = base64.b85encode(zlib.compress(json.dumps(dict(sources)).encode(), 9)).decode()
    call = f"{_RUNNER}\n\nmain({packed!r}, {module!r}, {function!r}, scores={scores})\n"
    imports = _imports(sources)
    return f"{call}if False:\n    import {', '.join(imports)}\n" if imports else call


def _imports(sources: Mapping[str, str]) -> list[str]:
    """Return the top-level modules that the sources import: the judge selects an interpreter that has loaded them."""
    names = set()
    for text in sources.values():
        try:
            nodes = list(ast.walk(ast.parse(text)))
        except (SyntaxError, ValueError, RecursionError):  # the sandbox reports it
            continue
        names |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return sorted({name.partition(".")[0] for name in names} - {"__future__"})


def function_input(arguments: Mapping[str, Any], files: Mapping[str, bytes]) -> str:
    """Return the standard input of such a program."""
    encoded = {name: base64.b64encode(content).decode() for name, content in files.items()}
    return json.dumps({"arguments": dict(arguments), "files": encoded})
