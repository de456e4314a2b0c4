"""The executor: the first process of a sandbox. Forks a warmed-up zygote a lane, each of which forks a process a call.

Runs inside the sandbox only (`python -P -s program.py '{"lanes": [...], ...}'`), where nothing but the standard library
and the lane's own packages exist. The worker outside holds the other ends of the lanes' pipes; forkserver.c is the
loop between them. Nothing here decides a call's status: that is forkserver.c's view of the process, and the worker's.
"""

from __future__ import annotations

import _ast
import _thread
import atexit
import builtins
import ctypes
import gc
import io
import json
import linecache
import os
import pathlib
import resource
import signal
import struct
import sys
import threading
import traceback
import types
from collections.abc import Callable

REQUEST = struct.Struct("<QIIIIII")
FILENAME = "<snippet>"
MEMORY_EXIT = 85
"""Exit status of a call that ended with an uncaught MemoryError (a snippet that forges it only harms itself)."""
MAX_FILE_BYTES = 32 << 20
MAX_OPEN_FILES = 64
AST_ONLY = 0x400
"""PyCF_ONLY_AST: `compile` to a tree (the module `ast` is not needed)."""
FUTURE_FLAGS = 0x1FE0000
"""What `from __future__ import` switches on in a code object's flags."""

# Typical programs of each lane. Run once in the zygote, they fill caches that every child then has.
WARM_UP = {
    "bare": "import math, random, re, itertools, functools, collections, fractions, decimal, json, datetime, string\n"
    "def gcd(a, b):\n    return gcd(b, a % b) if b else a\n"
    "print(gcd(48, 36), f'{1.5:.3f}', [x * x for x in range(3)], {'k': (1, 2)}, math.sqrt(2.0))\n"
    "print(fractions.Fraction(3, 4) + 1, collections.Counter('abca').most_common(1), re.findall('[0-9]+', 'a12'))\n"
    "7 * 3\n",
    "numpy": "import numpy as np\na = np.arange(9.0).reshape(3, 3) + np.eye(3)\n"
    "print(np.linalg.inv(a), np.linalg.det(a), a @ a, a.sum(axis=0), np.roots([1, -3, 2]))\n"
    "print(np.random.default_rng(1).random(), np.array([[1, 2]]) * 2.5)\n",
    "sympy": "from sympy import *\nx, y, n = symbols('x y n')\n"
    "print(factor(x**3 - 8), expand((x + y)**3), solve(x**2 - 5*x + 6, x), simplify(sin(x)**2 + cos(x)**2))\n"
    "print(diff(x**2 * exp(x), x), integrate(x**2, (x, 0, 3)), limit(sin(x)/x, x, 0), Rational(3, 6), isprime(97))\n"
    "print(factorint(360), binomial(7, 3), summation(n, (n, 1, 9)), sqrt(12), N(pi, 8))\n"
    "print(Matrix([[1, 2], [3, 4]]).det())\n"
    "print(solve([x + y - 3, x - y - 1], [x, y]), divisors(28), totient(36), gcd(12, 18), series(cos(x), x, 0, 4))\n",
}


def run_source(source: str, namespace: dict[str, object]) -> None:
    """Runs a program as a notebook cell: the value of a last expression statement is shown by `sys.displayhook`."""
    tree = compile(source, FILENAME, "exec", AST_ONLY)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], _ast.Expr) else None
    body = compile(tree, FILENAME, "exec", 0, True)
    exec(body, namespace)
    if last is not None:
        flags = body.co_flags & FUTURE_FLAGS
        exec(compile(_ast.Interactive([last]), FILENAME, "single", flags, True), namespace)


