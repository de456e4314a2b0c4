"""A soak test of the judge: thousands of queued calls and some sessions, while workers, sandboxes and Redis are killed.

Used by bench/judge.py, and in a small version by the tests. Each call must have exactly one result, the correct one.
Each cell of a session must run once, in order, or the session must be reported as lost.
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.judge.types import MAX_BATCH, CallResult
from tests.support.unsupervised_judge import UnsupervisedJudge

PARALLEL_BATCHES = 120
"""Batches in flight. 120 batches of 64 calls are near the limit of the API; the other batches wait at the caller."""
SESSIONS = 8
VICTIMS = ("worker", "sandbox", "redis", "sandbox")
"""The kills of a round."""
CELL = "n = globals().get('n', 0) + 1\nprint(n)"


class SoakTally:
    """The results of all calls."""

    def __init__(self) -> None:
        self.answers: Counter[int] = Counter()
        """Call -> number of results."""
        self.answered = asyncio.Event()
        """Set at each result."""
        self.wrong: list[tuple[int, Any]] = []
        self.lost = 0
        self.repeated = 0
        """Calls that the caller sent again, because the judge reported that it could not run them."""
        self.refused = 0
        """Batches that the judge rejected with 503."""
        self.cells = 0
        self.wrong_cells: list[tuple[int, CallResult]] = []
        """Cells without the state of the previous cells."""
        self.sessions_lost = 0

    def add(self, number: int, result: dict[str, Any]) -> bool:
        """Count a result. Return False for `internal`, which is not a result."""
        if result["status"] == "internal":
            self.repeated += 1
            return False
        self.answers[number] += 1
        self.answered.set()
        if (result["status"], result["stdout"]) != ("ok", f"{number * number}\n"):
            self.wrong.append((number, result))
        return True


async def send(session: aiohttp.ClientSession, url: str, numbers: list[int], tally: SoakTally) -> None:
    """Send one batch until each of its calls has a result."""
    remaining = list(numbers)
    while remaining:
        calls = [{"code": f"print({n} * {n})", "limits": {"wallSeconds": 60}} for n in remaining]
        async with session.post(f"{url}/v1/batch", json={"calls": calls}) as response:
            if response.status == 503:
                tally.refused += 1
                await asyncio.sleep(float(response.headers["Retry-After"]))
                continue
            response.raise_for_status()
            unanswered, retries = set(remaining), []
            async for line in response.content:
                if not line.strip():  # keep-alive
                    continue
                result = json.loads(line)
                number = remaining[result["index"]]
                unanswered.discard(number)
                if not tally.add(number, result):
                    retries.append(number)
        tally.lost += len(unanswered)  # accepted but without a result; not sent again
        remaining = retries


async def hold_sessions(client: JudgeClient, tally: SoakTally) -> None:
    """Run one session after another, each until it is lost, until this task is cancelled."""
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


async def kill_parts(
    stack: UnsupervisedJudge,
    kills: Counter[str],
    tally: SoakTally,
    *,
    workers: Sequence[str],
    every: float,
    rounds: int | None,
) -> None:
    """Kill and restart one part after another, `rounds` times, or until this task is cancelled.

    Waits for a result between two kills.
    """
    rng = random.Random(0)
    for _ in itertools.count() if rounds is None else range(rounds):
        for victim in rng.sample(VICTIMS, len(VICTIMS)):
            tally.answered.clear()
            await asyncio.sleep(every * rng.uniform(0.7, 1.3))
            await tally.answered.wait()  # on a busy machine, a sandbox may take longer than `every` to start
            worker = rng.choice(workers)
            if victim == "sandbox":
                kill_sandbox(stack.processes[worker].pid)
            else:
                part = worker if victim == "worker" else victim
                work = asyncio.ensure_future(asyncio.to_thread(restart, stack, part))
                try:
                    await asyncio.shield(work)
                finally:
                    await work  # also after a cancellation, so that the killed part is restarted
            kills[victim] += 1


def restart(stack: UnsupervisedJudge, name: str) -> None:
    """Kill and restart Redis or a worker."""
    stack.kill(name)
    if name == "redis":
        stack.start_redis()
    else:
        stack.start_worker(name)


def kill_sandbox(worker: int) -> None:
    """Kill the sandboxes of a worker, as a crash of gVisor would."""
    for child in psutil.Process(worker).children(recursive=True):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)


async def soak(
    folder: Path, *, calls: int, every: float = 4.0, rounds: int | None = None, workers: int = 1
) -> dict[str, Any]:
    """Queue `calls` calls, kill a part `every` few seconds, and return the counts.

    `rounds`: rounds of kills; None: until the last call has its result.
    """
    names = ("worker", *(f"worker-{number}" for number in range(2, workers + 1)))
    tally, kills = SoakTally(), Counter[str]()
    batches = iter([list(range(start, min(start + MAX_BATCH, calls))) for start in range(0, calls, MAX_BATCH)])
    with UnsupervisedJudge(folder, executors=1, lanes=("bare",)) as stack:
        for name in names[1:]:
            stack.start_worker(name)
        stack.wait_ready(workers)
        headers = {"Accept": "application/x-ndjson"}
        connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(headers=headers, connector=connector, timeout=timeout) as session,
            JudgeClient(stack.url) as client,
        ):

            async def sender() -> None:
                for numbers in batches:
                    await send(session, stack.url, numbers, tally)

            start, last_report = time.monotonic(), 0.0
            background = [kill_parts(stack, kills, tally, workers=names, every=every, rounds=rounds)]
            background += [hold_sessions(client, tally) for _ in range(SESSIONS)]
            running: set[asyncio.Future[Any]] = {asyncio.create_task(coroutine) for coroutine in background}
            senders: asyncio.Future[Any] = asyncio.gather(*(sender() for _ in range(PARALLEL_BATCHES)))
            try:
                while not senders.done():
                    done, _ = await asyncio.wait([senders, *running], timeout=1, return_when=asyncio.FIRST_COMPLETED)
                    for task in done & running:
                        task.result()
                    running -= done
                    if time.monotonic() - last_report > 15:
                        last_report = time.monotonic()
                        print(
                            f"soak: {len(tally.answers)} of {calls} calls done, kills: {dict(kills)}", file=sys.stderr
                        )
                await senders
            finally:
                for task in running:
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)
            seconds = time.monotonic() - start
            stack.wait_ready()
            resubmitted = stack.status()["resubmitted"]
    return {
        "calls": calls,
        "workers": workers,
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
