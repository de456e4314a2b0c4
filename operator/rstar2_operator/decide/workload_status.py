"""The status of a Workload as Kueue expects it from an owner: running pods, the end, and the return of the quota.

Kueue evicts a Workload that does not report `PodsReady` in time (waitForPodsReady), and leaves an evicted Workload its
quota until the owner, whose pods have stopped, returns it. The Workload then waits in the queue with its age and its
number of evictions. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rstar2_operator import names
from rstar2_operator.decide import stage_progress
from rstar2_operator.decide.decision import Decision
from rstar2_operator.decide.kueue import WITHOUT_QUOTA, current_workload, may_run
from rstar2_operator.decide.pod_termination import running_pods
from rstar2_operator.observed import (
    READY_ROLES,
    Object,
    ObservedJob,
    condition,
    is_true,
    job_finished_at,
    labels,
    ready_of,
    timestamp,
)

MANAGER = "kueue-admission"
"""Field manager of the part of a Workload's status that an owner writes on behalf of Kueue, as all owners do."""
ADMISSION_CONDITIONS = (
    *("QuotaReserved", "Evicted", "Admitted", "Preempted", "Requeued", "DeactivationTarget", "Finished"),
)
"""Conditions that MANAGER owns."""
ADMISSION_FIELDS = (
    *("requeueState", "resourceRequests", "accumulatedPastExecutionTimeSeconds", "schedulingStats"),
    *("clusterName", "nominatedClusterNames", "unhealthyNodes", "admissionChecks"),
)
"""Other fields that MANAGER owns, apart from `admission`."""
REQUEUED_BY_OWNER = ("Preempted", "NodeFailures")
"""Reasons of an eviction after which Kueue expects that the owner queues the Workload again; else Kueue decides."""

STARTED, RECOVERED, WAITS_FOR_START, WAITS_FOR_RECOVERY = "Started", "Recovered", "WaitForStart", "WaitForRecovery"


def own_conditions(observed: ObservedJob, decision: Decision, *, now: float) -> list[dict[str, Any]]:
    """Return the conditions that the job's Workload should have from the operator, if they differ from the present."""
    workload = current_workload(observed)
    if workload is None or is_true(workload, "Finished"):
        return []
    if decision.ending in ("completed", "failed") and not running_pods(observed, except_roles=WITHOUT_QUOTA):
        reason = "Succeeded" if decision.ending == "completed" else "Failed"
        return [_condition("Finished", True, reason, decision.message or "The job has ended.", workload, now)]
    before = condition(workload, "PodsReady") or {}
    if not may_run(workload):
        if not before or before.get("reason") == WAITS_FOR_START:
            return []
        return [_condition("PodsReady", False, WAITS_FOR_START, "The Workload is not admitted.", workload, now)]
    waits = [role for role, missing in _missing(workload, observed, decision).items() if missing]
    started_before = before.get("status") == "True" or before.get("reason") in (WAITS_FOR_RECOVERY, RECOVERED)
    if waits:
        reason = WAITS_FOR_RECOVERY if started_before else WAITS_FOR_START
        message = f"Not all pods run: {', '.join(waits)}."
    elif before.get("status") == "True":
        return []
    else:
        reason, message = RECOVERED if started_before else STARTED, "All pods run."
    if (before.get("status"), before.get("reason")) == ("False" if waits else "True", reason):
        return []
    return [_condition("PodsReady", not waits, reason, message, workload, now)]


def returns_quota(observed: ObservedJob, decision: Decision) -> bool:
    """Return whether the quota of an evicted Workload must be returned: no pod uses it any more."""
    workload = current_workload(observed)
    if workload is None or not is_true(workload, "Evicted") or not is_true(workload, "QuotaReserved"):
        return False
    jobs = [job for job in observed.of_kind("Job") if names.STAGE_LABEL in labels(job)]
    unfinished = [job for job in jobs if job_finished_at(job) is None]
    running = running_pods(observed, except_roles=WITHOUT_QUOTA) or stage_progress.running_attempts(observed)
    return decision.attempt is None and not running and not unfinished


def without_quota(workload: Object, *, now: float) -> dict[str, Any]:
    """Return the status of an evicted Workload, as MANAGER applies it: without admission, and queued again."""
    old = workload.get("status") or {}
    evicted = condition(workload, "Evicted") or {}
    reason, message = str(evicted.get("reason", "")), str(evicted.get("message", ""))
    kept = {entry["type"]: entry for entry in old.get("conditions") or () if entry["type"] in ADMISSION_CONDITIONS}
    no_reservation = "The workload has no reservation"
    kept["QuotaReserved"] = _condition("QuotaReserved", False, "Pending", message, workload, now)
    kept["Admitted"] = _condition("Admitted", False, "NoReservation", no_reservation, workload, now)
    kept["Requeued"] = _condition("Requeued", reason in REQUEUED_BY_OWNER, reason, message, workload, now)
    return {**{name: old[name] for name in ADMISSION_FIELDS if name in old}, "conditions": list(kept.values())}


def _missing(workload: Object, observed: ObservedJob, decision: Decision) -> Mapping[str, int]:
    """Return the number of admitted pods per role that should run and do not. An edit or autoscaler may want fewer."""
    admission = (workload.get("status") or {}).get("admission") or {}
    counts = {
        assignment["name"]: int(assignment.get("count", 0)) for assignment in admission.get("podSetAssignments") or ()
    }
    for role in counts.keys() & READY_ROLES.keys():
        if wanted := ready_of(observed, role)[1]:
            counts[role] = min(counts[role], wanted)
    running = dict.fromkeys(counts, 0)
    for pod in observed.pods:
        own = labels(pod)
        role = own.get(names.ROLE_LABEL, "")
        of_other = decision.attempt is None or (own.get(names.STAGE_LABEL), own.get(names.ATTEMPT_LABEL)) != (
            decision.attempt.stage,
            str(decision.attempt.number),
        )
        if role not in running or pod["metadata"].get("deletionTimestamp") or (role == "trainer" and of_other):
            continue
        running[role] += (pod.get("status") or {}).get("phase") in ("Running", "Succeeded")
    return {role: count - running[role] if count > running[role] else 0 for role, count in counts.items()}


def _condition(kind: str, value: bool, reason: str, message: str, workload: Object, now: float) -> dict[str, Any]:
    return {
        "type": kind,
        "status": "True" if value else "False",
        "reason": reason or "Unknown",
        "message": message[:1024],
        "lastTransitionTime": timestamp(now),
        "observedGeneration": workload["metadata"].get("generation", 0),
    }