def report_exception(source: str) -> int:
    """Prints the current exception as an interpreter would, less our own frames; returns the exit status."""
    kind, error, trace = sys.exc_info()
    if isinstance(error, SystemExit):
        code = error.code
        if code is None or isinstance(code, int):
            return (code or 0) & 0xFF
        print(code, file=sys.stderr)
        return 1
    while trace is not None and trace.tb_frame.f_code.co_filename != FILENAME:
        trace = trace.tb_next
    linecache.cache[FILENAME] = (len(source), None, source.splitlines(True), FILENAME)
    traceback.print_exception(kind, error, trace)
    return MEMORY_EXIT if isinstance(error, MemoryError) else 1


def run_call(source: str, *, to_the_end: bool = True) -> int:
    """Runs one snippet; `to_the_end`: with its threads and exit functions, once a process. Returns the exit status."""
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    status = 0
    try:
        try:
            run_source(source, module.__dict__)
        except BaseException:
            status = report_exception(source)
        if to_the_end:
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # an exit function, or closed streams: as an interpreter, not more than that
        status = status or report_exception(source)
    return status


def read_exactly(count: int) -> bytes:
    """Reads `count` bytes of descriptor 0: the rest stays there as the snippet's stdin."""
    parts = []
    while count:
        part = os.read(0, min(count, 1 << 20))
        if not part:
            os._exit(70)
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def limit_call(memory_mib: int, processes: int) -> None:
    """Sets the limits of this process, for good: address space is counted beyond what the zygote already maps."""
    mapped = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * 4096
    for what, value in (
        (resource.RLIMIT_AS, mapped + (memory_mib << 20)),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (value, value))


def child_main(others: int) -> None:
    """Runs in the process of one call, made ahead of it: waits for the snippet, runs it, ends."""
    _, code_bytes, _, _, memory_mib, _, processes = REQUEST.unpack(read_exactly(REQUEST.size))
    source = read_exactly(code_bytes).decode()
    limit_call(memory_mib, processes + others)
    gc.enable()
    os._exit(run_call(source))


def warm_up(lane: str) -> None:
    """Runs the lane's typical programs, an error's traceback too, with the output thrown away."""
    kept = sys.stdout, sys.stderr, sys.modules["__main__"]
    sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
    for name in {"bare", lane}:
        if run_call(WARM_UP[name], to_the_end=False) != 0:
            os.write(2, f"executor: warm-up of {name}: {sys.stderr.getvalue()}\n".encode())
            os._exit(70)
    run_call("def f(n):\n    return n / 0\nf(3)", to_the_end=False)
    run_call("x = (", to_the_end=False)
    sys.stdout, sys.stderr, sys.modules["__main__"] = kept
    linecache.clearcache()


def zygote_main(lane: str, requests: int, responses: int, config: dict[str, int | str]) -> None:
    """A lane: warm up, say so (a response with id 0), then serve calls until the worker closes the pipe."""
    gc.disable()
    warm_up(lane)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    library = ctypes.PyDLL(str(config["library"]))
    library.serve.argtypes = [ctypes.c_int] * 3 + [ctypes.c_size_t] * 2
    gc.collect()
    gc.freeze()
    os.write(responses, struct.pack("<QiIIIII", 0, 0, 0, 0, 0, 0, 0))
    serve: Callable[..., int] = library.serve
    if serve(requests, responses, int(config["namespaces"]), int(config["payload_bytes"]), int(config["output_bytes"])):
        child_main(int(config["others"]))
    os._exit(0)


def main() -> None:
    """Starts the zygotes and ends when any of them ends: the worker then throws the sandbox away."""
    config = json.loads(sys.argv[1])
    lanes: dict[str, list[int]] = config["lanes"]
    for lane, (requests, responses) in lanes.items():
        if os.fork() == 0:
            for other, ends in lanes.items():
                if other != lane:
                    os.close(ends[0])
                    os.close(ends[1])
            zygote_main(lane, requests, responses, config)
    for requests, responses in lanes.values():
        os.close(requests)
        os.close(responses)
    _, status = os.wait()
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


if __name__ == "__main__":
    _thread.stack_size(1 << 20)  # threads of a snippet: 8 MB of address space each would soon meet its limit
    main()
