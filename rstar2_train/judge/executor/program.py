"""The executor: the first process of a sandbox. It forks one warm zygote per lane; a zygote forks a process per call.

It runs only inside the sandbox (`python -P -S -s program.py`, see `arguments`), where only the standard library and the
packages of the lanes exist. The worker outside has the other ends of the lanes' pipes; forkserver.c is the loop between
them. The status of a call is not decided here, but from forkserver.c's view of the process (judge/process_exit.py).

It imports as little as possible: each page of its memory costs time in every call (forkserver.c explains why).
"""

from __future__ import annotations

import _ast
import _signal  # type: ignore[import-not-found]
import atexit
import builtins
import gc
import io
import os
import site
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

FILENAME = "<snippet>"
MEMORY_SIGNAL = 64
"""The signal, the last real-time one, with which a call ends itself after an uncaught MemoryError: programs use
all exit statuses, but not this signal. A snippet that forges it harms only itself."""
FILES_FOLDER = "/tmp/out"
"""Folder whose files a call returns, if it asks for them."""
MAX_FILES, MAX_NAME, FILE_HEADS = 16, 100, 8192
"""Most files of a call; longest name, and most bytes of all heads on the wire (judge/returned_files.py)."""
USERS_PER_LANE = 32
"""User ids reserved per lane; USERS in forkserver.c is lower."""
WARM_UP_FILE = "warm_up.py"
"""A program next to forkserver.so: the warm-up of the check of answers (rewards/equality_program.py)."""
MODULES_FILE = "package_modules.txt"
"""A list of the modules of a job's packages, next to forkserver.so (sandbox/packages.py)."""
AST_ONLY = 0x400
"""PyCF_ONLY_AST: `compile` returns a tree, without an import of the module `ast`."""
FUTURE_FLAGS = 0x1FE0000
"""Flags of a code object that `from __future__ import` sets."""

# Typical programs of each lane. They run once in the zygote and fill caches that every child inherits.
WARM_UP = {
    "bare": "def gcd(a, b):\n    return gcd(b, a % b) if b else a\n"
    "print(gcd(48, 36), f'{1.5:.3f}', [x * x for x in range(3)], {'k': (1, 2)})\n7 * 3\n",
    "std": "import math, random, re, itertools, functools, collections, fractions, decimal, json, datetime, string\n"
    "import statistics, heapq, bisect, operator, typing, threading, time, copy, textwrap, cmath\n"
    "import base64, ast, traceback, linecache, contextlib, io, types\n"
    "print(fractions.Fraction(3, 4) + 1, collections.Counter('abca').most_common(1), re.findall('[0-9]+', 'a12'))\n",
    "numpy": "import base64, ast, traceback, linecache, contextlib\n"
    "import numpy as np\na = np.arange(9.0).reshape(3, 3) + np.eye(3)\n"
    "print(np.linalg.inv(a), np.linalg.det(a), a @ a, a.sum(axis=0), np.roots([1, -3, 2]))\n"
    "print(np.random.default_rng(1).random(), np.array([[1, 2]]) * 2.5)\n",
    "packages": "import base64, ast, traceback, linecache, contextlib\n",
    "sympy": "import base64, ast, traceback, linecache, contextlib\n"
    "from sympy import *\nx, y, n = symbols('x y n')\n"
    "print(factor(x**3 - 8), expand((x + y)**3), solve(x**2 - 5*x + 6, x), simplify(sin(x)**2 + cos(x)**2))\n"
    "print(diff(x**2 * exp(x), x), integrate(x**2, (x, 0, 3)), limit(sin(x)/x, x, 0), Rational(3, 6), isprime(97))\n"
    "print(factorint(360), binomial(7, 3), summation(n, (n, 1, 9)), sqrt(12), N(pi, 8))\n"
    "print(Matrix([[1, 2], [3, 4]]).det())\n"
    "print(solve([x + y - 3, x - y - 1], [x, y]), divisors(28), totient(36), gcd(12, 18), series(cos(x), x, 0, 4))\n",
}
FAILURES = ("def f(n):\n    return n / 0\nf(3)", "x = (", "undefined_name")


