"""The figures of the simulated week: the truth of the cluster compared with the status of the jobs."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections import Counter
from typing import Any

from bench.week_cluster import WeekCluster
from bench.week_faults import HOUR, Faults
from bench.week_pods import Key
from rstar2_operator.decide.decision import FINAL
from rstar2_operator.observed import condition, is_alive

SAMPLE_SECONDS = 300.0
GRACE_SECONDS = 3600.0 + 1800.0
"""Time in which a job that does not run may have GPUs: pendingDeadlineSeconds, for engines that wait for an attempt,
and termination while the API server is away."""
DEADLINE_SECONDS = 7200.0 + 1800.0
"""Time without work after which a job must name a problem or have released its GPUs: the longest limit of the policy
(an orchestrator without a report), the longest outage and the time of a restart."""
MAY_HOLD = ("Running", "Preparing", "Finalizing", "Suspending", "Deleting")
"""Phases in which a job may have GPUs."""
MAX_DETAILS = 50


class WeekFigures:
    """Samples of all jobs. `suspended`: the jobs that a user has suspended."""

    def __init__(self, cluster: WeekCluster, faults: Faults, suspended: set[Key]) -> None:
        self._cluster, self._faults, self._suspended = cluster, faults, suspended
        self._start = time.time()
        self._stuck: Counter[Key] = Counter()
        self._held: Counter[Key] = Counter()
        self._silent: set[Key] = set()
        self._idle_since: dict[Key, float] = {}
        self.details: list[str] = []
        """One line per kind of finding and job."""
        self._detailed: set[tuple[str, Key]] = set()

    async def run(self) -> None:
        """Sample all jobs until cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            for key, job in list(self._cluster.jobs.items()):
                self._sample_job(key, job)

    def _sample_job(self, key: Key, job: Any) -> None:
        now, work = time.time(), self._cluster.work.get(job["metadata"]["uid"])
        phase = phase_of(job)
        gpus = sum(
            pod.gpus
            for pod in self._cluster.pods.values()
            if pod.key == key and pod.node is not None and pod.node.answers and is_alive(pod.body)
        )
        works = phase in MAY_HOLD
        since = self._idle_since.setdefault(key, now) if gpus and not works else self._idle_since.pop(key, now)
        last = max(work.last if work is not None else 0.0, _since(job))
        is_silent = phase not in FINAL and key not in self._suspended and now - last > DEADLINE_SECONDS
        if now - since > GRACE_SECONDS or (gpus and is_silent):
            self._detail("held", key, job, now)
            self._held[key] += 1
        if is_silent and not _names_problem(job):
            if key not in self._silent:
                self._detail("stuck", key, job, now)
                self._stuck[key] += 1
            self._silent.add(key)
        elif not is_silent:
            self._silent.discard(key)

    def _detail(self, finding: str, key: Key, job: Any, now: float) -> None:
        status = job.get("status") or {}
        if (finding, key) not in self._detailed and len(self.details) < MAX_DETAILS:
            self._detailed.add((finding, key))
            at = f"hour {(now - self._start) / HOUR:.1f}: {finding} {'/'.join(key)}"
            self.details.append(f"{at}: {status.get('phase')} {status.get('message')}")

    def result(self, jobs_in_all: int) -> dict[str, Any]:
        """Return the figures. `jobs_in_all`: also those that were deleted."""
        jobs = self._cluster.jobs
        failed = [
            key for key, job in jobs.items() if phase_of(job) == "Failed" and key not in self._faults.misconfigured
        ]
        for key in failed:
            self._detail("failed", key, jobs[key], time.time())
        return {
            "faults": dict(sorted(self._faults.counts.items())),
            "stuck_without_reason": sum(self._stuck.values()),
            "held_without_running_s": round(sum(self._held.values()) * SAMPLE_SECONDS),
            "restarts": sum(int((job.get("status") or {}).get("restarts") or 0) for job in jobs.values()),
            "false_failures": len(failed),
            "phases": {**Counter(phase_of(job) for job in jobs.values()), "deleted": jobs_in_all - len(jobs)},
        }


def phase_of(job: Any) -> str:
    """Return the phase of a job."""
    return str((job.get("status") or {}).get("phase", "Pending"))


def _since(job: Any) -> float:
    return datetime.datetime.fromisoformat(job["metadata"]["creationTimestamp"]).timestamp()


def _names_problem(job: Any) -> bool:
    """Return whether the conditions or the phase of a job name the reason why it does not work."""
    degraded = condition(job, "Degraded") or {}
    return degraded.get("status") == "True" or (
        phase_of(job) == "Pending" and bool((job.get("status") or {}).get("message"))
    )
