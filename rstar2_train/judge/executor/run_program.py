"""Runs the code of a call in the process of the call: as a script, as one notebook cell, or as the cells of a session.

    program.zygote_main (child) --> run_call --> run_script, or Cells.run --> magics
                               '--> run_session --> Cells.run

A script runs as `python FILE` does. Cells run as in Jupyter: the value of a last expression is printed, on a line of
its own, `await` is allowed at the top level, and a `from __future__ import` lasts. Standard library only; it imports
as little as possible (program.py explains why).
"""

from __future__ import annotations

import _ast
import _signal  # type: ignore[import-not-found]
import _thread
import atexit
import builtins
import gc
import io
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from types import CodeType
    from typing import Any

    RunCode = Callable[[str, dict[str, object]], None]

FILENAME = "<snippet>"
MEMORY_SIGNAL = 64
"""The signal, the last real-time one, with which a call ends itself after an uncaught MemoryError: programs use
all exit statuses, but not this signal. A snippet that forges it harms only itself."""
FLUSH_FAILED = 120
"""Exit status of an interpreter that could not write its last output."""
AST_ONLY = 0x400
"""PyCF_ONLY_AST: `compile` returns a tree, without an import of the module `ast`."""
TOP_LEVEL_AWAIT = 0x2000
"""PyCF_ALLOW_TOP_LEVEL_AWAIT."""
COROUTINE = 0x80
"""CO_COROUTINE: flag of a code object with `await` at its top level."""
FUTURE_FLAGS = 0x1FE0000
"""Flags of a code object that `from __future__ import` sets."""
MAX_MAGICS = 64
"""Lines of a cell that may be magics."""
BOM = "\N{ZERO WIDTH NO-BREAK SPACE}"
"""Byte order mark, with which editors of Windows start a file."""


class Output(io.FileIO):
    """Standard output, which knows whether its last line is complete. It sees no writes of other processes."""

    line_is_complete = True

    def write(self, data: Any, /) -> int:
        """Write bytes."""
        if last := bytes(data[-1:]):
            self.line_is_complete = last == b"\n"
        return super().write(data)


def replace_stdout() -> None:
    """Replace sys.stdout by an equal stream on an Output."""
    old, raw = sys.stdout, Output(1, "w", closefd=False)
    raw.name = "<stdout>"
    stream: Any = io.TextIOWrapper(io.BufferedWriter(raw), encoding=old.encoding, errors=old.errors, newline="\n")
    stream.mode = "w"
    vars(sys).update(stdout=stream, __stdout__=stream)


def cap_stack_size(most_bytes: int) -> None:
    """Limit the stacks of new threads: contest programs ask for more than the address space of a call."""
    set_size = _thread.stack_size

    def stack_size(*size: int) -> int:
        return set_size(*(min(wanted, most_bytes) for wanted in size))

    _thread.stack_size = stack_size
    if "threading" in sys.modules:
        sys.modules["threading"].stack_size = stack_size  # type: ignore[attr-defined]


def show_value(value: object) -> None:
    """Print the value of a last expression, on a line of its own."""
    if value is not None:
        _complete_line()
    sys.__displayhook__(value)


def display(*values: object, **_options: object) -> None:
    """Print values, each on lines of its own: IPython's function, for texts."""
    _complete_line()
    for value in values:
        print(repr(value))


def _complete_line() -> None:
    """End an incomplete last line of the standard output."""
    streams = vars(sys)
    stream = streams["stdout"]
    if stream is streams["__stdout__"] and not stream.closed:
        stream.flush()
        if not getattr(stream.buffer.raw, "line_is_complete", True):
            stream.write("\n")


