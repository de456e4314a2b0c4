"""Measures the operator with many jobs, on a real API server with played pods, next to a kopf operator without logic.

`make bench-operator` writes bench/results/operator.json for 1,000 jobs with 10,000 pods; `QUICK=1` takes 50 jobs and
prints instead. `python -m bench.operator --jobs N` measures only restart and memory with another number, and adds them
to the same file as `growth`. The API server has no controllers: its pods are played (tests/support/cluster_player.py).
Keys of the result:

- restart_s: from the start of the process until each job has been reconciled once; rss_mib: its memory after that;
- steady_writes_per_min: write requests without a change in the cluster, apart from the Lease;
- failure_to_condition_p99_s: from the failure of an attempt's pods to the job's condition, as a watch sees it, while
  pods of other jobs change, together EVENTS_PER_SECOND events, or as many as the API server takes (events_per_s);
  FAILURES_PER_SECOND attempts fail and restart, with EVENTS_PER_FAILURE events each; failure_to_watch_p99_s: from the
  same failures to another watch, without an operator between;
- storm: the same with STORM_PER_SECOND failing attempts, and no other events;
- writes_per_job, objects_per_job: write requests and created objects from the creation of a job to its first stage;
- reconcile_cpu_ms: CPU time of the process per reconciliation, during the failures;
- noop: the same for an operator that only watches;
- growth: number of jobs -> restart_s and rss_mib.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil

from bench.provenance import describe_commit
from rstar2_operator.client import KubeClient
from rstar2_operator.informer import CHILDREN
from rstar2_operator.shared_secrets import SPREAD_SECONDS
from rstar2_operator.status_writer import COUNTS_SECONDS
from rstar2_train.utils.ports import free_ports
from tests.kube_node.requirements import ClusterUnavailable
from tests.support.cluster_player import ClusterPlayer
from tests.support.kube_apiserver import KubeApiserver
from tests.support.simulated_cluster import manifest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "operator.json"
NAMESPACE = "default"
EVENTS_PER_SECOND = 200
FAILURES_PER_SECOND = 2
STORM_PER_SECOND = 20
EVENTS_PER_FAILURE = 20
"""Failure, deletion and replacement of the Job and its two pods, and the status of the AgenticRLJob."""
EVENTS_IN_FLIGHT = 32
LONGEST = 3600.0
"""Limit of each wait in seconds."""
STEADY_SECONDS = 60.0
"""The played jobs report no progress; after 600 s the operator would write a condition for each."""
WRITES = frozenset({"create", "apply", "update", "delete"})


class Process:
    """One operator process."""

    def __init__(self, command: list[str], port: int, environment: dict[str, str], log: Path) -> None:
        self.started = time.monotonic()
        self.port = port
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, env={**os.environ, **environment}, stdout=output, stderr=output, cwd=ROOT
            )
        self.info = psutil.Process(self._process.pid)

    def page(self, path: str) -> str:
        """Return a page of its HTTP server; empty if it does not serve yet."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the operator exited with code {self._process.returncode}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as response:
                return str(response.read().decode())
        except (urllib.error.URLError, OSError):
            return ""

    def cpu(self) -> float:
        """Return its CPU time in seconds."""
        times = self.info.cpu_times()
        return float(times.user + times.system)

    def rss_mib(self) -> float:
        """Return its resident memory in MiB."""
        return round(self.info.memory_info().rss / 2**20, 1)

    def stop(self) -> None:
        """Stop it as the kubelet does."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)


class Figures:
    """The metrics of the operator at one time."""

    def __init__(self, page: str) -> None:
        self._samples = re.findall(r"^(\w+)(?:\{(.*)\})? (\S+)$", page, re.MULTILINE)

    def total(self, name: str, *, without: str = "", verbs: frozenset[str] = frozenset()) -> float:
        """Return the sum of a metric over its labels; `without`: a text that its labels must not contain."""
        return sum(
            float(value)
            for metric, labels, value in self._samples
            if metric == name
            and not (without and without in labels)
            and (not verbs or any(f'verb="{verb}"' in labels for verb in verbs))
        )

    @property
    def writes(self) -> float:
        """Write requests, without those of the Lease."""
        return self.total("rstar2_operator_api_requests_total", without='resource="leases"', verbs=WRITES)

    @property
    def rounds(self) -> float:
        """Reconciliations."""
        return self.total("rstar2_operator_reconcile_seconds_count")

    @property
    def jobs(self) -> float:
        """Jobs that were reconciled by this process."""
        return self.total("rstar2_operator_jobs")


async def _until(reached: Any, *, step: float = 0.1) -> None:
    deadline = time.monotonic() + LONGEST
    while not reached():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not reached within {LONGEST:.0f} s")
        await asyncio.sleep(step)


async def _page(process: Process) -> Figures:
    return Figures(await asyncio.to_thread(process.page, "/metrics"))


async def _reconciled(process: Process, jobs: int) -> float:
    """Wait until each job was reconciled. Return the seconds since the start of the process.

    The pauses grow with the jobs: a page of the metrics of 3,000 jobs takes the operator 0.05 s.
    """
    await _until(lambda: Figures(process.page("/metrics")).jobs >= jobs, step=max(0.3, jobs / 3000))
    return round(time.monotonic() - process.started, 2)


async def _settled(process: Process) -> None:
    """Wait until no write has been sent for as long as a status may be delayed: they would count as of the restart."""
    writes, since = -1.0, time.monotonic()
    deadline = since + LONGEST
    while time.monotonic() - since < COUNTS_SECONDS + 5:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the operator still writes after {LONGEST:.0f} s")
        await asyncio.sleep(3)
        if (now := (await _page(process)).writes) != writes:
            writes, since = now, time.monotonic()


def _job(number: int) -> dict[str, Any]:
    """A job with ten pods: Redis, judge, two executors, four engines, two trainers."""
    body = manifest("g", rollout={"replicas": 4}, executor={"replicas": 2}, judge={"replicas": 1})
    body["metadata"] = {"name": f"job-{number}", "namespace": NAMESPACE}
    return body


@contextlib.contextmanager
def _operator(server: KubeApiserver) -> Iterator[Process]:
    (port,) = free_ports(1)
    environment = {"KUBECONFIG": str(server.kubeconfig), "RSTAR2_PROBE_PORT": str(port), "RSTAR2_LOG_FORMAT": "text"}
    process = Process([sys.executable, "-m", "rstar2_operator"], port, environment, server.folder / "operator.log")
    try:
        yield process
    finally:
        process.stop()


async def _noop(server: KubeApiserver, client: KubeClient) -> dict[str, float]:
    selector = {"labelSelector": "app.kubernetes.io/managed-by=rstar2-operator"}
    expected = 0
    for kind in ("AgenticRLJob", *CHILDREN):
        async for page in client.pages(kind, "", selectors={} if kind == "AgenticRLJob" else selector):
            expected += len(page["items"])
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "bench.operator_noop", str(port)]
    process = Process(command, port, {"KUBECONFIG": str(server.kubeconfig)}, server.folder / "noop.log")
    try:
        await _until(lambda: int(process.page("/") or 0) >= expected, step=0.3)
        return {"restart_s": round(time.monotonic() - process.started, 2), "rss_mib": process.rss_mib()}
    finally:
        process.stop()


async def _failures(
    player: ClusterPlayer, jobs: int, waiting: list[str], *, per_second: int, seconds: float
) -> dict[str, float]:
    """Let attempts fail while pods of other jobs change. Return 99th percentiles of the delays, and the events/s.

    `waiting`: names of the jobs that may fail; the failed ones are removed.
    """
    failed, start = dict[str, float](), time.monotonic()
    changes, failures, in_flight = 0, 0, set[asyncio.Task[None]]()

    async def fail(name: str) -> None:
        await player.fail_attempt(player.jobs[f"{name}-g0-1"])
        failed[name] = time.monotonic()

    async def change(number: int) -> None:
        pod = player.pods[f"job-{number % jobs}-rollout"][number % 4]
        condition = {"type": "Ready", "status": "True", "message": f"change {number}"}
        await player.set_status("Pod", pod, {**pod["status"], "conditions": [condition]})

    while (elapsed := time.monotonic() - start) < seconds and waiting:
        if len(in_flight) >= EVENTS_IN_FLIGHT:  # the API server is at its limit; a longer queue would be its delay
            await asyncio.wait(in_flight, return_when=asyncio.FIRST_COMPLETED)
        elif failures < elapsed * per_second:
            in_flight.add(asyncio.create_task(fail(waiting.pop())))
            failures += 1
        elif changes < elapsed * (EVENTS_PER_SECOND - EVENTS_PER_FAILURE * per_second):
            in_flight.add(asyncio.create_task(change(changes)))
            changes += 1
        else:
            await asyncio.sleep(0.002)
        for task in [each for each in in_flight if each.done()]:
            in_flight.remove(task)
            task.result()
    await asyncio.gather(*in_flight)
    events_per_s = (changes + EVENTS_PER_FAILURE * failures) / (time.monotonic() - start)
    await _until(lambda: all(player.failed_at(name, start) for name in failed))
    await _until(lambda: all(f"{name}-g0-1" in player.failed for name in failed))
    return {
        "failure_to_condition_p99_s": _p99((player.failed_at(name, start) or 0) - at for name, at in failed.items()),
        "failure_to_watch_p99_s": _p99(player.failed[f"{name}-g0-1"] - at for name, at in failed.items()),
        "events_per_s": round(events_per_s, 1),
    }


def _p99(delays: Iterable[float]) -> float:
    """A watch may deliver a change before its request has returned."""
    ordered = sorted(max(0.0, each) for each in delays)
    return round(ordered[int(0.99 * (len(ordered) - 1))], 3)


async def measure(jobs: int, *, quick: bool, restart_only: bool = False) -> dict[str, Any]:
    """Return all figures for a number of jobs, or only those after a restart."""
    with KubeApiserver() as server:
        async with server.client() as client:
            player = ClusterPlayer(client, NAMESPACE)
            playing = asyncio.create_task(player.run())
            measuring = asyncio.create_task(
                _measure(server, client, player, jobs, quick=quick, restart_only=restart_only)
            )
            try:
                await asyncio.wait({playing, measuring}, return_when=asyncio.FIRST_COMPLETED)
                if playing.done():
                    playing.result()
                return await measuring
            except BaseException:
                log = server.folder / "operator.log"
                print(log.read_text()[-4000:] if log.exists() else "", file=sys.stderr)
                raise
            finally:
                playing.cancel()
                measuring.cancel()
                await asyncio.gather(playing, measuring, return_exceptions=True)


async def _measure(
    server: KubeApiserver, client: KubeClient, player: ClusterPlayer, jobs: int, *, quick: bool, restart_only: bool
) -> dict[str, Any]:
    result: dict[str, Any] = {}
    with _operator(server) as process:
        start = time.monotonic()
        for number in range(jobs):
            await client.create(_job(number))
        await _until(lambda: all(player.trains(f"job-{number}") for number in range(jobs)))
        await _until(lambda: sum(map(len, player.pods.values())) >= 10 * jobs)
        figures = await _page(process)
        print(f"all jobs train after {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
        result["writes_per_job"] = round(figures.writes / jobs, 1)
        result["objects_per_job"] = round(figures.total("rstar2_operator_applied_total") / jobs, 1)
        print(json.dumps(result), file=sys.stderr, flush=True)
        await _settled(process)
    with _operator(server) as process:
        result["restart_s"] = await _reconciled(process, jobs)
        if restart_only:
            await asyncio.sleep(15)
            return {**result, "rss_mib": process.rss_mib()}
        # delayed writes of the status, and requests for Secrets
        await asyncio.sleep(SPREAD_SECONDS + 5 if quick else COUNTS_SECONDS + 15)
        before, start = await _page(process), time.monotonic()
        await asyncio.sleep(30 if quick else STEADY_SECONDS)
        after = await _page(process)
        result["steady_writes_per_min"] = round((after.writes - before.writes) * 60 / (time.monotonic() - start), 2)
        result["rss_mib"] = process.rss_mib()
        print(json.dumps(result), file=sys.stderr, flush=True)
        cpu = process.cpu()
        seconds, waiting = 5 if quick else 60, [f"job-{number}" for number in range(jobs)]
        result |= await _failures(player, jobs, waiting, per_second=FAILURES_PER_SECOND, seconds=seconds)
        rounds = (await _page(process)).rounds - after.rounds
        result["reconcile_cpu_ms"] = round(1000 * (process.cpu() - cpu) / max(1, rounds), 2)
        print(json.dumps(result), file=sys.stderr, flush=True)
        await asyncio.sleep(15)  # restarts of the failed attempts
        result["storm"] = await _failures(player, jobs, waiting, per_second=STORM_PER_SECOND, seconds=seconds)
    result["noop"] = await _noop(server, client)
    return {**result, "jobs": jobs, "pods": sum(map(len, player.pods.values()))}


def main() -> None:
    """Measure and write or print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, help="number of jobs, of ten pods each (default: 1000; with QUICK=1: 50)")
    options = parser.parse_args()
    quick = bool(os.environ.get("QUICK"))
    if options.jobs is not None and not quick:
        figures = asyncio.run(measure(options.jobs, quick=True, restart_only=True))
        result = json.loads(RESULTS.read_text(encoding="utf-8"))
        figures = {field: figures[field] for field in ("restart_s", "rss_mib")} | {"commit": describe_commit()}
        growth = {**result.get("growth", {}), str(options.jobs): figures}
        result["growth"] = dict(sorted(growth.items(), key=lambda row: int(row[0])))
        return _write(result)
    result = asyncio.run(measure(options.jobs or (50 if quick else 1000), quick=quick))
    result |= {
        "command": f"{'QUICK=1 ' if quick else ''}make bench-operator",
        "commit": describe_commit(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 1),
    }
    if quick:
        print(json.dumps(result, indent=1))
    else:
        _write({**result, "growth": json.loads(RESULTS.read_text(encoding="utf-8")).get("growth", {})})


def _write(result: dict[str, Any]) -> None:
    print(json.dumps(result, indent=1))
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except ClusterUnavailable as problem:
        sys.exit(str(problem))
