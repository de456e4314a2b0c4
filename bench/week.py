"""A week of 200 jobs under faults of all kinds, in fake time, on a real API server: does any job get stuck?

`make bench-week` writes bench/results/week.json; `QUICK=1` plays fewer jobs for fewer hours and prints instead. The
operator's own code runs: its watches, cache, queue, policy, builders and writes. Not here: kopf's watch of the jobs and
the Lease, which live in real time, and Kueue. The rest of the cluster is played (bench/week_cluster.py). Keys:

- jobs, hours: of the simulation (up to `--limit`), and of each phase at the end in `phases`;
- faults: how many of each kind;
- stuck_without_reason: periods in which a job did not work for longer than its deadlines allow, and its conditions
  named no problem;
- held_without_running_s: seconds for which a job had GPUs although it was suspended, waiting or finished (beyond
  a grace time), or did not work for longer than its deadlines allow;
- false_failures: jobs that failed without a fault of their own; restarts: of all jobs; writes_per_job: requests.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import json
import logging
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from kubernetes.aio import client as aio
from kubernetes.aio import config as aio_config
from kubernetes.aio.client.exceptions import ApiException

from bench.provenance import describe_command, describe_commit
from bench.week_clock import Delivery, FakeClock, Times, WeekClient, keep_connected, settle, unavailable
from bench.week_cluster import KINDS, WeekCluster
from bench.week_faults import HOUR, Faults
from bench.week_figures import WeekFigures, phase_of
from bench.week_operator import OperatorRun
from bench.week_pods import Key
from rstar2_operator.cache import JOB
from rstar2_operator.client import connection
from rstar2_operator.informer import CHILDREN
from rstar2_operator.metrics import Metrics
from tests.kube_node.requirements import ClusterUnavailable
from tests.support.kube_apiserver import KubeApiserver
from tests.support.simulated_cluster import manifest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "week.json"
NAMESPACES = 8
NODES = 12
SPEC: dict[str, Any] = {
    "accelerator": {"vendor": "AMD", "resource": "amd.com/gpu"},
    "nodeLoss": {"afterSeconds": 300},
    "stuck": {"action": "Restart"},
    "pendingDeadlineSeconds": 3600,
}


class Week:
    """The simulation."""

    def __init__(
        self,
        server: KubeApiserver,
        clock: FakeClock,
        apis: tuple[aio.ApiClient, aio.ApiClient],
        *,
        jobs: int,
        hours: float,
        seed: int,
        limit: float,
    ) -> None:
        """`apis`: connections of the operator and of the played cluster; `limit`: seconds of real time."""
        self._server, self._clock, self._hours, self._jobs = server, clock, hours, jobs
        self._real_seconds = limit
        self._submitted = 0
        self._apis = apis
        self._faults = Faults(seed)
        times, self._delivery = Times(), Delivery()
        self._outage = False
        self._writes = 0
        self._client = WeekClient(apis[0], times, self._delivery, refuse=self._refuse, count=self._count)
        self._player = WeekClient(apis[1], times, self._delivery)
        self._cluster = WeekCluster(self._player, self._delivery, self._faults, nodes=NODES)
        self._metrics = Metrics()
        self._operator: OperatorRun | None = None
        self._starting = False
        self._namespaces = [f"team-{number}" for number in range(NAMESPACES)]
        self._suspended: set[Key] = set()
        self.figures = WeekFigures(self._cluster, self._faults, self._suspended)

    def _refuse(self) -> Exception | None:
        return unavailable() if self._outage else None

    def _count(self, verb: str, kind: str, status: int) -> None:
        if verb in ("create", "apply", "update", "delete"):
            self._writes += 1

    def _is_busy(self) -> bool:
        queue = self._operator.queue.busy if self._operator is not None else False
        return bool(
            self._starting
            or queue
            or self._client.in_flight
            or self._player.in_flight
            or (not self._outage and not self._delivery.is_complete())
        )

    def _state(self) -> str:
        operator = self._operator.queue.busy if self._operator is not None else "none"
        requests = self._client.in_flight, self._player.in_flight
        return f"starting {self._starting}, queue {operator}, requests {requests}, outage {self._outage}"

    async def run(self) -> None:
        """Play the whole time."""
        for name in self._namespaces:
            self._server.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        await keep_connected(self._apis[0])
        await keep_connected(self._apis[1])
        await self._cluster.create_nodes()
        self._delivery.start("player", KINDS)
        for kind in KINDS:
            self._cluster.spawn(self._cluster.watch(kind))
        await asyncio.sleep(0.5)
        await self._restart()
        start, real_start = time.time(), time.time() - self._clock.ahead
        until = self._hours * HOUR
        for kind, every, length in (
            ("node loss", 6.0, (0.5 * HOUR, 8 * HOUR)),
            ("API outage", 6.0, (60.0, 1500.0)),
            ("quota", 15.0, (HOUR, 3 * HOUR)),
            ("operator restart", 9.0, (1.0, 60.0)),
            ("suspension", 10.0, (HOUR, 5 * HOUR)),
            ("job deletion", 25.0, (1.0, 2.0)),
            ("namespace deletion", max(20.0, self._hours / 3), (1.0, 2.0)),
        ):
            for at, seconds in self._faults.times(every, length, until):
                self._cluster.spawn(self._fault(kind, at, seconds))
        for number in range(self._jobs):
            self._cluster.spawn(self._submit(number, self._faults.uniform(0, 0.75 * until)))
        self._cluster.spawn(self.figures.run())
        printed = 0.0
        while (now := time.time() - start) < until:
            if now - printed > 6 * HOUR:
                printed = now
                phases = Counter((job.get("status") or {}).get("phase", "none") for job in self._cluster.jobs.values())
                print(f"hour {now / HOUR:.0f}: {dict(phases)}", file=sys.stderr, flush=True)
            if time.time() - self._clock.ahead - real_start > self._real_seconds:
                self._hours, self._jobs = round(now / HOUR, 1), self._submitted
                break
            if self._cluster.errors:
                raise RuntimeError("\n".join(self._cluster.errors))
            try:
                await settle(self._clock, self._is_busy)
            except TimeoutError as error:
                raise TimeoutError(f"{error}: {self._delivery.missing()}, {self._state()}") from error

    async def _restart(self) -> None:
        self._starting = True
        try:
            self._operator = OperatorRun(self._client, self._delivery, self._metrics)
            await self._operator.start()
        finally:
            self._starting = False

    async def _submit(self, number: int, at: float) -> None:
        await asyncio.sleep(at)
        pods = self._faults.choose([1, 1, 1, 2])
        body = manifest(self._faults.choose(["s", "sg", "g"]), **SPEC, trainer={"replicas": pods, "gpusPerReplica": 4})
        body["spec"]["rollout"] = {"replicas": self._faults.choose([1, 2]), "tensorParallel": 2}
        body["metadata"] = {"name": f"job-{number}", "namespace": self._faults.choose(self._namespaces)}
        await self._player.create(body)
        self._submitted += 1

    async def _fault(self, kind: str, at: float, seconds: float) -> None:
        await asyncio.sleep(at)
        if kind == "node loss" and (nodes := [node for node in self._cluster.nodes if node.answers]):
            self._faults.note(kind)
            await self._cluster.lose_node(self._faults.choose(nodes), seconds)
        elif kind == "API outage":
            self._faults.note(kind)
            self._outage = True
            await asyncio.sleep(seconds)
            self._outage = False
        elif kind == "operator restart" and self._operator is not None and not self._outage:
            self._faults.note(kind)
            stopped, self._operator = self._operator, None
            await stopped.stop()
            await asyncio.sleep(seconds)
            await self._restart()
        elif kind == "quota":
            self._faults.note(kind)
            await self._limit(self._faults.choose(self._namespaces), seconds)
        elif kind == "namespace deletion" and len(self._namespaces) > 2:
            self._faults.note(kind)
            await self._delete_namespace(self._faults.choose(self._namespaces))
        elif running := [key for key, job in self._cluster.jobs.items() if phase_of(job) == "Running"]:
            self._faults.note(kind)
            key = self._faults.choose(running)
            if kind == "job deletion":
                await self._player.delete(JOB, *key, uid=self._cluster.jobs[key]["metadata"]["uid"])
            else:
                await self._suspend(key, True)
                await asyncio.sleep(seconds)
                await self._suspend(key, False)

    async def _suspend(self, key: Key, value: bool) -> None:
        (self._suspended.add if value else self._suspended.discard)(key)
        uid = self._cluster.jobs[key]["metadata"]["uid"] if key in self._cluster.jobs else ""
        if uid in self._cluster.work:
            self._cluster.work[uid].last = time.time()
        await self._player.patch(JOB, *key, [{"op": "add", "path": "/spec/suspend", "value": value}])

    async def _limit(self, namespace: str, seconds: float) -> None:
        """Let a ResourceQuota reject every new batch Job of a namespace for some time."""
        path = f"/api/v1/namespaces/{namespace}/resourcequotas"
        hard = {"count/jobs.batch": "0"}
        body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": hard}}
        made = await self._player._call("POST", path, body, [])
        await self._player._call("PUT", f"{path}/none/status", {**made, "status": {"hard": hard, "used": hard}}, [])
        await asyncio.sleep(seconds)
        await self._player._call("DELETE", f"{path}/none", {"preconditions": {"uid": made["metadata"]["uid"]}}, [])

    async def _delete_namespace(self, name: str) -> None:
        """Delete a namespace as its controller does: all objects, then itself."""
        self._namespaces.remove(name)
        path = f"/api/v1/namespaces/{name}"
        self._server.request("DELETE", path)
        for kind in (JOB, *CHILDREN):
            for meta in await self._player.list_metadata(kind, name, selector=""):
                with contextlib.suppress(ApiException):
                    await self._player.delete(kind, name, meta["name"], uid=meta["uid"])
        while any(key[0] == name for key in self._cluster.jobs):  # noqa: ASYNC110 - as a controller, which polls too
            await asyncio.sleep(30)
        body = self._server.request("GET", path)
        self._server.request("PUT", f"{path}/finalize", {**body, "spec": {"finalizers": []}})

    def result(self) -> dict[str, Any]:
        """Return the figures."""
        result = {"jobs": self._jobs, "hours": self._hours, **self.figures.result(self._jobs)}
        return result | {"writes_per_job": round(self._writes / self._jobs, 1)}


async def _play(server: KubeApiserver, clock: FakeClock, *, jobs: int, hours: float, seed: int, limit: float) -> Week:
    configuration = aio.Configuration()
    await aio_config.load_kube_config(str(server.kubeconfig), client_configuration=configuration)
    async with connection(configuration) as first, connection(configuration) as second:
        week = Week(server, clock, (first, second), jobs=jobs, hours=hours, seed=seed, limit=limit)
        await week.run()
    return week


def main() -> None:
    """Play a week, and write or print the result."""
    quick = bool(os.environ.get("QUICK"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20 if quick else 200)
    parser.add_argument("--hours", type=float, default=24 if quick else 168)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=float("inf"), help="stop after these seconds of real time")
    options = parser.parse_args()
    started = time.monotonic()
    logging.getLogger("rstar2_operator").setLevel(logging.ERROR)  # outages and rejections are intended
    sizes = {"jobs": options.jobs, "hours": options.hours, "seed": options.seed, "limit": options.limit}
    with (
        KubeApiserver() as server,
        FakeClock() as clock,
        asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner,
    ):
        week = runner.run(_play(server, clock, **sizes))
    result = week.result() | {
        "seed": options.seed,
        "seconds": round(time.monotonic() - started),
        "command": describe_command("bench.week") if sys.argv[1:] else "make bench-week",
        "commit": describe_commit(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    }
    print("\n".join(week.figures.details), file=sys.stderr)
    print(json.dumps(result, indent=1))
    if not quick:
        RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except ClusterUnavailable as problem:
        sys.exit(str(problem))
