"""Measures the speed of the code judge next to a baseline, and runs a soak test with kills.

`make bench-judge` writes bench/results/judge.json. Both judges have the same HTTP API, the same Redis and the same
cores, but different workers: this project forks a process per call in gVisor. The baseline (bench/judge_baseline.py)
runs a fresh `python3` per call without a sandbox, as the public judge does. Every result is checked. `--only
speed|tuned|idle|soak` runs one part; `--quick` or QUICK=1 has fewer calls, and writes the same keys under `quick`.
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
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.judge_idle import measure_idle
from bench.judge_soak import soak
from bench.provenance import describe_command, describe_commit
from rstar2_train.judge.loadgen import SNIPPETS, LoadResult, measure_load
from rstar2_train.judge.sandbox.oci_bundle import HUGE_PAGES, huge_pages_active
from rstar2_train.rewards.verify import numbered_check
from rstar2_train.utils.auth import REDIS_PASSWORD, secret_env
from tests.support.unsupervised_judge import UnsupervisedJudge

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "judge.json"
CALLERS = (1, 64, 1024)
PROGRAMS = SNIPPETS | {"verify": numbered_check}

CALLS = {
    "print": (200, 1000, 3072),
    "numpy": (100, 400, 1024),
    "sympy": (40, 200, 1024),
    "rstarClient": (40, 200, 1024),
    "verify": (40, 200, 1024),
}
"""Snippet -> number of calls for each number of CALLERS."""
BASELINE_CALLS = {**CALLS, **{kind: (40, 200) for kind in ("sympy", "rstarClient", "verify")}}
"""As CALLS, without 1024 callers for slow programs: a thousand of them would take the baseline five minutes."""
QUICK_CALLS = {"print": (50, 300), "numpy": (30, 128), "sympy": (20, 96), "rstarClient": (20, 96), "verify": (20, 96)}
QUICK_BASELINE_CALLS = {**QUICK_CALLS, **{kind: (10, 64) for kind in ("sympy", "rstarClient", "verify")}}
QUICK_SOAK_CALLS = 3_000
SOAK_CALLS = 45_000
IDLE_SECONDS = 60.0
Rows = dict[str, list[dict[str, Any]]]
"""Snippet -> rows, one per number of callers."""


class BaselineJudge(UnsupervisedJudge):
    """The judge with the baseline's worker."""

    def start_worker(self, name: str = "worker") -> None:
        """Start eight processes without sandboxes."""
        argv = [sys.executable, "-m", "bench.judge_baseline", "--redis", self.redis_url]
        self.spawn(name, argv, secret_env(REDIS_PASSWORD, self.password))


def over_fair_share(result: LoadResult) -> float:
    """Return p99 as a multiple of the time of a call if all callers are served in turn: callers / calls per second."""
    return result.p99 / (result.callers / result.calls_per_second)


def result_row(result: LoadResult) -> dict[str, Any]:
    """Return a measurement as a row of the results."""
    return {
        "callers": result.callers,
        "calls": result.calls,
        "callsPerSecond": round(result.calls_per_second, 1),
        "p50": round(result.p50, 4),
        "p99": round(result.p99, 4),
        "p99OverFairShare": round(over_fair_share(result), 2),
        "refused": result.refused,
    }


def measure_judges(
    create: Callable[[Path], UnsupervisedJudge],
    calls: dict[str, tuple[int, ...]],
    baseline_calls: dict[str, tuple[int, ...]],
    name: str,
) -> tuple[Rows, Rows]:
    """Return the rows of a judge and those of the baseline, measured in turns: other work slows both down alike."""
    rows: tuple[Rows, Rows] = ({}, {})
    with ExitStack() as stack:
        judges = []
        for start in (create, BaselineJudge):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rstar2-bench-"))
            judges.append(stack.enter_context(start(Path(folder))))
            warm_up(judges[-1])
        for kind in calls:
            for judge in judges:
                asyncio.run(measure_load(judge.url, PROGRAMS[kind], callers=8, calls=24))
            for position, callers in enumerate(CALLERS):
                for title, judge, counts, measured in zip(
                    (name, "baseline"), judges, (calls[kind], baseline_calls[kind]), rows, strict=True
                ):
                    if position < len(counts):
                        load = measure_load(judge.url, PROGRAMS[kind], callers=callers, calls=counts[position])
                        measured.setdefault(kind, []).append(result_row(asyncio.run(load)))
                        print(f"{title} {kind}: {measured[kind][-1]}", file=sys.stderr, flush=True)
    return rows


def warm_up(stack: UnsupervisedJudge) -> None:
    """Wait until every sandbox has every lane, because calls without a zygote are slow."""
    for worker in stack.status()["workers"]:
        stack.wait_ready(worker["executors"])
    for kind in PROGRAMS:
        asyncio.run(measure_load(stack.url, PROGRAMS[kind], callers=4, calls=16))


def cores() -> int:
    """Return the number of usable cores, which is also the number of sandboxes."""
    return len(os.sched_getaffinity(0))


