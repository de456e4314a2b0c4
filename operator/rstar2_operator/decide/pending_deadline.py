"""spec.pendingDeadlineSeconds: a job whose pods cannot all be scheduled in time releases all of them, and retries.

Without it, two jobs could each hold half of the accelerators and wait for the other half indefinitely.
"""

from __future__ import annotations

import dataclasses
import zlib

from rstar2_operator.decide.diagnostics import diagnoses
from rstar2_operator.decide.failure_policy import RestartCounters
from rstar2_operator.decide.plan import SCHEDULING_TIMEOUT, Plan
from rstar2_operator.observed import Object, ObservedJob, condition, is_true, lacks_pods, seconds, timestamp
from rstar2_train.api.job import AgenticRLJob

RETRY_SECONDS = (30.0, 600.0)
"""Minimum and maximum time between a release and the next try, before jitter."""
MAX_NAMES = 3
"""Pending pods that a message names."""
MAX_CAUSES = 2
"""Problems that a message has."""


def pending(observed: ObservedJob) -> list[str]:
    """Return the names of pods without a node, and of controllers whose pods are rejected (RuntimeClass, quota)."""
    pods = [pod["metadata"]["name"] for pod in observed.pods if _is_unscheduled(pod)]
    controllers = [
        name
        for (kind, name), child in observed.children.items()
        if is_true(child, "ReplicaFailure") or lacks_pods(kind, child)
    ]
    return sorted(pods) + sorted(controllers)


def _is_unscheduled(pod: Object) -> bool:
    scheduled = condition(pod, "PodScheduled")
    return (scheduled is None or scheduled["status"] != "True") and not pod["metadata"].get("deletionTimestamp")


def released_until(observed: ObservedJob) -> float | None:
    """Return when to retry after a release; None if the pods of the job are not released."""
    scheduled, retry = condition(observed.job, "PodsScheduled"), observed.status.get("nextRetryTime")
    if scheduled is None or scheduled["reason"] != SCHEDULING_TIMEOUT or retry is None:
        return None
    return seconds(retry)


def released(stage: str | None, observed: ObservedJob, restarts: RestartCounters, *, until: float) -> Plan:
    """Return the plan of a job that stays released."""
    scheduled = condition(observed.job, "PodsScheduled") or {}
    return restarts.plan(phase="Pending", reason=SCHEDULING_TIMEOUT, message=scheduled.get("message", ""), stage=stage,
                         retry_at=until, wake_at=until)  # fmt: skip


def release_if_overdue(plan: Plan, job: AgenticRLJob, observed: ObservedJob, *, since: float, now: float) -> Plan:
    """Return `plan`, or the release of all pods if some have been pending from `since` past the deadline."""
    limit, names = job.spec.pending_deadline_seconds, pending(observed)
    if limit is None or not names:
        return plan
    if now < since + limit:
        return wake_earlier(plan, since + limit)
    retry = now + _retry_seconds(limit, observed)
    listed = ", ".join(names[:MAX_NAMES]) + (", ..." if len(names) > MAX_NAMES else "")
    message = (
        f"Not all pods could be scheduled within {limit} s (pending: {listed}). Released all pods; retrying at "
        f"{timestamp(retry)}."
    )
    message += "".join(f"\n{problem}" for problem in diagnoses(observed, now=now)[:MAX_CAUSES])
    return Plan(phase="Pending", reason=SCHEDULING_TIMEOUT, message=message, stage=plan.stage, restarts=plan.restarts,
                counted=plan.counted, retry_at=retry, wake_at=retry)  # fmt: skip


def wake_earlier(plan: Plan, when: float) -> Plan:
    """Return the plan with a wake-up no later than `when`."""
    return dataclasses.replace(plan, wake_at=when if plan.wake_at is None else min(plan.wake_at, when))


def _retry_seconds(limit: float, observed: ObservedJob) -> float:
    low, high = RETRY_SECONDS
    # Jitter from the UID: jobs that were released together must not retry together.
    jitter = zlib.crc32(observed.job["metadata"]["uid"].encode()) / 2**32
    return min(high, max(low, limit)) * (1 + jitter)
