"""Generates load for a judge and measures it, for `rstar2 judge bench` and bench/judge.py.

Each caller has one call in flight and its own connection, which is the most expensive way to use the API. Every result
is checked.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import aiohttp

TEMPLATE = """
import os
import base64
import sys
import ast
import traceback
from typing import Optional, Any
import linecache
from types import CodeType
from contextlib import redirect_stdout, redirect_stderr
from io import StringIO

class PersistentExecutor:
    def __init__(self):
        self.exec_globals = {'__name__': '__main__', '__file__': '<string>', '__builtins__': __builtins__}

    def execute_code(self, code, replay_history_code):
        output = StringIO() if replay_history_code else sys.stdout
        body = ast.parse(code).body
        last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        try:
            with redirect_stdout(output):
                exec(compile(ast.Module(body, []), '<string>', 'exec'), self.exec_globals)
                value = last and eval(compile(ast.Expression(last.value), '<string>', 'eval'), self.exec_globals)
            if value is not None and not replay_history_code:
                print(repr(value))
        except Exception:
            if not replay_history_code:
                traceback.print_exc()
                os._exit(1)

persistent_executor = PersistentExecutor()
"""
"""The template of microsoft/rStar's tool client (rstar2_agent/tools/code_judge_utils.py), restated: the same imports,
and the code in base64. It replays the earlier cells of a session without their output."""
TEMPLATE_CELL = """
code_to_execute = base64.b64decode("{}".encode()).decode()
persistent_executor.execute_code(code_to_execute, replay_history_code={})
"""


def rstar_template(code: str, history: Sequence[str] = ()) -> str:
    """Return the program that rStar2-Agent's client sends for a cell; `history`: the earlier cells."""
    cells = [(cell, True) for cell in history] + [(code, False)]
    return TEMPLATE + "".join(
        TEMPLATE_CELL.format(base64.b64encode(cell.encode()).decode(), replayed) for cell, replayed in cells
    )


LIMITS = {"wallSeconds": 30, "memoryMiB": 1024}

Snippet = Callable[[int], tuple[str, str]]
"""Number of a call -> a program and its output. The warm-up of a sandbox contains none of these expressions."""

SNIPPETS: dict[str, Snippet] = {
    "print": lambda n: (f"print({n} + 1)", f"{n + 1}\n"),
    "numpy": lambda n: (
        f"import numpy as np\na = np.diag(np.arange(1.0, 6.0)) * {n + 1}\nprint(round(np.linalg.inv(a)[0, 0], 9))",
        f"{round(1 / (n + 1), 9)}\n",
    ),
    "sympy": lambda n: (
        f"from sympy import symbols, factor\nt = symbols('t')\nprint(factor(t**2 - {(n + 2) ** 2}))",
        f"(t - {n + 2})*(t + {n + 2})\n",
    ),
    "rstarClient": lambda n: (
        rstar_template(f"from sympy import symbols, factor\nt = symbols('t')\nprint(factor(t**2 - {(n + 2) ** 2}))"),
        f"(t - {n + 2})*(t + {n + 2})\n",
    ),
}
"""Programs by kind."""


class WrongAnswer(RuntimeError):
    """The judge's result differs from the output of the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """The measured load. Times are those of the callers, in seconds."""

    callers: int
    calls: int
    calls_per_second: float
    p50: float
    p99: float
    refused: int
    """Responses 503, after which the caller waited for Retry-After."""


async def measure_load(url: str, snippet: Snippet, *, callers: int, calls: int, token: str | None = None) -> LoadResult:
    """Run `calls` calls with `callers` concurrent callers. Raises WrongAnswer, and aiohttp.ClientError."""
    numbers, seconds, refused = itertools.count(), [], 0
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:

        async def caller() -> None:
            nonlocal refused
            while (n := next(numbers)) < calls:
                code, output = snippet(n)
                start = time.perf_counter()
                while True:
                    async with session.post(f"{url}/v1/run", json={"code": code, "limits": LIMITS}) as response:
                        if response.status != 503:
                            response.raise_for_status()
                            result = await response.json()
                            break
                        refused += 1
                        await asyncio.sleep(float(response.headers.get("Retry-After", 1)))
                seconds.append(time.perf_counter() - start)
                if (result["status"], result["stdout"]) != ("ok", output):
                    raise WrongAnswer(f"Snippet {n}: expected {output!r}, got {result}.")

        start = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(callers)))
        elapsed = time.perf_counter() - start
    percentiles = statistics.quantiles(seconds, n=100)
    return LoadResult(
        callers=callers,
        calls=calls,
        calls_per_second=calls / elapsed,
        p50=percentiles[49],
        p99=percentiles[98],
        refused=refused,
    )
