"""spec.pendingDeadlineSeconds: a job whose pods cannot all be scheduled in time releases all of them, and retries.

Without it, two jobs could each hold half of the accelerators and wait for the other half indefinitely.
"""

from __future__ import annotations

import zlib

from rstar2_operator.decide.advice import APPLY_REJECTED
from rstar2_operator.decide.attempt import has_started, idle_since
from rstar2_operator.decide.containers import is_reduced
from rstar2_operator.decide.decision import SCHEDULING_TIMEOUT, Decision, Defer, Verdict, listed
from rstar2_operator.decide.diagnostics import JOB_SUSPENDED, NOT_REPORTING, OF_STARTING_PODS
from rstar2_operator.decide.facts import Facts
from rstar2_operator.decide.kueue import held_workload
from rstar2_operator.decide.stage_progress import running_attempts
from rstar2_operator.names import attempt, prepare, rollout
from rstar2_operator.observed import (
    READY_ROLES,
    Object,
    ObservedJob,
    condition,
    condition_time,
    created_at,
    is_true,
    lacks_pods,
    ready_of,
    seconds,
    timestamp,
)

RETRY_SECONDS = (30.0, 600.0)
"""Minimum and maximum time between a release and the next try, before jitter."""
MAX_CAUSES = 2
"""Problems that a message has."""


def pending_pods(observed: ObservedJob) -> list[str]:
    """Return the names of pods without a node, and of controllers whose pods are rejected (RuntimeClass, quota)."""
    return unscheduled_pods(observed) + controllers_without_pods(observed)


def unscheduled_pods(observed: ObservedJob) -> list[str]:
    """Return the names of pods without a node."""
    return sorted(pod["metadata"]["name"] for pod in observed.pods if _is_unscheduled(pod))


def controllers_without_pods(observed: ObservedJob) -> list[str]:
    """Return the names of objects whose pods are not created yet, or rejected (RuntimeClass, quota)."""
    return sorted(
        name
        for (kind, name), child in observed.children.items()
        if is_true(child, "ReplicaFailure") or lacks_pods(kind, child)
    )


def _is_unscheduled(pod: Object) -> bool:
    """Return whether a pod waits for a node. A kubelet may write the status of a pod without its PodScheduled."""
    if pod["metadata"].get("deletionTimestamp") or (pod.get("status") or {}).get("phase") not in (None, "Pending"):
        return False
    scheduled = condition(pod, "PodScheduled")
    return scheduled is None or scheduled["status"] != "True"


def pending_deadline(facts: Facts) -> Verdict:
    """Release all pods if some are pending past the deadline, and keep them released until the next try."""
    until = _released_until(facts.observed, facts.now)
    if until is not None and facts.now < until:
        scheduled = condition(facts.observed.job, "PodsScheduled") or {}
        return _released(facts, scheduled.get("message", ""), until)
    since, limit = _starting_since(facts), facts.job.spec.pending_deadline_seconds
    if since is None or limit is None or not (names := _waiting(facts)):
        return None
    if facts.now < since + limit:
        return Defer(wake_at=since + limit)
    retry = facts.now + _retry_seconds(limit, facts.observed)
    message = (
        f"Not all pods could be scheduled and started within {limit} s (pending: {listed(names)}). Released all pods; "
        f"retrying at {timestamp(retry)}."
    )
    causes = [facts.observed.status.get("message", "")] if _waits_for_attempt(facts) else facts.problems[:MAX_CAUSES]
    message += "".join(f"\n{cause}" for cause in causes)
    return _released(facts, message, retry)


def _waiting(facts: Facts) -> list[str]:
    """Return the pending pods, those whose containers do not start, and the Job of an orchestrator without a report."""
    if _waits_for_attempt(facts):
        return [attempt(facts.observed.name, str(facts.stage_name), facts.attempt + 1)]  # it is rejected
    reasons = OF_STARTING_PODS | {NOT_REPORTING, JOB_SUSPENDED}
    blocked = {problem.subject.removeprefix("Pod/") for problem in facts.problems if problem.reason in reasons}
    unready = [] if facts.running_job is None else _without_ready_pod(facts.observed)
    return list(dict.fromkeys([*pending_pods(facts.observed), *sorted(blocked), *unready]))


def _without_ready_pod(observed: ObservedJob) -> list[str]:
    """Return the objects whose pods run or terminate, and of which no pod is ready: the attempt waits for them."""
    counts = {of_role: ready_of(observed, role) for role, (_, of_role) in READY_ROLES.items()}
    return [of_role(observed.name) for of_role, (ready, desired) in counts.items() if desired and not ready]


def _released_until(observed: ObservedJob, now: float) -> float | None:
    """Return when to retry after a release; None if the pods of the job are not released.

    A time that no release can have is ignored: the clock of another replica, or an edit, has set it.
    """
    retry = observed.status.get("nextRetryTime")
    if retry is None or observed.status.get("reason") != SCHEDULING_TIMEOUT:
        return None
    until = seconds(retry)
    return until if until <= now + 2 * RETRY_SECONDS[1] else None


def _released(facts: Facts, message: str, until: float) -> Decision:
    return Decision(
        facts.stage_name,
        facts.restarts,
        phase="Pending",
        reason=SCHEDULING_TIMEOUT,
        message=message,
        retry_at=until,
        wake_at=until,
        workload=held_workload(facts, with_quota=False),
    )


def _starting_since(facts: Facts) -> float | None:
    """Return the creation time of the Job whose pods must be scheduled; None after its start."""
    if facts.preparation == "running":
        return created_at(facts.observed.child("Job", prepare(facts.observed.name)), facts.now)
    job = facts.running_job
    if _waits_for_attempt(facts):
        return _rejected_since(facts)
    if facts.preparation != "complete" or job is None or is_true(job, "FailureTarget"):
        return None
    if is_true(job, "Suspended"):  # by another client: its pods are gone, also if its orchestrator had reported
        return condition_time(condition(job, "Suspended") or {}) or created_at(job, facts.now)
    created = created_at(job, facts.now)
    if is_reduced(job):  # by another client: since the last report of the pods that it has removed
        return max(created, idle_since(facts))
    return None if has_started(facts) else created


def _waits_for_attempt(facts: Facts) -> bool:
    return facts.running_job is None and facts.preparation == "complete"


def _rejected_since(facts: Facts) -> float | None:
    """Return since when engines wait for an attempt that is rejected, itself or its record; None if none is."""
    observed = facts.observed
    engines = observed.child("Deployment", rollout(observed.name))
    is_rejected = observed.status_rejected or observed.status.get("reason") == APPLY_REJECTED
    if engines is None or not is_rejected or running_attempts(observed):
        return None
    return idle_since(facts)


def _retry_seconds(limit: float, observed: ObservedJob) -> float:
    low, high = RETRY_SECONDS
    # Jitter from the UID: jobs that were released together must not retry together.
    jitter = zlib.crc32(observed.job["metadata"]["uid"].encode()) / 2**32
    return min(high, max(low, limit)) * (1 + jitter)