def compare(ours: dict[str, Any], baseline: dict[str, Any]) -> dict[str, Any]:
    """Return snippet -> rates at 64 callers, their ratio, and all rows."""
    results = {}
    for kind in ours:
        own, other = (next(row for row in rows[kind] if row["callers"] == 64) for rows in (ours, baseline))
        results[kind] = {
            "ours": own["callsPerSecond"],
            "baseline": other["callsPerSecond"],
            "ratio": round(own["callsPerSecond"] / other["callsPerSecond"], 2),
            "rows": {"ours": ours[kind], "baseline": baseline[kind]},
        }
    return results


@contextmanager
def huge_pages() -> Iterator[None]:
    """Set the node's huge pages for shared memory, which make forks in gVisor cheap, and restore them. Needs root."""
    before = HUGE_PAGES.read_text().partition("[")[2].partition("]")[0]
    HUGE_PAGES.write_text("always")
    try:
        yield
    finally:
        HUGE_PAGES.write_text(before)


def idle_figures(seconds: float) -> dict[str, Any]:
    """Return the cost of an idle judge with a sandbox per core."""
    with (
        tempfile.TemporaryDirectory(prefix="rstar2-idle-") as folder,
        UnsupervisedJudge(Path(folder), executors=cores()) as judge,
    ):
        warm_up(judge)
        return measure_idle(judge, seconds=seconds)


def provenance() -> dict[str, str]:
    """Return the command and the commit of this run."""
    load = f"{os.getloadavg()[1]:.1f}"
    return {"command": describe_command("bench.judge"), "commit": describe_commit(), "loadAverage": load}


def print_table(title: str, results: dict[str, Any]) -> None:
    """Print the rates and latencies of both judges."""
    table = Table(title=title)
    columns = (
        "snippet",
        "callers",
        "rstar2\ncalls/s",
        "baseline\ncalls/s",
        "ratio",
        "rstar2\np50 / p99 s",
        "baseline\np50 / p99 s",
    )
    for column in columns:
        table.add_column(column, justify="left" if column == "snippet" else "right")
    for kind, result in results.items():
        for own, other in zip(result["rows"]["ours"], result["rows"]["baseline"], strict=False):
            ratio = own["callsPerSecond"] / other["callsPerSecond"]
            cells = [kind, str(own["callers"]), f"{own['callsPerSecond']:.1f}", f"{other['callsPerSecond']:.1f}"]
            cells += [f"{ratio:.2f}", *(f"{row['p50']:.3f} / {row['p99']:.3f}" for row in (own, other))]
            table.add_row(*cells)
    Console(width=110).print(table)


def main() -> None:
    """Run the selected parts. The results of the other parts are retained."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["speed", "tuned", "idle", "soak"], help="part to run (default: all)")
    parser.add_argument(
        "--kinds", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS), help="snippets to measure (default: all)"
    )
    parser.add_argument("--quick", action="store_true", default=os.environ.get("QUICK") == "1", help="fewer calls")
    parser.add_argument("--soak-calls", type=int, help="calls of the soak test (default: 45000, quick: 3000)")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exit restores the node's huge pages
    everything: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results = everything.setdefault("quick", {}) if arguments.quick else everything
    kinds = tuple(arguments.kinds)
    tables = (QUICK_CALLS, QUICK_BASELINE_CALLS) if arguments.quick else (CALLS, BASELINE_CALLS)
    calls, baseline_calls = ({kind: table[kind] for kind in kinds} for table in tables)
    soak_calls = arguments.soak_calls or (QUICK_SOAK_CALLS if arguments.quick else SOAK_CALLS)

    def ours(folder: Path) -> UnsupervisedJudge:
        return UnsupervisedJudge(folder, executors=cores())

    def save(*saved: str) -> None:
        results["host"] = {"cores": cores(), "hugePages": huge_pages_active()}
        results.setdefault("runs", {}).update(dict.fromkeys(saved, provenance()))
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(everything, indent=1) + "\n")

    if arguments.only in (None, "speed"):
        results.update(compare(*measure_judges(ours, calls, baseline_calls, "ours")))
        print_table("default settings", {kind: results[kind] for kind in kinds})
        save(*kinds)
    if arguments.only in (None, "tuned"):
        if not os.access(HUGE_PAGES, os.W_OK):
            print(f"tuned: skipped, because this user cannot write {HUGE_PAGES}", file=sys.stderr)
        else:
            with huge_pages():
                tuned = compare(*measure_judges(ours, calls, baseline_calls, "tuned"))
            results["tuned"] = results.get("tuned", {}) | tuned
            print_table("with huge pages for shared memory", {kind: results["tuned"][kind] for kind in kinds})
            save("tuned")
    if arguments.only in (None, "idle"):
        results["idle"] = idle_figures(IDLE_SECONDS / 3 if arguments.quick else IDLE_SECONDS)
        print(json.dumps(results["idle"]))
        save("idle")
    if arguments.only in (None, "soak"):
        with tempfile.TemporaryDirectory(prefix="rstar2-soak-") as folder:
            results["soak"] = asyncio.run(soak(Path(folder), calls=soak_calls))
        print(json.dumps(results["soak"]))
        save("soak")


if __name__ == "__main__":
    main()
