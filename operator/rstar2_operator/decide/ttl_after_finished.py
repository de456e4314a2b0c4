"""spec.ttlSecondsAfterFinished: a finished job is deleted after some time, and keeps its last status until then."""

from __future__ import annotations

from rstar2_operator.decide.decision import FINAL, Decision, Verdict
from rstar2_operator.decide.facts import Facts
from rstar2_operator.observed import condition, is_true, seconds


def ttl_after_finished(facts: Facts) -> Verdict:
    """Keep a job in its final phase, and delete it when its time is over."""
    observed = facts.observed
    phase = next((final for final in FINAL if is_true(observed.job, final)), None)
    if phase is None:
        return None
    final = condition(observed.job, phase) or {}
    ttl, completion = facts.job.spec.ttl_seconds_after_finished, observed.status.get("completionTime")
    expires = None if ttl is None or completion is None else seconds(completion) + ttl
    return Decision(
        observed.status.get("stage"),
        facts.restarts,
        phase=phase,
        reason=final.get("reason", ""),
        message=final.get("message", ""),
        delete=expires is not None and facts.now >= expires,
        wake_at=expires,
    )
