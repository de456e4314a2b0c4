"""The magics of IPython that a cell may contain: timing, and settings without an effect here. Others are refused.

`run_program` replaces a line such as `%time f()` by a call of `run`, which it adds to the builtins as `__magic__`. It
loads this module only for a cell with such a line. Standard library only.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
import timeit
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

NO_EFFECT = ("matplotlib", "config", "autoreload", "precision", "xmode")
"""Settings of a display or an editor that a sandbox does not have."""
LINE_MAGICS = ("time", "timeit", "pwd", "cd", *NO_EFFECT)
FILE_MAGICS = ("writefile", "file")
CELL_MAGICS = ("time", "timeit", *FILE_MAGICS)
NO_INSTALL = "packages cannot be installed: the sandbox has no network"
REMEDIES = {
    **dict.fromkeys(("pip", "pip3", "conda", "mamba", "uv"), NO_INSTALL),
    **dict.fromkeys(("bash", "sh", "script", "system", "sx"), "the sandbox has no shell: use Python"),
    **dict.fromkeys(("env", "set_env"), "use os.environ"),
    **dict.fromkeys(("ls", "ll", "mkdir", "cat", "rm", "mv", "cp"), "use os, shutil and open()"),
    **dict.fromkeys(("who", "whos", "who_ls"), "use dir()"),
    "run": "use runpy.run_path(...), or import the file",
    "capture": "use contextlib.redirect_stdout(...)",
}
"""Magics and commands that a program can do without."""
RUN_SECONDS = 0.02
"""Least time of a run of `%timeit`, which has seven. IPython's is ten times longer; a call has a few seconds."""

_LINE = re.compile(r"(?P<indent>\s*)(?P<target>[\w., \[\]]*=\s*)?(?P<mark>%%?|!!?)(?P<text>.*)")
_INSTALL = re.compile(r"\s*(?:\S+ -m |uv |sudo )?(?:pip3?|conda|mamba|apt|apt-get)\b")
_BARE_INSTALL = re.compile(r"(?:pip3?|conda) install\b")
"""A command that IPython accepts without a mark."""
_OPTIONS = re.compile(r"\s*-([nrp])\s*(\d+)|\s*-([qo])\b")
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


Evaluate = Callable[[str, dict[str, Any]], list[object]]
"""`Cells.evaluate` of the session."""


class TimeitResult(NamedTuple):
    """The value of `%timeit -o`, with IPython's names. Times are in seconds."""

    loops: int
    repeat: int
    all_runs: list[float]
    timings: list[float]
    """Time of a loop, per run."""
    average: float
    stdev: float
    best: float
    worst: float
    precision: int

    def __str__(self) -> str:
        """Return mean and deviation, and the numbers of runs and loops."""
        return (
            f"{_seconds(self.average, self.precision)} ± {_seconds(self.stdev, self.precision)} per loop "
            f"(mean ± std. dev. of {self.repeat} run{'s'[: self.repeat > 1]}, "
            f"{self.loops:,} loop{'s'[: self.loops > 1]} each)"
        )

    def __repr__(self) -> str:
        """Return the text that a cell shows."""
        return f"<TimeitResult : {self}>"


class UsageError(Exception):
    """A magic or a shell command that is not available."""


def replace(lines: list[str], index: int) -> str | None:
    """Return the source with a call of `run` in place of the magic in line `index`; None if it is no magic."""
    end = index + 1
    while end < len(lines) and lines[end - 1].endswith("\\"):
        end += 1
    line = "".join(part.removesuffix("\\") for part in lines[index:end])
    match = _LINE.fullmatch(line)
    if match and match["mark"] == "%%" and not any(line.strip() for line in lines[:index]):
        return _cell_call(match["text"], lines, index)
    call = _line_call(match, line.strip())
    return None if call is None else "\n".join([*lines[:index], call, *[""] * (end - index - 1), *lines[end:]])


def _cell_call(line: str, lines: list[str], index: int) -> str:
    """Return the call for a cell magic. Lines before a program keep the line numbers of its errors."""
    name, _, text = line.partition(" ")
    before = "" if name in FILE_MAGICS else "\n" * (index + 1)
    return "\n" * index + f"__magic__({name!r}, {text!r}, {before + chr(10).join(lines[index + 1 :])!r})"


def _line_call(match: re.Match[str] | None, line: str) -> str | None:
    """Return the call in place of a line; None if the line is no magic. `match`: of _LINE."""
    if match is None:
        is_help = "?" in (line[:1], line[-1:])
        return f"__magic__({'?' if is_help else '!'!r}, {line!r})" if is_help or _BARE_INSTALL.match(line) else None
    name, _, text = match["text"].partition(" ")
    if match["mark"].startswith("!"):
        name, text = "!", match["text"]
    elif match["mark"] == "%%":
        name = f"%{name}"
    return f"{match['indent']}{match['target'] or ''}__magic__({name!r}, {text!r})"