class Cells:
    """Runs cells, one after the other, and keeps their future imports and their event loop."""

    def __init__(self) -> None:
        self._flags = 0
        """Flags of all `from __future__ import`."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, source: str, namespace: dict[str, object]) -> None:
        """Run a cell. `sys.displayhook` prints the value of a last expression that no semicolon ends."""
        sys.displayhook = show_value
        builtins.display = display  # type: ignore[attr-defined]
        for value in self.evaluate(source, namespace):
            sys.displayhook(value)

    def evaluate(self, source: str, namespace: dict[str, object]) -> list[object]:
        """Run a cell; return the value of a last expression that no semicolon ends, or an empty list."""
        tree, source = self._parse(source)
        has_value = tree.body and isinstance(tree.body[-1], _ast.Expr) and not _is_quiet(source, tree.body[-1])
        last: Any = tree.body.pop() if has_value else None
        body = compile(tree, FILENAME, "exec", self._flags | TOP_LEVEL_AWAIT, True)
        self._flags |= body.co_flags & FUTURE_FLAGS
        codes = [body]
        if last is not None:
            codes.append(compile(_ast.Expression(last.value), FILENAME, "eval", self._flags | TOP_LEVEL_AWAIT, True))
        if any(code.co_flags & COROUTINE for code in codes):
            value = self._run_in_loop(codes, namespace)
        else:
            value = [eval(code, namespace) for code in codes][-1]
        return [] if last is None else [value]

    def _parse(self, source: str) -> tuple[_ast.Module, str]:
        """Return the tree of a cell, and the cell as Python. Each line at which the parser stops may be a magic."""
        source = _without_numbered_prompts(source)
        for _ in range(MAX_MAGICS):
            try:
                return self._tree(source), source
            except SyntaxError as error:
                number = error.lineno or 0
                replaced = _remove_start(source, number) or self._replace_magic(source, number)
                if replaced is None:
                    raise
                source = replaced
        return self._tree(source), source

    def _tree(self, source: str) -> _ast.Module:
        tree: _ast.Module = compile(source, FILENAME, "exec", AST_ONLY | self._flags, True)
        return tree

    def _run_in_loop(self, codes: list[CodeType], namespace: dict[str, object]) -> object:
        """Run a cell with `await` in the loop of all such cells; return the value of its last code."""
        import asyncio

        async def execute() -> object:
            value: Any = None
            for code in codes:
                value = eval(code, namespace)
                if code.co_flags & COROUTINE:
                    value = await value
            return value

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        return self._loop.run_until_complete(execute())

    def _replace_magic(self, source: str, number: int) -> str | None:
        """Return the source with a call of `magics.run` for the magic in this line (from 1); None if it has none."""
        lines = source.split("\n")
        line = lines[number - 1].strip() if 0 < number <= len(lines) else ""
        if not ("%" in line or "!" in line or " install " in line or line.startswith("?") or line.endswith("?")):
            return None
        folder = os.path.dirname(__file__)  # noqa: PTH120
        sys.path.insert(0, folder)
        try:
            magics = __import__("magics")
        finally:
            sys.path.remove(folder)
        sys.modules.pop("magics", None)
        builtins.__magic__ = magics.runner(self.evaluate)  # type: ignore[attr-defined]
        replaced: str | None = magics.replace(lines, number - 1)
        return replaced


def _is_quiet(source: str, last: Any) -> bool:
    """Return whether a semicolon follows the last expression of a cell."""
    rest = "\n".join(source.split("\n")[last.end_lineno - 1 :]).encode()
    return rest[last.end_col_offset :].lstrip(b" \t\r\n)").startswith(b";")


def _remove_start(source: str, number: int) -> str | None:
    """Return the source without the indentation of its first line of code, or without prompts, as IPython reads it.

    None: the line (from 1) is not the first one, or has neither.
    """
    lines = source.split("\n")
    if not 0 < number <= len(lines) or any(line.strip() and line.strip()[0] != "#" for line in lines[: number - 1]):
        return None
    first = lines[number - 1]
    if indent := first[: len(first) - len(first.lstrip(" \t"))]:
        return "\n".join([line.removeprefix(indent) for line in lines])
    if not first.startswith(">>> "):
        return None
    prompts = (">>> ", "... ")
    return "\n".join([line[4:] if f"{line} ".startswith(prompts) else line for line in lines])


def _without_numbered_prompts(source: str) -> str:
    """Return the source without the prompts `In [1]:` and `...:`, as IPython reads it."""
    if not source.lstrip().startswith("In ["):
        return source
    import re

    return re.sub(r"(?m)^(?:In \[\d+\]:|[ \t]*\.{3,}:)(?: |$)", "", source)


def run_script(source: str, namespace: dict[str, object]) -> None:
    """Run a program like a file: no value is printed."""
    exec(compile(source, FILENAME, "exec", 0, True), namespace)


def exit_at(milliseconds: int) -> None:
    """Exit after the time limit of a program of code-judge with the last line that code-judge prints then.

    The parent decides by its own clock that this is a timeout, and kills a process that stops this timer.
    """

    def end(*_: object) -> None:
        try:
            print("Suicide from timeout.", flush=True)
        finally:  # the signal can interrupt a print
            os._exit(1)

    _signal.signal(_signal.SIGALRM, end)
    _signal.setitimer(_signal.ITIMER_REAL, milliseconds / 1000)


def report_exception() -> int:
    """Print the current exception like an interpreter, without the executor's frames.

    Return the exit status, or minus MEMORY_SIGNAL.
    """
    kind, error, _ = sys.exc_info()
    assert kind is not None and error is not None
    if isinstance(error, SystemExit):
        code = error.code
        if code is None or isinstance(code, int):
            return (code or 0) & 0xFF if -(2**63) <= (code or 0) < 2**63 else 0xFF
        try:  # noqa: SIM105  (no import of contextlib: each page of memory costs time)
            print(code, file=getattr(sys, "stderr", None) or sys.__stderr__)
        except BaseException:  # as in an interpreter, the status remains
            pass
        return 1
    try:
        sys.excepthook(kind, _with_own_frames(error), error.__traceback__)
    except SystemExit:  # of the program's hook
        return report_exception()
    except BaseException as failure:
        _report_failed_hook(failure, error)
    return -MEMORY_SIGNAL if isinstance(error, MemoryError) else 1


def _with_own_frames(error: BaseException) -> BaseException:
    """Return an exception whose traceback starts in the program."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != FILENAME:
        trace = trace.tb_next
    return error.with_traceback(trace)


