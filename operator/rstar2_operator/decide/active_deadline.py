"""spec.activeDeadlineSeconds: a job that has been active for too long fails. The time counts from start or resume."""

from __future__ import annotations

from rstar2_operator.decide.decision import Defer, Verdict
from rstar2_operator.decide.facts import Facts
from rstar2_operator.decide.finalize import fail
from rstar2_operator.observed import seconds

EXCEEDED = "DeadlineExceeded"
"""Reason of phase Failed after the deadline."""


def active_deadline(facts: Facts) -> Verdict:
    """Fail a job after its deadline; not while it is suspended, nor after its last stage."""
    limit, since = facts.job.spec.active_deadline_seconds, _active_since(facts)
    if limit is None or since is None or facts.job.spec.suspend or facts.stage is None:
        return None
    ended = facts.observed.status.get("phase") == "Finalizing"
    if ended and facts.observed.status.get("reason") != EXCEEDED:
        return None  # for another reason
    if facts.now < since + limit:
        return Defer(wake_at=since + limit)
    message = f"The job was active for longer than spec.activeDeadlineSeconds ({limit} s)."
    return fail(facts, EXCEEDED, message)


def _active_since(facts: Facts) -> float | None:
    """Start or last resume; None before the first status."""
    if "suspendedSince" in facts.observed.status:
        return facts.now  # it resumes in this round
    since = facts.observed.status.get("activeSince")
    return None if since is None else seconds(since)
