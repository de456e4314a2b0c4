"""A preparation that ended through no fault of its own is repeated, within the limits of an attempt.

Another client has deleted its Job, or a kubelet has rejected its last pod. Both are disruptions: the first
MAX_CONSECUTIVE are not counted, each further one counts towards spec.failurePolicy.maxRestarts. `status.preparation`
has their number, and the UID of the Job that runs: without it a Job that was deleted looks like one that never existed.
The operator's own deletions, for a suspension or a release, end the record.
"""

from __future__ import annotations

from typing import Any, Literal

from rstar2_operator import names
from rstar2_operator.decide import disruption
from rstar2_operator.decide.decision import Decision, PreparationEnd
from rstar2_operator.decide.facts import Facts
from rstar2_operator.decide.failure_policy import retry_at
from rstar2_operator.decide.finalize import fail
from rstar2_operator.observed import Object, ObservedJob, seconds, timestamp
from rstar2_train.api.contracts import ExitCode
from rstar2_train.api.failure_policy import exhausted

FINISHED_PHASES = frozenset({"Running", "Suspending", "Suspended", "Succeeded"})
"""Phases in which no preparation is in progress."""


def record_of(observed: ObservedJob) -> Object:
    """Return the record of the preparation in progress; empty without one."""
    return observed.status.get("preparation") or {}


def is_deleted_by_others(observed: ObservedJob) -> bool:
    """Return whether the Job of the preparation ran in the last status. Call it only if the Job does not exist."""
    record = record_of(observed)
    return observed.status.get("phase") == "Preparing" and "job" in record and "action" not in record


def end_of_preparation(facts: Facts, cause: str, job: str) -> PreparationEnd:
    """Return the record of a disruption: the preparation is repeated, or the job fails. `job`: UID of its Job."""
    disruptions = int(record_of(facts.observed).get("disruptions", 0)) + 1
    counted = facts.restarts.counted_at(facts.now, facts.job.spec.failure_policy)
    counts = disruptions > disruption.MAX_CONSECUTIVE
    fails = counts and counted >= facts.job.spec.failure_policy.max_restarts
    reason, message = "PrepareFailed", exhausted(cause, counted) if fails else cause
    outcome = facts.observed.prepared()
    if outcome is not None and outcome.exit_code == ExitCode.CONFIGURATION:
        fails, reason, message = True, outcome.reason, outcome.message
    action: Literal["Restart", "FailJob"] = "FailJob" if fails else "Restart"
    return PreparationEnd(
        job=job, disruptions=disruptions, counts=counts, action=action, reason=reason, message=message
    )


def failed(facts: Facts) -> Decision | None:
    """Return the decision of a job whose preparation has used up its restarts; None for others."""
    record = record_of(facts.observed)
    if record.get("action") != "FailJob":
        return None
    return fail(facts, str(record.get("reason", "")), str(record.get("message", "")))


def repeats_at(facts: Facts) -> float | None:
    """Return when the preparation is repeated after the last disruption; None if it is due."""
    record = record_of(facts.observed)
    if "action" not in record or "time" not in record:
        return None
    return retry_at(seconds(record["time"]), int(record.get("disruptions", 1)) - 1, now=facts.now)


def preparation_status(observed: ObservedJob, decision: Decision, *, now: float) -> dict[str, Any] | None:
    """Return the record for the next status; None without one."""
    if (ended := decision.preparation_end) is not None:
        own = {name: getattr(ended, name) for name in ("job", "disruptions", "action", "reason", "message")}
        return {**own, "time": timestamp(now)}
    if decision.phase in FINISHED_PHASES:
        return None
    old, job = record_of(observed), observed.child("Job", names.prepare(observed.name))
    if decision.prepare and job is not None:
        uid = job["metadata"]["uid"]
        if old.get("job") == uid or not job["metadata"].get("deletionTimestamp"):
            return {"job": uid, **{field: old[field] for field in ("disruptions", "message") if field in old}}
    return dict(old) if "action" in old else None