def runner(evaluate: Evaluate) -> Callable[..., object]:
    """Return `run` for a session; the caller of the result has the names of the program."""
    return partial(run, evaluate)


def run(evaluate: Evaluate, name: str, text: str, cell: str | None = None) -> object:
    """Run a magic: `%name text`, or `%%name text` before a cell. Raises UsageError for one that is not available."""
    namespace = sys._getframe(1).f_globals
    _check(name, text, is_cell=cell is not None)
    if name == "time":
        return _time(text, cell, lambda source: evaluate(source, namespace))
    if name == "timeit":
        return _timeit(text, cell, namespace)
    if name == "pwd":
        return os.getcwd()  # noqa: PTH109
    if name == "cd":
        _change_folder(text.strip())
    elif name in FILE_MAGICS:
        _write_file(text, cell or "")
    return None


def _check(name: str, text: str, *, is_cell: bool) -> None:
    """Raise UsageError for a magic or a command that is not available."""
    mark, names = ("%%", CELL_MAGICS) if is_cell else ("%", LINE_MAGICS)
    if name == "!":
        reason = NO_INSTALL if _INSTALL.match(text) else "the sandbox has no shell: use Python"
        raise UsageError(f"!{text.strip()} is not available: {reason}.")
    if name == "?":
        raise UsageError(f"{text} is not available: use help(...).")
    if name.startswith("%"):
        raise UsageError(f"%{name} is not available here: a cell magic is the first line of its cell.")
    if name not in names and (name, text.strip()) != ("load_ext", "autoreload"):
        reason = REMEDIES.get(name) or f"this sandbox has {', '.join(mark + known for known in names)}"
        raise UsageError(f"{mark}{name} is not available: {reason}.")


def _change_folder(text: str) -> None:
    """Change the working folder, and print it without the option -q."""
    is_quiet = text.startswith("-q ")
    path = "".join(shlex.split(text.removeprefix("-q "))) if "'" in text or '"' in text else text.removeprefix("-q ")
    if path == "-":
        raise UsageError("%cd - is not available: name the folder.")
    os.chdir(os.path.expanduser(path.strip() or "~"))  # noqa: PTH111
    if not is_quiet:
        print(os.getcwd())  # noqa: PTH109


def _write_file(text: str, content: str) -> None:
    """Write a file, or append to it with the option -a."""
    arguments = shlex.split(text)
    paths = [os.path.expanduser(argument) for argument in arguments if argument not in ("-a", "--append")]  # noqa: PTH111
    if len(paths) != 1:
        raise UsageError(f"%%writefile needs the name of one file, not {text.strip()!r}.")
    appends, path = len(arguments) > 1, paths[0]
    done = "Appending to" if appends else "Overwriting" if os.path.exists(path) else "Writing"  # noqa: PTH110
    with open(path, "a" if appends else "w") as file:  # noqa: PTH123
        file.write(content if content.endswith("\n") else f"{content}\n")
    print(f"{done} {path}")


def _time(text: str, cell: str | None, evaluate: Callable[[str], list[object]]) -> object:
    """Run a program, print its times, and return its value."""
    if cell is not None and text.strip():
        raise UsageError("%%time has no statement in its line: write it below, or use %time.")
    before, start = os.times(), time.perf_counter()
    values = evaluate(text.strip() if cell is None else cell)
    wall, after = time.perf_counter() - start, os.times()
    user, system = after.user - before.user, after.system - before.system
    print(f"CPU times: user {_seconds(user)}, sys: {_seconds(system)}, total: {_seconds(user + system)}")
    print(f"Wall time: {_seconds(wall)}")
    return values[0] if values else None


def _timeit(text: str, cell: str | None, namespace: dict[str, Any]) -> TimeitResult | None:
    """Measure a statement, or a cell with the statement as its set-up; print the mean and its deviation."""
    options: dict[str, int] = {}
    while match := _OPTIONS.match(text):
        options[match[1] or match[3]] = int(match[2] or 0)
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
    result = _result(timer.repeat(runs, number), number, options.get("p", 3))
    if "q" not in options:
        print(result)
    return result if "o" in options else None


def _result(totals: list[float], number: int, precision: int) -> TimeitResult:
    """Return the figures of runs. `totals`: their times, of `number` loops."""
    seconds = [total / number for total in totals]
    mean = sum(seconds) / len(seconds)
    deviation = (sum((value - mean) ** 2 for value in seconds) / len(seconds)) ** 0.5
    return TimeitResult(
        number, len(seconds), totals, seconds, mean, deviation, min(seconds), max(seconds), max(precision, 1)
    )


def _seconds(value: float, digits: int = 3) -> str:
    """Return a time in the largest unit below it."""
    if value >= 60:
        return f"{value // 60:.0f}min {value % 60:.0f}s"
    size, unit = next((pair for pair in _UNITS if value >= pair[0]), _UNITS[-1])
    return f"{value / size:.{digits}g} {unit}"
