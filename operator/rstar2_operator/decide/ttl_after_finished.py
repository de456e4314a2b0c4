"""spec.ttlSecondsAfterFinished: a finished job is deleted after some time, and keeps its last status until then."""

from __future__ import annotations

from rstar2_operator.decide.failure_policy import counters
from rstar2_operator.decide.plan import Phase, Plan
from rstar2_operator.observed import ObservedJob, condition, seconds
from rstar2_train.api.job import AgenticRLJob


def finished(job: AgenticRLJob, observed: ObservedJob, phase: Phase, *, now: float) -> Plan:
    """Return the plan of a job whose final condition is `phase`."""
    final, restarts = condition(observed.job, phase) or {}, counters(observed, None)
    ttl, completion = job.spec.ttl_seconds_after_finished, observed.status.get("completionTime")
    expires = None if ttl is None or completion is None else seconds(completion) + ttl
    return restarts.plan(
        phase=phase,
        reason=final.get("reason", ""),
        message=final.get("message", ""),
        stage=observed.status.get("stage"),
        delete=expires is not None and now >= expires,
        wake_at=expires,
    )
