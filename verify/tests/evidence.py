"""Finds a case for every line of the package: `python tests/evidence.py` writes evidence.jsonl, and prints the others.

Each line of evidence.jsonl is a case of the case files. Together these cases run every statement that decides: all but
errors, their handlers, constants, and tables. A rule that no case runs has no evidence: add a case, or delete it.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import rstar2_verify
from rstar2_verify import verify

CASES = Path(__file__).with_name("cases")
EVIDENCE = Path(__file__).with_name("evidence.jsonl")
FOLDER = Path(rstar2_verify.__file__).parent
INTERFACES = frozenset(["__init__", "cli", "known", "limited", "math_verify", "measures"])
"""Modules without rules for answers."""
BACKTRACKING = "self.at = start"
Line = tuple[str, int]


def _is_constant(node: ast.expr | None) -> bool:
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return all(map(_is_constant, node.elts))
    if isinstance(node, ast.Call):
        return getattr(node.func, "id", "") in ("Verdict", "set", "list") and all(map(_is_constant, node.args))
    return node is None or isinstance(node, ast.Constant)


def _deciding(body: list[ast.stmt]) -> Iterator[ast.stmt | ast.expr]:
    """Yield the statements of a function that decide on answers, outside of handlers."""
    for node in body:
        if isinstance(node, ast.Return | ast.Assign) and _is_constant(node.value):
            continue
        if ast.unparse(node) == BACKTRACKING:
            continue
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Raise | ast.Continue | ast.Break | ast.Pass | ast.Try):
            for inner in ("body", "orelse", "finalbody") if isinstance(node, ast.Try) else ():
                yield from _deciding(getattr(node, inner))
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        yield node.test if isinstance(node, ast.If | ast.While) else node
        for inner in ("body", "orelse"):
            yield from _deciding(getattr(node, inner, []))
        for case in getattr(node, "cases", []):
            yield from _deciding(case.body)


def rules() -> set[Line]:
    """Return the first lines of all statements that decide on answers."""
    lines: set[Line] = set()
    for path in FOLDER.glob("*.py"):
        if path.stem in INTERFACES:
            continue
        tree = ast.parse(path.read_text("utf-8"))
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        at_import = _called_at_import(tree) | {"is_choice"}
        for function in functions:
            if function.name not in at_import:
                lines |= {(path.stem, node.lineno) for node in _deciding(function.body)}
    return lines


def _called_at_import(tree: ast.Module) -> set[str]:
    """Return the functions that fill the tables of a module."""
    statements = [node for node in tree.body if not isinstance(node, ast.FunctionDef | ast.ClassDef)]
    calls = (node for statement in statements for node in ast.walk(statement) if isinstance(node, ast.Call))
    return {node.func.id for node in calls if isinstance(node.func, ast.Name)}


def lines_of(run: Callable[[], Any]) -> set[Line]:
    """Return the lines of the package that a function runs, with empty caches."""
    for name, module in list(sys.modules.items()):
        if name.startswith("rstar2_verify"):
            for value in vars(module).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()
    ran: set[Line] = set()
    names: dict[str, str] = {}

    def local(frame: FrameType, event: str, _: Any) -> Any:
        ran.add((names[frame.f_code.co_filename], frame.f_lineno))
        return local

    def entered(frame: FrameType, event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        if file not in names:
            names[file] = Path(file).stem if Path(file).parent == FOLDER else ""
        return local if names[file] else None

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        run()
    finally:
        sys.settrace(before)
    return ran


def main() -> None:
    """Write a small set of cases that runs all rules, and print the rules that no case runs."""
    wanted = rules()
    cases = [line for path in sorted(CASES.glob("*.jsonl"), reverse=True) for line in _pairs(path)]
    present = set(EVIDENCE.read_text("utf-8").splitlines()) & set(cases)
    by_case: dict[str, set[Line]] = {}
    left = set(wanted)
    for line in (*sorted(present), *cases):  # present cases first: most rules are run by them
        if not left:
            break
        case = json.loads(line)
        ran = lines_of(lambda case=case: verify(case["known"], case["answer"])) & wanted
        if line in present or ran & left:
            by_case[line] = ran
            left -= ran
    chosen, needed = [], wanted - left
    while needed:
        best = max(by_case, key=lambda case: len(by_case[case] & needed))
        chosen.append(best)
        needed -= by_case[best]
    EVIDENCE.write_text("\n".join(sorted(chosen)) + "\n", "utf-8")
    print(f"{len(wanted)} rules, {len(chosen)} cases")
    for module, number in sorted(left):
        print(f"{module}.py:{number}: no case runs this rule")


def _pairs(path: Path) -> list[str]:
    """Return known answer and answer of each case of a file, as lines of evidence.jsonl."""
    cases = map(json.loads, path.read_text("utf-8").splitlines())
    return [json.dumps({key: case[key] for key in ("known", "answer")}, ensure_ascii=False) for case in cases]


if __name__ == "__main__":
    main()
