"""The Code Judge's speed, beside the public judge's way to run a call, and what a soak under kills loses.

`make bench-judge` writes bench/results/judge.json. Both sides have the same HTTP API, the same Redis and the same
cores; only what runs a call differs: gVisor with a process a call here, a fresh `python3` without a sandbox there
(bench/judge_baseline.py). Every answer is checked. `--only speed|tuned|soak` for a part of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.judge_soak import soak
from rstar2_train.judge.loadgen import SNIPPETS, LoadResult, measure_load
from rstar2_train.judge.sandbox.oci_bundle import HUGE_PAGES, huge_pages_active
from rstar2_train.utils.auth import REDIS_PASSWORD, secret_env
from tests.support.unsupervised_judge import UnsupervisedJudge

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "judge.json"
CALLERS = (1, 64, 1024)

CALLS = {"print": (200, 1000, 3072), "numpy": (100, 400, 1024), "sympy": (40, 200, 1024)}
"""Calls for each of CALLERS."""
BASELINE_CALLS = {**CALLS, "sympy": (40, 200)}
"""A thousand sympy programs keep the baseline busy for five minutes, at the rate that it has with 64 callers."""


class Baseline(UnsupervisedJudge):
    """The same judge with the other worker."""

    def start_worker(self, name: str = "worker") -> None:
        """Eight processes without sandboxes."""
        argv = [sys.executable, "-m", "bench.judge_baseline", "--redis", self.redis_url]
        self.spawn(name, argv, secret_env(REDIS_PASSWORD, self.password))


def row(measured: LoadResult) -> dict[str, Any]:
    """As it is written down."""
    return {
        "callers": measured.callers,
        "calls": measured.calls,
        "callsPerSecond": round(measured.calls_per_second, 1),
        "p50": round(measured.p50, 4),
        "p99": round(measured.p99, 4),
        "p99OverFairShare": round(measured.over_fair_share, 2),
        "refused": measured.refused,
    }


def side(
    make: Callable[[Path], UnsupervisedJudge], wanted: dict[str, tuple[int, ...]], name: str
) -> dict[str, list[dict[str, Any]]]:
    """Everything measured on one judge: kind -> a row for each number of callers."""
    rows: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="rstar2-bench-") as folder, make(Path(folder)) as stack:
        settle(stack)
        for kind, counts in wanted.items():
            asyncio.run(measure_load(stack.url, kind, callers=8, calls=24))
            rows[kind] = []
            for callers, calls in zip(CALLERS, counts, strict=False):
                rows[kind].append(row(asyncio.run(measure_load(stack.url, kind, callers=callers, calls=calls))))
                print(f"{name} {kind}: {rows[kind][-1]}", file=sys.stderr, flush=True)
    return rows


def settle(stack: UnsupervisedJudge) -> None:
    """Wait until every sandbox has every lane: before, the first calls would be slow for want of a zygote."""
    for worker in stack.status()["workers"]:
        stack.wait_ready(worker["executors"])
    for kind in SNIPPETS:
        asyncio.run(measure_load(stack.url, kind, callers=4, calls=16))


def sandboxes() -> int:
    """One a core."""
    return len(os.sched_getaffinity(0))


def compared(ours: dict[str, Any], baseline: dict[str, Any]) -> dict[str, Any]:
    """For each kind the rates at 64 callers, their ratio, and all rows."""
    found = {}
    for kind in ours:
        own, other = (next(one for one in rows[kind] if one["callers"] == 64) for rows in (ours, baseline))
        found[kind] = {
            "ours": own["callsPerSecond"],
            "baseline": other["callsPerSecond"],
            "ratio": round(own["callsPerSecond"] / other["callsPerSecond"], 2),
            "rows": {"ours": ours[kind], "baseline": baseline[kind]},
        }
    return found


@contextmanager
def huge_pages() -> Iterator[None]:
    """The node setting that makes forks in gVisor cheap, and back again. Needs root."""
    before = HUGE_PAGES.read_text().partition("[")[2].partition("]")[0]
    HUGE_PAGES.write_text("always")
    try:
        yield
    finally:
        HUGE_PAGES.write_text(before)


def show(title: str, found: dict[str, Any]) -> None:
    """A table for the terminal."""
    table = Table(title=title)
    for column in ("snippet", "callers", "ours/s", "baseline/s", "ratio", "ours p50/p99 s", "baseline p50/p99 s"):
        table.add_column(column, justify="left" if column == "snippet" else "right")
    for kind, result in found.items():
        for own, other in zip(result["rows"]["ours"], result["rows"]["baseline"], strict=False):
            ratio = own["callsPerSecond"] / other["callsPerSecond"]
            cells = [kind, str(own["callers"]), f"{own['callsPerSecond']:.1f}", f"{other['callsPerSecond']:.1f}"]
            cells += [f"{ratio:.2f}", *(f"{one['p50']:.3f} / {one['p99']:.3f}" for one in (own, other))]
            table.add_row(*cells)
    Console().print(table)


def main() -> None:
    """Runs the parts that were asked for, and keeps the others' results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["speed", "tuned", "soak"])
    parser.add_argument("--kinds", nargs="+", choices=list(SNIPPETS), default=list(SNIPPETS), help="default: all")
    parser.add_argument("--soak-calls", type=int, default=45_000)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the node's setting is put back
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    kinds = tuple(given.kinds)
    calls, baseline_calls = ({kind: table[kind] for kind in kinds} for table in (CALLS, BASELINE_CALLS))

    def ours(folder: Path) -> UnsupervisedJudge:
        return UnsupervisedJudge(folder, executors=sandboxes())

    def save() -> None:
        results["host"] = {"cores": sandboxes(), "hugePages": huge_pages_active()}
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")

    if given.only in (None, "speed"):
        results |= compared(side(ours, calls, "ours"), side(Baseline, baseline_calls, "baseline"))
        show("default settings", {kind: results[kind] for kind in kinds})
        save()
    if given.only in (None, "tuned"):
        if not os.access(HUGE_PAGES, os.W_OK):
            print(f"tuned: left out, {HUGE_PAGES} cannot be written by this user", file=sys.stderr)
        else:
            with huge_pages():
                tuned = side(ours, calls, "tuned")
            baseline = {kind: results[kind]["rows"]["baseline"] for kind in kinds}
            results["tuned"] = results.get("tuned", {}) | compared(tuned, baseline)
            show("with huge pages for shared memory", results["tuned"])
            save()
    if given.only in (None, "soak"):
        with tempfile.TemporaryDirectory(prefix="rstar2-soak-") as folder:
            results["soak"] = asyncio.run(soak(Path(folder), calls=given.soak_calls))
        print(json.dumps(results["soak"]))
        save()


if __name__ == "__main__":
    main()
