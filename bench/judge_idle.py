"""The cost of an idle judge: CPU, processes and memory. Used by bench/judge.py."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import Any

import psutil

from tests.support.unsupervised_judge import UnsupervisedJudge

SETTLE_SECONDS = 30
"""Time after the last call, after which lanes have no prepared process and sandboxes are paused (worker/pool.py)."""


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """Return the CPU time of these processes, without those that have ended."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def measure_idle(judge: UnsupervisedJudge, *, seconds: float) -> dict[str, Any]:
    """Return the figures of a judge without calls, measured for `seconds`.

    `corePercent`: CPU in percent of one core, of each part. The other figures are per sandbox: processes on the host,
    processes inside it, and memory in MiB, as the host counts it (proportional set size).
    """
    time.sleep(SETTLE_SECONDS)
    trees: dict[str, list[psutil.Process]] = {"sandboxes": []}
    for name, process in judge.processes.items():
        trees[name] = [psutil.Process(process.pid)]
    for child in psutil.Process(judge.processes["worker"].pid).children(recursive=True):
        trees["sandboxes"].append(child)
    before = {name: cpu_seconds(tree) for name, tree in trees.items()}
    start = time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - start
    percent = {name: round(100 * (cpu_seconds(tree) - before[name]) / elapsed, 2) for name, tree in trees.items()}
    count = judge.status()["executors"]["ready"]
    memory = sum(process.memory_full_info().pss for process in trees["sandboxes"])
    return {
        "corePercent": {**percent, "total": round(sum(percent.values()), 2)},
        "processesPerSandbox": round(len(trees["sandboxes"]) / count, 1),
        "memoryMiBPerSandbox": round(memory / count / 2**20, 1),
    }
