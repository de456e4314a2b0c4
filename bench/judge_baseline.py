"""The baseline of bench/judge.py: runs calls as the public judge does, with this project's API and Redis.

Eight processes run one call each at a time. The program is written into a fresh folder, sets its own limits, and runs
in a new `python3` without a sandbox. `python -m bench.judge_baseline --redis URL`.
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
from rstar2_train.judge.types import CallResult, QueuedCall, Status
from rstar2_train.rewards import equality_program

WORKERS = 8
PROLOGUE = """import resource, signal
signal.alarm({seconds})
resource.setrlimit(resource.RLIMIT_CPU, ({seconds}, resource.RLIM_INFINITY))
resource.setrlimit(resource.RLIMIT_AS, ({memory}, resource.RLIM_INFINITY))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
"""
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
FOLDER = Path(tempfile.mkdtemp(prefix="rstar2-baseline-"))
ENVIRONMENT |= {
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONPATH": str(FOLDER / "packages"),
    "PYTHONPYCACHEPREFIX": str(FOLDER / "bytecode"),
}
"""Environment of the programs: the package of the check of answers, and a bytecode cache that the first calls fill.
Without a cache, imports are slow."""


def run(call: QueuedCall) -> CallResult:
    """Run one program in a fresh interpreter."""
    start_time = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source.py")
        seconds, memory = max(1, round(call.limits.wall_seconds)), (call.limits.memory_mib + 128) << 20
        source.write_text(PROLOGUE.format(seconds=seconds, memory=memory) + call.code)
        command = [sys.executable, str(source)]
        completed = subprocess.run(
            command, input=call.stdin, capture_output=True, text=True, cwd=folder, env=ENVIRONMENT, check=False
        )
    status: Status = "ok" if completed.returncode == 0 else "error"
    elapsed = time.perf_counter() - start_time
    return CallResult(status, completed.stdout, completed.stderr, completed.returncode, 0.0, elapsed)


async def work(url: str) -> None:
    """Run one worker until it is terminated."""
    redis, names = connect(url), QueueKeys()
    consumer = Consumer(redis, f"baseline-{os.getpid()}", names)
    await ensure_group(redis, *consumer.streams)
    last_heartbeat = 0.0
    while True:
        if time.monotonic() - last_heartbeat > HEARTBEAT_SECONDS:
            last_heartbeat = time.monotonic()
            await consumer.heartbeat({"name": consumer.name, "executors": 1, "ready": 1, "busy": 0, "recycled": 0})
        for lease in await consumer.pull(names.calls, 1, block_ms=500):
            await consumer.finish([(lease, run(lease.call))])


def start(url: str) -> None:
    """Run a worker: the entry point of its process."""
    asyncio.run(work(url))


def main() -> None:
    """Start the workers and wait for them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--redis", required=True, help="URL of the judge's Redis")
    url = parser.parse_args().redis
    equality_program.install(FOLDER / "packages")
    workers = [multiprocessing.Process(target=start, args=(url,), daemon=True) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
