"""Causes every failure mode once on a real API server, and measures when the operator reports it and recovers from it.

`make bench-failures` writes bench/results/failure_modes.json and the table in docs/failure-modes.md;
tests/apiserver/test_failure_modes.py causes the same faults (tests/support/failure_modes.py). Each fault has a job of
its own; PARALLEL jobs run at a time. Pods are played: the times are the operator's own, without those of the kubelet,
of images and of models.

- reported_s: from the fault until a condition of the job names it;
- recovered_s: until the job is Ready again, from the end of the fault; from the fault itself if the operator recovers
  alone, by a new attempt. None if the job fails, as it must.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.provenance import describe_commit
from tests.kube_node.requirements import ClusterUnavailable
from tests.support.cluster_player import ClusterPlayer
from tests.support.failure_modes import MODES, NAMESPACE, FailureMode, Scene
from tests.support.kube_apiserver import KubeApiserver
from tests.support.operator_process import OperatorProcess
from tests.support.simulated_cluster import manifest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "failure_modes.json"
PAGE = ROOT / "docs" / "failure-modes.md"
START, END = "<!-- measured: start -->", "<!-- measured: end -->"
JOBS = f"/apis/rstar2.dev/v1alpha1/namespaces/{NAMESPACE}/agenticrljobs"
PARALLEL = 12
LONGEST = 300.0
"""Seconds that a start, a report or a recovery may take."""


async def cause_all() -> list[dict[str, Any]]:
    """Return a row per failure mode, in their order. Raises RuntimeError with every mode that behaved otherwise."""
    with KubeApiserver() as api, OperatorProcess(api.kubeconfig, log=api.folder / "operator.log"):
        async with api.client() as client:
            player = Player(client, NAMESPACE)
            playing = asyncio.create_task(player.run())
            slots = asyncio.Semaphore(PARALLEL)

            async def row(number: int, mode: FailureMode) -> dict[str, Any]:
                async with slots:
                    return await _cause(mode, Scene(f"job-{number}", player, client, api))

            try:
                rows = await asyncio.gather(*(row(number, mode) for number, mode in enumerate(MODES)))
            finally:
                playing.cancel()
                await asyncio.gather(playing, return_exceptions=True)
    problems = [f"{row['component']} {row['fault']}: {row['problem']}" for row in rows if "problem" in row]
    if problems:
        raise RuntimeError("\n".join(problems))
    return rows


class Player(ClusterPlayer):
    """A cluster with a node per pod, so that a faulty node concerns one job."""

    def node_of(self, owner: str, number: int) -> str:
        """Return a node that has the owner's name."""
        return f"{owner}-{number}"


async def _cause(mode: FailureMode, scene: Scene) -> dict[str, Any]:
    """Start the job, cause the fault, wait for the report, cure it, wait for the recovery; then delete the job."""
    row: dict[str, Any] = {"component": mode.component, "fault": mode.fault, "reason": mode.reason}
    row |= {"recovery": mode.recovery, "reported_s": None, "recovered_s": None}
    if mode.start is not None:
        scene.player.starts[scene.owner(mode.component)] = mode.start
    small: dict[str, Any] = {role: {"replicas": 1} for role in ("rollout", "executor", "judge")}
    body = manifest("g", trainer={"replicas": 1, "gpusPerReplica": 0}, **small, **mode.spec)
    body["metadata"] = {"name": scene.name, "namespace": NAMESPACE}
    await scene.client.create(body)
    try:
        owner = scene.owner(mode.component)
        if mode.start is None:
            await _until(lambda: scene.trains(1), "the job does not start")
            await scene.train(1)
            await _until(scene.ready, "the job is not ready")
        else:
            await _until(lambda: bool(scene.player.pods.get(owner)), "the component has no pod")
        caused = time.monotonic()
        await mode.cause(scene)
        await _until(lambda: _names(scene, mode.reason, caused), f"no condition names {mode.reason}")
        row["reported_s"] = round(time.monotonic() - caused, 2)
        if mode.final:
            await _until(lambda: scene.status().get("phase") == "Failed", "the job does not fail")
            return row
        cured = caused if mode.cure is None else time.monotonic()
        if mode.cure is not None:
            await mode.cure(scene)
        attempt = 2 if mode.cure is None else 1
        await _until(lambda: scene.trains(attempt), "no attempt runs")
        if mode.cure is None or mode.start is not None:
            await scene.train(attempt)
        await _until(lambda: scene.ready(attempt), "the job does not recover")
        row["recovered_s"] = round(time.monotonic() - cured, 2)
    except TimeoutError as problem:
        row["problem"] = f"{problem}: {json.dumps(scene.status())}"
    finally:
        with contextlib.suppress(Exception):
            await scene.request(
                "DELETE", f"/apis/rstar2.dev/v1alpha1/namespaces/{NAMESPACE}/agenticrljobs/{scene.name}"
            )
    return row


def _names(scene: Scene, reason: str, since: float) -> bool:
    """Whether a condition named the reason after a time, by its own reason or in its message."""
    for when, status in scene.player.conditions.get(scene.name, ()):
        for each in status.get("conditions", ()) if when >= since else ():
            if reason in (each["reason"], *each["message"].replace(":", " ").split()):
                return True
    return False


async def _until(reached: Callable[[], bool], problem: str) -> None:
    deadline = time.monotonic() + LONGEST
    while not reached():
        if time.monotonic() > deadline:
            raise TimeoutError(problem)
        await asyncio.sleep(0.02)


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as the table of docs/failure-modes.md."""
    lines = ["| Component | Fault | Reason | Reported after | Recovery | Ready after |", "|---|---|---|---|---|---|"]
    for row in rows:
        reason = f"[{row['reason']}](#{row['reason'].lower()})"
        ready = "" if row["recovered_s"] is None else f"{row['recovered_s']:.1f} s"
        cells = (row["component"], row["fault"], reason, f"{row['reported_s']:.1f} s", row["recovery"], ready)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Cause every failure mode, and write the results and the table."""
    rows = asyncio.run(cause_all())
    result = {
        "rows": rows,
        "command": "make bench-failures",
        "commit": describe_commit(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 1),
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(START)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{START}\n\n{table(rows)}\n\n{END}{after}", encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    try:
        main()
    except (ClusterUnavailable, RuntimeError) as problem:
        sys.exit(str(problem))
