"""The magics of IPython that a cell may contain: timing, and settings without an effect here. Others are refused.

`run_program` replaces a line such as `%time f()` by a call of `run`, which it adds to the builtins as `__magic__`. It
loads this module only for a cell with such a line. Standard library only.
"""

from __future__ import annotations

import _ast
import os
import re
import sys
import time
import timeit
from typing import Any

NO_EFFECT = ("matplotlib", "config", "autoreload", "precision", "xmode")
"""Settings of a display or an editor that a sandbox does not have."""
LINE_MAGICS = ("time", "timeit", "pwd", "cd", *NO_EFFECT)
CELL_MAGICS = ("time", "timeit", "writefile")
NO_INSTALL = "packages cannot be installed: the sandbox has no network"
RUN_SECONDS = 0.02
"""Least time of a run of `%timeit`, which has seven. IPython's is ten times longer; a call has a few seconds."""

_LINE = re.compile(r"(?P<indent>\s*)(?P<target>[\w., \[\]]*=\s*)?(?P<mark>%%?|!!?)(?P<text>.*)")
_OPTIONS = re.compile(r"\s*-([nr])\s*(\d+)|\s*-([qop])")
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


class UsageError(Exception):
    """A magic or a shell command that is not available."""


def replace(lines: list[str], index: int) -> str | None:
    """Return the source with a call of `run` in place of the magic in line `index`; None if it is no magic."""
    line = lines[index]
    match = _LINE.fullmatch(line)
    if match is None:
        if "?" not in (line.strip()[:1], line.strip()[-1:]):
            return None
        lines[index] = f"__magic__('?', {line.strip()!r})"
        return "\n".join(lines)
    name, _, text = match["text"].partition(" ")
    if match["mark"].startswith("!"):
        name, text = "!", match["text"]
    if match["mark"] == "%%":
        if any(line.strip() for line in lines[:index]):
            return None
        rest = "\n" * (index + 1) + "\n".join(lines[index + 1 :])
        return "\n" * index + f"__magic__({name!r}, {text!r}, {rest!r})"
    lines[index] = f"{match['indent']}{match['target'] or ''}__magic__({name!r}, {text!r})"
    return "\n".join(lines)


def run(name: str, text: str, cell: str | None = None) -> object:
    """Run a magic: `%name text`, or `%%name text` before a cell. Raises UsageError for one that is not available."""
    namespace = sys._getframe(1).f_globals
    if name == "!":
        reason = NO_INSTALL if re.match(r"\s*(pip|conda|apt)", text) else "the sandbox has no shell: use Python"
        raise UsageError(f"!{text.strip()} is not available: {reason}.")
    if name == "?":
        raise UsageError(f"{text} is not available: use help(...).")
    if name not in (LINE_MAGICS if cell is None else CELL_MAGICS):
        mark = "%" if cell is None else "%%"
        names = LINE_MAGICS if cell is None else CELL_MAGICS
        reason = (
            NO_INSTALL if name in ("pip", "conda") else f"this sandbox has {', '.join(mark + known for known in names)}"
        )
        if name != "load_ext" or text.strip() != "autoreload":
            raise UsageError(f"{mark}{name} is not available: {reason}.")
    if name == "time":
        return _time(cell if cell is not None else text, namespace)
    if name == "timeit":
        _timeit(text, cell, namespace)
    elif name == "pwd":
        return os.getcwd()  # noqa: PTH109
    elif name == "cd":
        os.chdir(os.path.expanduser(text.strip() or "~"))  # noqa: PTH111
        print(os.getcwd())  # noqa: PTH109
    elif name == "writefile":
        _write_file(text.strip(), (cell or "").lstrip("\n"))
    return None


def _write_file(text: str, content: str) -> None:
    """Write a file, or append to it with the option -a."""
    option, _, path = text.partition(" ")
    appends = option in ("-a", "--append")
    path = path.strip() if appends else text
    done = "Appending to" if appends else "Overwriting" if os.path.exists(path) else "Writing"  # noqa: PTH110
    with open(path, "a" if appends else "w") as file:  # noqa: PTH123
        file.write(content if content.endswith("\n") else f"{content}\n")
    print(f"{done} {path}")


def _evaluate(source: str, namespace: dict[str, Any]) -> object:
    """Run a program; return the value of its last statement if that is an expression, else None."""
    tree: Any = compile(source.strip(), "<snippet>", "exec", _ast.PyCF_ONLY_AST, True)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], _ast.Expr) else None
    exec(compile(tree, "<snippet>", "exec", 0, True), namespace)
    return None if last is None else eval(compile(_ast.Expression(last.value), "<snippet>", "eval", 0, True), namespace)


def _time(source: str, namespace: dict[str, Any]) -> object:
    """Run a program, print its times, and return its value."""
    before, start = os.times(), time.perf_counter()
    value = _evaluate(source, namespace)
    wall, after = time.perf_counter() - start, os.times()
    user, system = after.user - before.user, after.system - before.system
    print(f"CPU times: user {_seconds(user)}, sys: {_seconds(system)}, total: {_seconds(user + system)}")
    print(f"Wall time: {_seconds(wall)}")
    return value


def _timeit(text: str, cell: str | None, namespace: dict[str, Any]) -> None:
    """Measure a statement, or a cell with the statement as its set-up; print the mean and its deviation."""
    options: dict[str, int] = {}
    while match := _OPTIONS.match(text):
        if match[1]:
            options[match[1]] = int(match[2])
        text = text[match.end() :]
    statement, setup = (text.strip(), "pass") if cell is None else (cell.strip("\n"), text.strip() or "pass")
    timer = timeit.Timer(statement, setup, globals=namespace)
    number, runs = options.get("n", 0), options.get("r", 7)
    if not runs:
        raise UsageError("%timeit -r needs at least one run.")
    if not number:
        number = 1
        while timer.timeit(number) < RUN_SECONDS:
            number *= 10
    seconds = [total / number for total in timer.repeat(runs, number)]
    mean = sum(seconds) / runs
    deviation = (sum((value - mean) ** 2 for value in seconds) / runs) ** 0.5
    print(
        f"{_seconds(mean)} ± {_seconds(deviation)} per loop "
        f"(mean ± std. dev. of {runs} run{'s'[: runs > 1]}, {number:,} loop{'s'[: number > 1]} each)"
    )


def _seconds(value: float) -> str:
    """Return a time with three digits in the largest unit below it."""
    if value >= 60:
        return f"{value // 60:.0f}min {value % 60:.0f}s"
    size, unit = next((pair for pair in _UNITS if value >= pair[0]), _UNITS[-1])
    return f"{value / size:.3g} {unit}"