def run_source(source: str, namespace: dict[str, object]) -> None:
    """Run a program like a notebook cell: `sys.displayhook` prints the value of a last expression statement."""
    tree = compile(source, FILENAME, "exec", AST_ONLY)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], _ast.Expr) else None
    body = compile(tree, FILENAME, "exec", 0, True)
    exec(body, namespace)
    if last is not None:
        flags = body.co_flags & FUTURE_FLAGS
        exec(compile(_ast.Interactive([last]), FILENAME, "single", flags, True), namespace)


def run_script(source: str, namespace: dict[str, object]) -> None:
    """Run a program like a file: no value is printed."""
    exec(compile(source, FILENAME, "exec", 0, True), namespace)


def exit_at(milliseconds: int) -> None:
    """Exit after the time limit of a script with the last line that code-judge's programs print then.

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
    kind, error, trace = sys.exc_info()
    assert kind is not None and error is not None
    if isinstance(error, SystemExit):
        code = error.code
        if code is None or isinstance(code, int):
            return (code or 0) & 0xFF
        print(code, file=sys.stderr)
        return 1
    while trace is not None and trace.tb_frame.f_code.co_filename != FILENAME:
        trace = trace.tb_next
    sys.excepthook(kind, error.with_traceback(trace), trace)
    return -MEMORY_SIGNAL if isinstance(error, MemoryError) else 1


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
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    return module.__dict__


def run_call(source: str, *, to_the_end: bool, run: Callable[[str, dict[str, object]], None] = run_source) -> int:
    """Run one snippet; return its exit status.

    `to_the_end`: also wait for its threads and run its exit functions. That is possible once per process.
    """
    status = 0
    try:
        status = run_cell(source, fresh_main(), run)
        if to_the_end:
            if "threading" in sys.modules:
                sys.modules["threading"]._shutdown()
            atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # an exit function failed, or the streams are closed: report it like an interpreter
        status = status or report_exception()
    return status


def run_cell(
    source: str, namespace: dict[str, object], run: Callable[[str, dict[str, object]], None] = run_source
) -> int:
    """Run a program in a namespace. Return the exit status that its process would have."""
    try:
        run(source, namespace)
    except BaseException:
        return report_exception()
    return 0


def run_session(source: str, next_cell: Callable[[int], bytes]) -> None:
    """Run cells in one namespace, one after the other. Does not return."""
    own, namespace = os.getpid(), fresh_main()
    while True:
        status = run_cell(source, namespace)
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            status = status or report_exception()
        if os.getpid() != own:  # a child that the cell forked: it must not report the end of the cell
            os._exit(1 if status < 0 else status)
        source = next_cell(status).decode()


def send_files(limit: int) -> None:
    """Write the files of FILES_FOLDER to descriptor 0, the socket of the parent, for judge/returned_files.py.

    `limit`: bytes on the wire. A file whose content would exceed it is sent without content.
    """
    left = limit - FILE_HEADS
    try:
        with os.scandir(FILES_FOLDER) as entries:
            files = sorted(entry.name for entry in entries if entry.is_file(follow_symlinks=False))
        for name in files[:MAX_FILES]:
            with open(f"{FILES_FOLDER}/{name}", "rb") as file:  # noqa: PTH123
                content = file.read(left + 1)
                size = os.fstat(file.fileno()).st_size
            kept = len(content) <= left and size == len(content)
            content = content if kept else b""
            left -= len(content)
            data = memoryview(f"{size} {int(kept)} {name[:MAX_NAME]}\n".encode() + content)
            while data:
                data = data[os.write(0, data) :]
    except Exception:  # no folder, a closed socket, no memory: the status of the call is that of its program
        pass


def extra_warm_up(lane: str, folder: str) -> list[str]:
    """Return the program WARM_UP_FILE for the lane `std`, and imports of MODULES_FILE for the lane `packages`.

    A module that cannot be imported is skipped: the job's own check of imports reports it.
    """
    name = {"std": WARM_UP_FILE, "packages": MODULES_FILE}.get(lane)
    if name is None:
        return []
    try:
        with open(f"{folder}/{name}") as file:  # noqa: PTH123  (no pathlib: each page of memory costs time)
            text = file.read()
    except FileNotFoundError:
        return []
    if lane == "std":
        return [text]
    return [f"try:\n    import {module}\nexcept Exception:\n    pass\n" for module in text.split()]


def warm_up(lane: str, folder: str = "") -> None:
    """Run the lane's typical programs, and some that fail, and discard their output."""
    saved = sys.stdout, sys.stderr, sys.modules["__main__"]
    sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
    programs = [WARM_UP[name] for name in {"bare", lane}]
    for program in programs + extra_warm_up(lane, folder):
        if run_call(program, to_the_end=False) != 0:
            os.write(2, f"executor: warm-up of {lane}: {sys.stderr.getvalue()}\n".encode())
            os._exit(70)
    for source in FAILURES:
        run_call(source, to_the_end=False)
    del builtins._  # type: ignore[attr-defined]  # the last value that sys.displayhook printed
    sys.stdout, sys.stderr, sys.modules["__main__"] = saved


