"""Which zygote a snippet wants, from its imports. A wrong guess costs time (the import), never correctness."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

LANE_MODULES = {"sympy": ("sympy", "mpmath", "math_verify", "latex2sympy2_extended"), "numpy": ("numpy",)}
"""Lane -> top-level modules that it has loaded, or that load what it has. Earlier lanes win."""
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
"""Modules that `bare` has, or loads at once; any other import is better off in `std`."""
MAX_SCANNED = 64 * 1024
"""Longer programs are not parsed by the trusted side."""


def _imported(tree: ast.AST) -> Iterator[str]:
    """Top-level names of all modules that a tree imports, at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def choose_lane(code: str, lanes: Collection[str]) -> str:
    """The lane for a snippet, among `lanes`; `bare` for anything that needs none, is too long or is no Python."""
    if "import" not in code or len(code) > MAX_SCANNED:
        return "bare"
    try:
        imported = set(_imported(ast.parse(code)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the child will report it to the model
        return "bare"
    for lane, modules in LANE_MODULES.items():
        if lane in lanes and imported.intersection(modules):
            return lane
    return "std" if "std" in lanes and imported - LIGHT_MODULES else "bare"
