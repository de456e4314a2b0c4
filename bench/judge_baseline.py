"""What bench/judge.py compares with: the public judge's way to run a call, behind our own API and Redis.

Eight processes, each with one call at a time: the program is written into a fresh folder, with limits that it sets
itself, and a new `python3` runs it there. No sandbox. `python -m bench.judge_baseline --redis URL`.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rstar2_train.judge.queue import HEARTBEAT_SECONDS, Consumer, QueueKeys, connect, ensure_group
from rstar2_train.judge.types import CallResult, QueuedCall

WORKERS = 8
PROLOGUE = """import resource, signal
signal.alarm({seconds})
resource.setrlimit(resource.RLIMIT_CPU, ({seconds}, resource.RLIM_INFINITY))
resource.setrlimit(resource.RLIMIT_AS, ({memory}, resource.RLIM_INFINITY))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
"""
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
ENVIRONMENT |= {"OPENBLAS_NUM_THREADS": "1", "PYTHONPYCACHEPREFIX": tempfile.mkdtemp(prefix="rstar2-baseline-")}
"""With bytecode of its own, written by the first calls: an environment without any would make every import slow."""


def run(call: QueuedCall) -> CallResult:
    """Run one program in a fresh interpreter."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source.py")
        seconds, memory = max(1, round(call.wall_seconds)), (call.memory_mib + 128) << 20
        source.write_text(PROLOGUE.format(seconds=seconds, memory=memory) + call.code)
        command = [sys.executable, str(source)]
        done = subprocess.run(
            command, input=call.stdin, capture_output=True, text=True, cwd=folder, env=ENVIRONMENT, check=False
        )
    status = "ok" if done.returncode == 0 else "error"
    return CallResult(status, done.stdout, done.stderr, done.returncode, 0.0, time.perf_counter() - began)


async def work(url: str) -> None:
    """One worker, until it is ended."""
    redis, names = connect(url), QueueKeys()
    consumer = Consumer(redis, f"baseline-{os.getpid()}", names)
    await ensure_group(redis, *consumer.streams)
    told = 0.0
    while True:
        if time.monotonic() - told > HEARTBEAT_SECONDS:
            told = time.monotonic()
            await consumer.heartbeat({"name": consumer.name, "executors": 1, "ready": 1, "busy": 0, "recycled": 0})
        for lease in await consumer.pull(names.calls, 1, block_ms=500):
            await consumer.finish([(lease, run(lease.call))])


def start(url: str) -> None:
    """Entry point of a worker's process."""
    asyncio.run(work(url))


def main() -> None:
    """Starts the workers and waits for them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--redis", required=True)
    url = parser.parse_args().redis
    workers = [multiprocessing.Process(target=start, args=(url,), daemon=True) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
