"""spec.activeDeadlineSeconds: a job that has been active for too long fails. The time counts from start or resume."""

from __future__ import annotations

from rstar2_operator.observed import ObservedJob, seconds
from rstar2_train.api.job import AgenticRLJob


def deadline(job: AgenticRLJob, observed: ObservedJob, *, now: float) -> float | None:
    """Return when the job fails; None without a deadline, before the first status, and while it is suspended."""
    limit, since = job.spec.active_deadline_seconds, _active_since(observed, now)
    return None if limit is None or since is None or job.spec.suspend else since + limit


def _active_since(observed: ObservedJob, now: float) -> float | None:
    if "suspendedSince" in observed.status:
        return now  # it resumes in this round
    since = observed.status.get("activeSince")
    return None if since is None else seconds(since)
