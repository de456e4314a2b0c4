"""The end of a job: the report Job runs before the final phase, so that the report exists when the phase is visible."""

from __future__ import annotations

from rstar2_operator import names
from rstar2_operator.decide import stage_progress
from rstar2_operator.decide.failure_policy import RestartCounters
from rstar2_operator.decide.plan import Ending, Phase, Plan
from rstar2_operator.observed import Object, ObservedJob, created_at, job_finished_at, seconds

REPORT_SECONDS = 300.0
"""Maximum wait for the report Job; a report that hangs or is rejected must not delay the end any longer."""


def finalize(
    observed: ObservedJob,
    *,
    ending: Ending,
    restarts: RestartCounters,
    reason: str,
    message: str,
    now: float,
    stage: str | None = None,
) -> Plan:
    """Return the plan of a job that ends: Finalizing until the report is written, then the final phase."""
    report = observed.child("Job", names.report(observed.name))
    reported = report is not None and job_finished_at(report) is not None
    deadline = _requested_at(observed, report, now) + REPORT_SECONDS
    without_storage = stage_progress.preparation(observed) in ("missing", "failed")
    if without_storage or reported or now >= deadline:
        final: Phase = "Succeeded" if ending == "completed" else "Failed"
        return restarts.plan(
            phase=final, reason=reason, message=message, stage=stage, report=ending if reported else None
        )
    return restarts.plan(
        phase="Finalizing", reason=reason, message=message, stage=stage, report=ending, wake_at=deadline
    )


def _requested_at(observed: ObservedJob, report: Object | None, now: float) -> float:
    """When the report was first required. The API server may reject the Job, so its creation is not enough."""
    since = observed.status.get("finalizingSince")
    if report is None and since is not None:
        return seconds(since)
    return created_at(report, now)