def reseed() -> None:
    """Set new seeds of the random generators that do not reseed after a fork (that of the standard library does)."""
    for name in ("numpy.random", "sympy.core.random"):
        if name in sys.modules:
            sys.modules[name].seed()


def zygote_main(lane: str, pipes: tuple[int, int], settings: list[int]) -> None:
    """Run a lane: warm up, then serve calls until the worker closes the pipe. serve() returns in each child."""
    forkserver = __import__("forkserver")
    folder = sys.path[0]
    del sys.modules["forkserver"], sys.path[0]
    gc.disable()
    warm_up(lane, folder)
    gc.collect()
    gc.freeze()
    code, is_session, script_ms, file_bytes = forkserver.serve(*pipes, *settings)
    gc.enable()
    reseed()
    if is_session:
        run_session(code.decode(), forkserver.next_cell)
    if script_ms:
        exit_at(script_ms)
    own = os.getpid()
    file_bytes = file_bytes if settings[0] else 0  # without a sandbox, the folder is that of all calls
    if file_bytes:
        os.mkdir(FILES_FOLDER)  # noqa: PTH102
    status = run_call(code.decode(), to_the_end=True, run=run_script if script_ms else run_source)
    if os.getpid() == own:  # not a child that the program forked
        if file_bytes:
            send_files(file_bytes)
        if status == -MEMORY_SIGNAL:
            end_by_memory_signal()
    os._exit(1 if status < 0 else status)


def add_builtins() -> None:
    """Add `exit`, `help`, `license` and the others that the module `site` adds to a fresh interpreter."""
    site.setquit()
    site.setcopyright()
    site.sethelper()


def arguments() -> tuple[str, list[str], list[int], dict[str, tuple[int, int]]]:
    """Parse the command line: folder of forkserver.so, import paths, the integers for serve(), pipes per lane."""
    folder, paths, numbers, *lanes = sys.argv[1:]
    pipes = {}
    for lane in lanes:
        name, requests, responses = lane.split(":")
        pipes[name] = (int(requests), int(responses))
    return folder, paths.split(":"), [int(number) for number in numbers.split(",")], pipes


def main() -> None:
    """Start the zygotes, and exit when any of them exits: the worker then replaces the sandbox."""
    folder, paths, numbers, lanes = arguments()
    sys.path[:] = [folder, *sys.path, *paths]
    sys.argv = [""]
    add_builtins()
    *settings, first_user = numbers
    for index, (lane, pipes) in enumerate(lanes.items()):
        if os.fork() == 0:
            for other in lanes.values():
                if other != pipes:
                    os.close(other[0])
                    os.close(other[1])
            zygote_main(lane, pipes, [*settings, first_user + index * USERS_PER_LANE if first_user >= 0 else -1])
    for requests, responses in lanes.values():
        os.close(requests)
        os.close(responses)
    _, status = os.wait()
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


if __name__ == "__main__":
    main()