def _report_failed_hook(failure: BaseException, error: BaseException) -> None:
    """Print the error of a program's `sys.excepthook`, and the exception that the hook did not report."""
    try:
        for title, printed in (("Error in sys.excepthook:", failure), ("\nOriginal exception was:", error)):
            print(title, file=sys.stderr)
            sys.__excepthook__(type(printed), _with_own_frames(printed), printed.__traceback__)
    except BaseException:  # stderr failed too
        pass


def end_by_memory_signal() -> None:
    """End this process with MEMORY_SIGNAL. Returns if no memory is left for that."""
    try:
        _signal.signal(MEMORY_SIGNAL, _signal.SIG_DFL)
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [MEMORY_SIGNAL])
        _signal.raise_signal(MEMORY_SIGNAL)
    except BaseException:  # the exit status then is that of an error
        pass


def fresh_main() -> dict[str, object]:
    """Return the namespace of a new `__main__`."""
    module = type(sys)("__main__")
    module.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = module
    return module.__dict__


def run_call(source: str, *, to_the_end: bool, run: RunCode | None = None) -> int:
    """Run one snippet; return its exit status. `run`: `run_script`, or that of a Cells (default).

    `to_the_end`: also wait for its threads, run its exit functions and delete its objects. That is possible once per
    process.
    """
    status = run_code(source, fresh_main(), run or Cells().run)
    try:
        if to_the_end:
            if "threading" in sys.modules:
                sys.modules["threading"]._shutdown()
            atexit._run_exitfuncs()
    except BaseException:  # an exit function failed: report it like an interpreter
        status = status or report_exception()
    status = flush_streams(status)
    if to_the_end:  # delete its objects, in the order of an interpreter's end: this writes its open files
        sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
        sys.modules.pop("__main__", None)
        gc.collect()
        for stream in (sys.stdout, sys.stderr):  # a failure here changes no status, as in an interpreter
            _flush(stream)
    return status


def run_code(source: str, namespace: dict[str, object], run: RunCode) -> int:
    """Run a program in a namespace. Return the exit status that its process would have."""
    try:
        run(source.removeprefix(BOM), namespace)
    except BaseException:
        return report_exception()
    return 0


def flush_streams(status: int) -> int:
    """Write the last output, also that of a stream that the program replaced. Return the exit status after that.

    A failure counts for the present streams alone: a replaced one may be detached from its file.
    """
    present = [getattr(sys, "stdout", None), getattr(sys, "stderr", None)]
    streams = {id(stream): stream for stream in (*present, sys.__stdout__, sys.__stderr__)}
    for stream in streams.values():
        error = _flush(stream)
        if error is not None and any(stream is counted for counted in present):
            status = FLUSH_FAILED if status >= 0 else status
            try:  # noqa: SIM105  (no import of contextlib: each page of memory costs time)
                print(f"Exception ignored in: {stream!r}\n{type(error).__name__}: {error}", file=sys.stderr)
            except BaseException:  # stderr is the stream that failed
                pass
    return status


def _flush(stream: Any) -> BaseException | None:
    """Write the last output of a stream; return its error."""
    try:
        is_closed = stream is None or stream.closed
    except BaseException:  # a stream without the attribute, or a detached one
        is_closed = False
    try:
        if not is_closed:
            stream.flush()
    except BaseException as error:
        return error
    return None


def run_session(source: str, next_cell: Callable[[int], bytes]) -> None:
    """Run cells in one namespace, one after the other. Does not return."""
    own, namespace, cells = os.getpid(), fresh_main(), Cells()
    stream: Any = sys.__stdout__
    output = stream.buffer.raw
    while True:
        output.line_is_complete = True
        status = flush_streams(run_code(source, namespace, cells.run))
        if os.getpid() != own:  # a child that the cell forked: it must not report the end of the cell
            os._exit(1 if status < 0 else status)
        source = next_cell(status).decode()
