"""A load for a judge, and what it took: for `rstar2 judge bench`, and for both sides of bench/judge.py.

Each caller has one call at a time and a connection of its own, which is the hardest way to use the API. Every answer
is checked.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

LIMITS = {"wallSeconds": 30, "memoryMiB": 1024}

SNIPPETS: dict[str, Callable[[int], tuple[str, str]]] = {
    "print": lambda n: (f"print({n} + 1)", f"{n + 1}\n"),
    "numpy": lambda n: (
        f"import numpy as np\na = np.diag(np.arange(1.0, 6.0)) * {n + 1}\nprint(round(np.linalg.inv(a)[0, 0], 9))",
        f"{round(1 / (n + 1), 9)}\n",
    ),
    "sympy": lambda n: (
        f"from sympy import symbols, factor\nt = symbols('t')\nprint(factor(t**2 - {(n + 2) ** 2}))",
        f"(t - {n + 2})*(t + {n + 2})\n",
    ),
}
"""Number of a call -> a program, and what it prints. No warm-up of a sandbox has seen these expressions."""


class WrongAnswer(RuntimeError):
    """The judge answered something else than what the program prints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What a load took. Times in seconds, as the callers saw them."""

    callers: int
    calls: int
    calls_per_second: float
    p50: float
    p99: float
    refused: int
    """Answers 503, after which the caller waited as long as it was told."""

    @property
    def over_fair_share(self) -> float:
        """p99 over the time that a call takes when all callers are served in turn (callers / calls a second)."""
        return self.p99 / (self.callers / self.calls_per_second)


async def measure_load(url: str, kind: str, *, callers: int, calls: int, token: str | None = None) -> LoadResult:
    """`callers` at once, `calls` in all. Raises WrongAnswer; aiohttp.ClientError for a refused or lost connection."""
    numbers, seconds, refused = itertools.count(), [], 0
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:

        async def caller() -> None:
            nonlocal refused
            while (n := next(numbers)) < calls:
                code, printed = SNIPPETS[kind](n)
                began = time.perf_counter()
                while True:
                    async with session.post(f"{url}/v1/run", json={"code": code, "limits": LIMITS}) as answer:
                        if answer.status != 503:
                            answer.raise_for_status()
                            result = await answer.json()
                            break
                        refused += 1
                        await asyncio.sleep(float(answer.headers.get("Retry-After", 1)))
                seconds.append(time.perf_counter() - began)
                if (result["status"], result["stdout"]) != ("ok", printed):
                    raise WrongAnswer(f"{kind} snippet {n}: expected {printed!r}, got {result}")

        began = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(callers)))
        elapsed = time.perf_counter() - began
    ranks = statistics.quantiles(seconds, n=100)
    rate = calls / elapsed
    return LoadResult(
        callers=callers, calls=calls, calls_per_second=rate, p50=ranks[49], p99=ranks[98], refused=refused
    )
