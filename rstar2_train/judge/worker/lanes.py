"""Chooses the lane of a snippet from its imports. A wrong choice costs time (the import), never correctness."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

LANE_MODULES = {"sympy": ("sympy", "mpmath", "math_verify", "latex2sympy2_extended"), "numpy": ("numpy",)}
"""Lane -> top-level modules that its zygote has loaded, or that import those. Earlier lanes have priority."""
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


def _imported(tree: ast.AST) -> Iterator[str]:
    """Yield the top-level names of all modules that a tree imports, at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def choose_lane(code: str, lanes: Collection[str]) -> str:
    """Return the lane for a snippet; `bare` if it imports nothing, is longer than MAX_SCANNED or is not Python."""
    if "import" not in code or len(code) > MAX_SCANNED:
        return "bare"
    try:
        imported = set(_imported(ast.parse(code)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the interpreter reports it to the model
        return "bare"
    for lane, modules in LANE_MODULES.items():
        if lane in lanes and imported.intersection(modules):
            return lane
    return "std" if "std" in lanes and imported - LIGHT_MODULES else "bare"
