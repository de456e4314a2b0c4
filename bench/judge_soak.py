"""A soak: thousands of queued calls, and sessions beside them, while workers, sandboxes and Redis are killed.

For bench/judge.py, and in small for the tests. What is asked of each call: one answer, the right one; of each cell of
a session: that it ran once, after those before it, or that the session is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.judge.types import MAX_BATCH, CallResult
from tests.support.unsupervised_judge import UnsupervisedJudge

WORKERS = ("worker", "worker-2")
BATCHES_AT_ONCE = 120
"""120 x 64 calls are near the most that the API takes: the rest waits at the caller."""
SESSIONS = 8
CELL = "n = globals().get('n', 0) + 1\nprint(n)"


class Tally:
    """What came back for each call."""

    def __init__(self) -> None:
        self.answers: Counter[int] = Counter()
        self.heard = asyncio.Event()
        """Set at each answer."""
        self.wrong: list[tuple[int, Any]] = []
        self.lost = 0
        self.repeated = 0
        """Calls that the caller had to send again: the judge said that nobody could run them."""
        self.refused = 0
        """Batches that were told to come back later (503)."""
        self.cells = 0
        self.wrong_cells: list[tuple[int, CallResult]] = []
        """Cells that did not find what those before them had left."""
        self.sessions_lost = 0

    def take(self, number: int, result: dict[str, Any]) -> bool:
        """Count an answer; False for `internal`, which is none."""
        if result["status"] == "internal":
            self.repeated += 1
            return False
        self.answers[number] += 1
        self.heard.set()
        if (result["status"], result["stdout"]) != ("ok", f"{number * number}\n"):
            self.wrong.append((number, result))
        return True


async def send(session: aiohttp.ClientSession, url: str, numbers: list[int], tally: Tally) -> None:
    """One batch, until each of its calls is answered."""
    left = list(numbers)
    while left:
        calls = [{"code": f"print({n} * {n})", "limits": {"wallSeconds": 60}} for n in left]
        async with session.post(f"{url}/v1/batch", json={"calls": calls}) as answer:
            if answer.status == 503:
                tally.refused += 1
                await asyncio.sleep(float(answer.headers["Retry-After"]))
                continue
            answer.raise_for_status()
            silent, again = set(left), []
            async for line in answer.content:
                if not line.strip():  # a sign of life
                    continue
                result = json.loads(line)
                number = left[result["index"]]
                silent.discard(number)
                if not tally.take(number, result):
                    again.append(number)
        tally.lost += len(silent)  # accepted, and never answered: nobody asks again
        left = again


async def hold_sessions(client: JudgeClient, tally: Tally) -> None:
    """One session after the other, each as long as it lives, until cancelled."""
    while True:
        async with client.session() as session:
            for expected in itertools.count(1):
                result = await session.run(CELL)
                if result.status == "session_lost":
                    tally.sessions_lost += 1
                    break
                tally.cells += 1
                if (result.status, result.stdout) != ("ok", f"{expected}\n"):
                    tally.wrong_cells.append((expected, result))


async def kill_things(stack: UnsupervisedJudge, kills: Counter[str], tally: Tally, *, every: float, seed: int) -> None:
    """Kills one part after the other, and starts it again, until cancelled; not faster than the judge comes back."""
    chance = random.Random(seed)
    for victims in itertools.repeat(("worker", "sandbox", "redis", "sandbox")):
        for victim in chance.sample(victims, len(victims)):
            tally.heard.clear()
            await asyncio.sleep(every * chance.uniform(0.7, 1.3))
            await tally.heard.wait()  # on a busy machine a sandbox boots for longer than `every`
            worker = chance.choice(WORKERS)
            if victim == "sandbox":
                kill_sandbox(stack.processes[worker].pid)
            else:
                part = worker if victim == "worker" else victim
                work = asyncio.ensure_future(asyncio.to_thread(restart, stack, part))
                try:
                    await asyncio.shield(work)
                finally:
                    await work  # also when it is cancelled: what was killed is started again
            kills[victim] += 1


def restart(stack: UnsupervisedJudge, name: str) -> None:
    """Kills Redis or a worker, and starts it again."""
    stack.kill(name)
    if name == "redis":
        stack.start_redis()
    else:
        stack.start_worker(name)


def kill_sandbox(worker: int) -> None:
    """Ends the sandboxes of a worker, as a crash of gVisor would."""
    for child in psutil.Process(worker).children(recursive=True):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)


async def soak(folder: Path, *, calls: int, every: float = 4.0, seed: int = 0) -> dict[str, Any]:
    """Queue `calls` calls, kill something `every` so many seconds; what came of it."""
    tally, kills = Tally(), Counter[str]()
    batches = iter([list(range(start, min(start + MAX_BATCH, calls))) for start in range(0, calls, MAX_BATCH)])
    with UnsupervisedJudge(folder, executors=1, lanes=("bare",)) as stack:
        stack.start_worker(WORKERS[1])
        stack.wait_ready(len(WORKERS))
        headers = {"Accept": "application/x-ndjson"}
        connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(headers=headers, connector=connector, timeout=timeout) as session,
            JudgeClient(stack.url) as client,
        ):

            async def sender() -> None:
                for numbers in batches:
                    await send(session, stack.url, numbers, tally)

            began, told = time.monotonic(), 0.0
            beside = [kill_things(stack, kills, tally, every=every, seed=seed)]
            beside += [hold_sessions(client, tally) for _ in range(SESSIONS)]
            endless = [asyncio.create_task(one) for one in beside]
            senders = asyncio.gather(*(sender() for _ in range(BATCHES_AT_ONCE)))
            try:
                while not senders.done():
                    done, _ = await asyncio.wait([senders, *endless], timeout=1, return_when=asyncio.FIRST_COMPLETED)
                    for task in done - {senders}:
                        task.result()
                    if time.monotonic() - told > 15:
                        told = time.monotonic()
                        print(f"soak: {len(tally.answers)} of {calls} answered, {dict(kills)}", file=sys.stderr)
                await senders
            finally:
                for task in endless:
                    task.cancel()
                await asyncio.gather(*endless, return_exceptions=True)
            seconds = time.monotonic() - began
            stack.wait_ready()
            resubmitted = stack.status()["resubmitted"]
    return {
        "calls": calls,
        "lost": tally.lost,
        "duplicated": sum(times - 1 for times in tally.answers.values()),
        "wrong": len(tally.wrong),
        "kills": sum(kills.values()),
        "killsByPart": dict(kills),
        "sentAgainByTheCaller": tally.repeated,
        "submittedAgainByTheApi": resubmitted,
        "refusedBatches": tally.refused,
        "callsPerSecond": round(calls / seconds, 1),
        "sessions": {"cells": tally.cells, "wrong": len(tally.wrong_cells), "lost": tally.sessions_lost},
    }
