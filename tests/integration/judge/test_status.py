"""Each status of a call, through HTTP, Redis and a real gVisor sandbox."""

from collections.abc import Callable

import httpx
import pytest

from rstar2_train.judge.types import MAX_CODE_BYTES, CallResult
from tests.support.unsupervised_judge import UnsupervisedJudge
from tests.support.waiting import until

Run = Callable[..., CallResult]


@pytest.mark.parametrize(
    ("code", "stdin", "stdout"),
    [
        ("print(12 * 17)", "", "204\n"),
        ("12 * 17", "", "204\n"),
        ("x = 5\nx * 2", "", "10\n"),
        ("None", "", ""),
        ("from __future__ import annotations\ndef f(a: b): pass\n'shown'", "", "'shown'\n"),
        ("print(input(), input())", "a\nb\n", "a b\n"),
        ("import sys\nprint(len(sys.stdin.read()))", "x" * 300_000, "300000\n"),
        ("print('\\u00e9\\u4e2d')", "", "\u00e9\u4e2d\n"),
        ("import sys\nsys.stdout.buffer.write(b'\\xff\\n')\nNone", "", "\ufffd\n"),
        ("if __name__ == '__main__': print('main')", "", "main\n"),
        ("import atexit\natexit.register(print, 'last')\nprint('first')", "", "first\nlast\n"),
        ("import threading\nthreading.Timer(0.05, lambda: print('thread')).start()", "", "thread\n"),
        ("raise SystemExit(0)", "", ""),
        ("print(1)\nexit()", "", "1\n"),
        ("print([n for n in ('copyright', 'credits', 'help', 'license') if n not in dir(__builtins__)])", "", "[]\n"),
        ("help", "", "Type help() for interactive help, or help(object) for help about object.\n"),
        (
            "help(ord)",
            "",
            "Help on built-in function ord in module builtins:\n\nord(c, /)\n"
            "    Return the Unicode code point for a one-character string.\n\n",
        ),
        ("from fractions import Fraction\nFraction(1, 3) + 1", "", "Fraction(4, 3)\n"),
        ("import os\nos._exit(0)", "", ""),
        ("import numpy as np\nprint(np.linalg.inv(np.eye(2) * 2).tolist())", "", "[[0.5, 0.0], [0.0, 0.5]]\n"),
        ("from sympy import symbols, factor\nx = symbols('x')\nfactor(x**2 - 1)", "", "(x - 1)*(x + 1)\n"),
        ("def f():\n    import sympy\n    return sympy.Rational(1, 3)\nprint(f())", "", "1/3\n"),
        ("import multiprocessing as m\nwith m.Pool(4) as p: print(p.map(abs, range(-3, 0)))", "", "[3, 2, 1]\n"),
        ("import multiprocessing as m\nwith m.Pool(16) as p: print(p.map(abs, range(-1, 0)))", "", "[1]\n"),
        (
            "import concurrent.futures as f, time\nwith f.ThreadPoolExecutor(32) as p:\n"
            "    print(len(list(p.map(time.sleep, [0.2] * 32))))",
            "",
            "32\n",
        ),
        (
            "import threading, time\nt = [threading.Thread(target=time.sleep, args=(0.2,)) for _ in range(16)]\n"
            "for one in t: one.start()\nprint(len(t))",
            "",
            "16\n",
        ),
        ("import math_verify as m\nm.verify(m.parse('$1/2$'), m.parse('$0.5$'))", "", "True\n"),
    ],
)
def test_call_status_ok(run: Run, code: str, stdin: str, stdout: str) -> None:
    """Programs that exit with status 0: their output, stdin, threads, exit functions and packages."""
    result = run(code, stdin)
    assert (result.status, result.stdout, result.stderr, result.exit_code) == ("ok", stdout, "", 0)
    assert result.run_seconds > 0


@pytest.mark.parametrize(
    ("code", "exit_code", "last_line"),
    [
        (
            "import math\nmath.sqroot(4)",
            1,
            "AttributeError: module 'math' has no attribute 'sqroot'. Did you mean: 'sqrt'?",
        ),
        ("print(undefined_name)", 1, "NameError: name 'undefined_name' is not defined"),
        ("print(_)", 1, "NameError: name '_' is not defined"),
        ("import re\nprint(_)", 1, "NameError: name '_' is not defined"),
        ("x = (", 1, "SyntaxError: '(' was never closed"),
        ("def f(n):\n    return f(n)\nf(1)", 1, "RecursionError: maximum recursion depth exceeded"),
        ("import sys\nsys.exit(3)", 3, ""),
        ("import sys\nsys.exit(85)", 85, ""),
        ("import os\nos._exit(85)", 85, ""),
        ("import sys\nsys.exit('bad end')", 1, "bad end"),
        ("import ctypes\nctypes.string_at(0)", -11, "ended by signal 11 (SIGSEGV)"),
        ("import os\nos.abort()", -6, "ended by signal 6 (SIGABRT)"),
        ("import signal\nsignal.raise_signal(signal.SIGALRM)", -14, "ended by signal 14 (SIGALRM)"),
        ("input()", 1, "EOFError: EOF when reading a line"),
        ("import scapy_is_not_here", 1, "ModuleNotFoundError: No module named 'scapy_is_not_here'"),
    ],
)
def test_call_status_error(run: Run, code: str, exit_code: int, last_line: str) -> None:
    """Programs that fail: their exit status and the last line of stderr."""
    result = run(code)
    assert (result.status, result.exit_code) == ("error", exit_code)
    assert result.stderr.strip().endswith(last_line)


