"""The executor: the first process of a sandbox. It forks one warm zygote per lane; a zygote forks a process per call.

It runs only inside the sandbox (`python -P -S -s program.py`, see `arguments`), where only the standard library and the
packages of the lanes exist. The worker outside has the other ends of the lanes' pipes; forkserver.c is the loop between
them. The status of a call is not decided here, but from forkserver.c's view of the process (judge/process_exit.py).

It imports as little as possible: each page of its memory costs time in every call (forkserver.c explains why).
"""

from __future__ import annotations

import builtins
import gc
import io
import os
import site
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OPEN, CODE_JUDGE, SCRIPT = 1, 4, 5
"""Verbs of a request (forkserver.h); the others are calls that run like a notebook cell."""
SOCKET = 63
"""Descriptor over which a call sends its files; CHILD_SOCKET in forkserver.h."""
FILES_FOLDER = "/tmp/out"
"""Folder whose files a call returns, if it asks for them."""
MAX_FILES, MAX_NAME, FILE_HEADS = 16, 100, 8192
"""Most files of a call; longest name, and most bytes of all heads on the wire (judge/returned_files.py)."""
USERS_PER_LANE = 32
"""User ids reserved per lane; USERS in forkserver.c is lower."""
WARM_UP_FILE = "warm_up.py"
"""A program next to forkserver.so: it imports the warm-up modules of packages (judge/sandbox/rootfs.py)."""
MODULES_FILE = "package_modules.txt"
"""A list of the modules of a job's packages, next to forkserver.so (sandbox/packages.py)."""
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


def send_files(limit: int) -> None:
    """Write the files of FILES_FOLDER to the socket of the parent, for judge/returned_files.py.

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
                data = data[os.write(SOCKET, data) :]
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


def warm_up(run_program: Any, lane: str, folder: str) -> None:
    """Run the lane's typical programs, and some that fail, and discard their output."""
    saved = sys.stdout, sys.stderr, sys.modules["__main__"]
    sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
    programs = [WARM_UP[name] for name in {"bare", lane}]
    for program in programs + extra_warm_up(lane, folder):
        if run_program.run_call(program, to_the_end=False) != 0:
            os.write(2, f"executor: warm-up of {lane}: {sys.stderr.getvalue()}\n".encode())
            os._exit(70)
    for source in FAILURES:
        run_program.run_call(source, to_the_end=False)
    del builtins._, builtins.display  # type: ignore[attr-defined]  # the last value, and a function of cells
    sys.stdout, sys.stderr, sys.modules["__main__"] = saved


def reseed() -> None:
    """Set new seeds of the random generators that do not reseed after a fork (that of the standard library does)."""
    for name in ("numpy.random", "sympy.core.random"):
        if name in sys.modules:
            sys.modules[name].seed()


def zygote_main(lane: str, pipes: tuple[int, int], settings: list[int]) -> None:
    """Run a lane: warm up, then serve calls until the worker closes the pipe. serve() returns in each child."""
    forkserver, run_program = __import__("forkserver"), __import__("run_program")
    folder = sys.path[0]
    del sys.modules["forkserver"], sys.modules["run_program"], sys.path[:2]
    run_program.replace_stdout()
    gc.disable()
    warm_up(run_program, lane, folder)
    gc.collect()
    gc.freeze()
    code, verb, wall_ms, memory_mib, file_bytes = forkserver.serve(*pipes, *settings)
    gc.enable()
    reseed()
    sys.path.insert(0, "")  # modules that the program writes
    run_program.cap_stack_size(memory_mib << 19)  # half of the call's memory
    if verb == OPEN:
        run_program.run_session(code.decode(), forkserver.next_cell)
    if verb == CODE_JUDGE:
        run_program.exit_at(wall_ms)
    own = os.getpid()
    file_bytes = file_bytes if settings[0] else 0  # without a sandbox, the folder is that of all calls
    if file_bytes:
        os.mkdir(FILES_FOLDER)  # noqa: PTH102
    run = run_program.run_script if verb in (CODE_JUDGE, SCRIPT) else None
    status = run_program.run_call(code.decode(), to_the_end=True, run=run)
    forkserver.flush()
    if os.getpid() == own:  # not a child that the program forked
        if file_bytes:
            send_files(file_bytes)
        if status == -run_program.MEMORY_SIGNAL:
            run_program.end_by_memory_signal()
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
    sys.path[:] = [folder, os.path.dirname(os.path.abspath(__file__)), *sys.path, *paths]  # noqa: PTH100, PTH120
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
