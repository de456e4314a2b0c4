"""Chooses the lane of a snippet from its imports. A wrong choice costs time (the import), never correctness.

Clients wrap the code of a model: the template of rStar2-Agent decodes it from base64 and calls `exec`. So the texts in
a program that runs text count as programs too.
"""

from __future__ import annotations

import ast
import base64
import binascii
import contextlib
import re
import textwrap
import zlib
from collections.abc import Collection, Iterator

LANE_MODULES = {
    "sympy": ("sympy", "math_verify", "latex2sympy2_extended", "fused_compute_score"),
    "numpy": ("numpy",),
}
"""Lane -> top-level modules that its zygote has loaded, or that import those. Earlier lanes have priority.

The lane `std` has mpmath and the check of answers, which are small."""
LIGHT_MODULES = {
    "__future__",
    "math",
    "sys",
    "os",
    "time",
    "itertools",
    "builtins",
    "io",
    "errno",
    "atexit",
    "gc",
    "cmath",
}
"""Modules that `bare` has loaded or loads in no time; any other import is faster in `std`."""
MAX_SCANNED = 64 * 1024
"""Length in characters above which the trusted side does not parse a program."""
MAX_WRAPPERS = 3
"""Depth of programs in texts of programs."""
MAX_TEXTS = 64
"""Texts of one program that are read as programs."""
RUNS_TEXT = {"exec", "eval", "compile", "execute_code", "run_cell", "runsource", "runcode"}
"""Names of functions that run a text as a program."""
IMPORTS_TEXT = {"__import__", "import_module"}
"""Names of functions that import the module with the given name."""

_BASE64 = re.compile(rb"[A-Za-z0-9+/_\-\s]{16,}={0,2}\s*")
_HEX = re.compile(rb"(?:[0-9A-Fa-f]{2}){8,}")


def _name(function: ast.expr) -> str:
    """Return the last part of the name of a called function."""
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def _decodings(text: str | bytes) -> Iterator[str]:
    """Yield a text, and the text that its base64 or hexadecimal digits encode, also compressed by zlib."""
    data = text.encode(errors="ignore") if isinstance(text, str) else text
    candidates = [data]
    if _HEX.fullmatch(data):
        candidates.append(bytes.fromhex(data.decode()))
    if _BASE64.fullmatch(data):
        with contextlib.suppress(binascii.Error):
            candidates.append(base64.b64decode(data.translate(bytes.maketrans(b"-_", b"+/"))))
    for candidate in candidates:
        if candidate[:1] == b"x":  # the first byte of zlib's format
            with contextlib.suppress(zlib.error):
                candidate = zlib.decompressobj().decompress(candidate, MAX_SCANNED)
        if len(candidate) <= MAX_SCANNED:
            yield candidate.decode(errors="ignore")


def _imported(code: str, depth: int = 0) -> Iterator[str]:
    """Yield the top-level names of all modules that a program imports, also in the texts that it runs.

    Raises the errors of `ast.parse`.
    """
    texts, runs_text = [], False
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.Call):
            runs_text = runs_text or _name(node.func) in RUNS_TEXT
            if _name(node.func) in IMPORTS_TEXT and node.args and isinstance(node.args[0], ast.Constant):
                yield str(node.args[0].value).partition(".")[0]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and len(node.value) > len("import"):
            texts.append(node.value)
    if not runs_text or depth >= MAX_WRAPPERS:
        return
    for text in sorted(texts, key=len, reverse=True)[:MAX_TEXTS]:
        for inner in _decodings(text):
            if "import" in inner:
                try:
                    yield from _imported(textwrap.dedent(inner), depth + 1)
                except (SyntaxError, ValueError, RecursionError, MemoryError):  # not a program
                    continue


def choose_lane(code: str, lanes: Collection[str], *, packages: Collection[str] = ()) -> str:
    """Return the lane for a snippet; `bare` if it imports nothing or is not Python, `std` if it is too long to parse.

    `packages`: top-level modules of the lane `packages`.
    """
    default = "std" if "std" in lanes else "bare"
    if "import" not in code and not any(name in code for name in RUNS_TEXT):
        return "bare"
    if len(code) > MAX_SCANNED:
        return default
    try:
        imported = set(_imported(code))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the interpreter reports it to the model
        return "bare"
    for lane, modules in {"packages": packages, **LANE_MODULES}.items():
        if lane in lanes and imported.intersection(modules):
            return lane
    return default if imported - LIGHT_MODULES else "bare"