def test_call_traceback_contains_only_the_snippet(run: Run) -> None:
    """A traceback has no frame of the executor."""
    result = run("def half(n):\n    return n / 0\nhalf(1)")
    assert result.stderr == (
        'Traceback (most recent call last):\n  File "<snippet>", line 3, in <module>\n'
        '  File "<snippet>", line 2, in half\nZeroDivisionError: division by zero\n'
    )


@pytest.mark.parametrize(
    "code",
    [
        "import time\nprint('before', flush=True)\ntime.sleep(60)",
        "print('before', flush=True)\nwhile True: pass",
        "import signal, time\nprint('before', flush=True)\n"
        "for n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n    except OSError: pass\n"
        "signal.alarm(0)\nwhile True: time.sleep(1)",
    ],
)
def test_call_status_timeout(run: Run, code: str) -> None:
    """The output before the timeout is kept, and signals cannot prevent it."""
    result = run(code, wall_seconds=1.5)
    assert (result.status, result.stdout, result.exit_code) == ("timeout", "before\n", None)


def test_call_status_memory_of_one_process(run: Run) -> None:
    """The limit applies to the memory beyond that of the zygote."""
    assert run("x = bytearray(10**10)").status == "memory"
    assert run("print(len(bytearray(60 << 20)))", memory_mib=96, wall_seconds=60).status == "ok"
    assert run("print(len(bytearray(60 << 20)))", memory_mib=48).status == "memory"
    small = run("x = []\nwhile True: x.append(str(len(x)))", memory_mib=48, wall_seconds=60)
    assert (small.status, small.exit_code, small.stderr.splitlines()[-1]) == ("memory", 1, "MemoryError")


def test_call_forked_child_without_memory_exits_with_1(run: Run) -> None:
    """A child that the program forked ends like one of a fresh interpreter."""
    code = "import os\nif os.fork() == 0: bytearray(10**10)\nprint(os.wait()[1] >> 8)"
    result = run(code, wall_seconds=60)
    assert (result.status, result.stdout) == ("ok", "1\n")


def test_call_caught_memory_error_is_ok(run: Run) -> None:
    """A program may handle a MemoryError."""
    assert run("try:\n    bytearray(10**10)\nexcept MemoryError:\n    print('caught')").stdout == "caught\n"


def test_call_status_output_limit(run: Run) -> None:
    """Each stream is cut at the limit; output up to the limit is allowed."""
    result = run("while True: print('x' * 999)", output_bytes=4096)
    assert (result.status, len(result.stdout)) == ("output_limit", 4096)
    assert run("import sys\nsys.stderr.write('x' * 5000)", output_bytes=4096).status == "output_limit"
    assert run("print('x' * 4095)", output_bytes=4096).status == "ok"


def test_call_status_invalid_is_not_run(run: Run) -> None:
    """Code over the size limit is rejected by the client."""
    result = run("#" * (MAX_CODE_BYTES + 1))
    assert (result.status, result.run_seconds) == ("invalid", 0.0)
    assert "at most" in result.stderr


def test_call_with_surrogates_or_null_bytes_is_answered(run: Run) -> None:
    """Unusual code is an error of the program, and the next call works."""
    assert run("print('\udc80')").status == "invalid"
    assert run("print('\\ud800')").status == "error"
    assert run("x = 1\0").status == "error"
    assert run("print(1)").status == "ok"


def test_api_status_and_single_call(judge: UnsupervisedJudge) -> None:
    """The status lists the sandbox; /v1/run and /ping answer."""
    until(lambda: judge.status()["ready"] and judge.status()["executors"]["ready"] == 1, "the sandbox is reported")
    assert judge.report()["isolation"] == "gvisor"
    call = {"code": "print(input())", "stdin": "hi"}
    response = httpx.post(f"{judge.url}/v1/run", json=call, trust_env=False, timeout=60)
    assert response.json()["stdout"] == "hi\n" and response.json()["status"] == "ok"
    assert httpx.get(f"{judge.url}/ping", trust_env=False, timeout=60).json() == "pong"


def test_api_invalid_request_names_the_field(judge: UnsupervisedJudge) -> None:
    """A request with a wrong field, or too many calls, gets 422 with the name of the field."""
    for body, field in (
        ({"code": 5}, "code"),
        ({"code": "", "colour": 1}, "colour"),
        ({"code": "", "limits": {"wallSeconds": -1}}, "wallSeconds"),
    ):
        response = httpx.post(f"{judge.url}/v1/run", json=body, trust_env=False, timeout=60)
        assert response.status_code == 422 and field in response.text
    response = httpx.post(f"{judge.url}/v1/batch", json={"calls": [{"code": ""}] * 65}, trust_env=False, timeout=60)
    assert response.status_code == 422


def test_api_batch_without_ndjson_keeps_the_order(judge: UnsupervisedJudge) -> None:
    """A batch in one JSON response has its results in the order of the calls."""
    calls = [{"code": f"print({n})"} for n in range(8)]
    response = httpx.post(f"{judge.url}/v1/batch", json={"calls": calls}, timeout=60, trust_env=False)
    assert [result["stdout"] for result in response.json()["results"]] == [f"{n}\n" for n in range(8)]
