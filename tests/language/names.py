"""Names and docstrings that the repository has: classes, tests, packages."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.language import sources

CODE = ("rstar2_train/", "operator/")
TEST_NAME_LENGTH = 60
PACKAGE_DOCSTRING_LINES = 3
NOMINAL = ("Whether", "The", "A", "An", "All", "Each", "Every")
"""First words of docstrings that are no verbs."""


def repeated_classes() -> dict[str, list[str]]:
    """Return class name -> the places that define it, for each name that the product defines more than once."""
    defined = defaultdict(list)
    for path in sources.modules(*CODE):
        for node in ast.walk(sources.tree(path)):
            if isinstance(node, ast.ClassDef):
                defined[node.name].append(f"{path}:{node.lineno}")
    return {name: paths for name, paths in defined.items() if len(paths) > 1}


def functions_of_tests(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the test functions of a module, those in classes too."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return [function for function in functions if function.name.startswith("test_")]


def unclear_tests() -> list[str]:
    """Return the tests whose name is too long or that have no docstring, as `path:line: name: fault`."""
    unclear = []
    for path in sources.modules("tests/"):
        if path.rpartition("/")[2].startswith("test_"):
            for function in functions_of_tests(sources.tree(path)):
                if len(function.name) > TEST_NAME_LENGTH:
                    unclear.append(f"{path}:{function.lineno}: {function.name}: {len(function.name)} characters")
                if not ast.get_docstring(function):
                    unclear.append(f"{path}:{function.lineno}: {function.name}: no docstring")
    return unclear


def unnamed_values() -> list[str]:
    """Return the places where the product names a variable `each`, not for its value."""
    return [
        f"{path}:{node.lineno}"
        for path in sources.modules(*CODE)
        for node in ast.walk(sources.tree(path))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == "each"
    ]


def nominal_docstrings() -> list[str]:
    """Return the functions of the product whose docstring describes a value in place of an action."""
    return [
        f"{path}:{node.lineno}: {node.name}"
        for path in sources.modules(*CODE)
        for node in ast.walk(sources.tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.decorator_list  # a property is a value
        and (ast.get_docstring(node) or "").partition(" ")[0] in NOMINAL
    ]


def undocumented_packages() -> dict[str, int]:
    """Return path -> lines of the docstring, for each package of the product with too short a one."""
    lengths = {
        path: len((ast.get_docstring(sources.tree(path)) or "").splitlines())
        for path in sources.modules(*CODE)
        if path.endswith("/__init__.py")
    }
    return {path: lines for path, lines in lengths.items() if lines < PACKAGE_DOCSTRING_LINES}
