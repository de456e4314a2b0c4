"""The end of a job: all pods terminate, then the report Job runs, then the phase is final.

A job in a final phase holds no accelerator, and its report exists.
"""

from __future__ import annotations

from rstar2_operator import names
from rstar2_operator.decide import stage_progress
from rstar2_operator.decide.failure_policy import RestartCounters
from rstar2_operator.decide.plan import Ending, Phase, Plan
from rstar2_operator.decide.pod_termination import exit_deadline, listed, running_pods
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
    attempts = stage_progress.running_attempts(observed)
    if attempts:
        waiting = f"{message} Waiting for the pods of stage {attempts[0][0]} to terminate."
        # A checkpoint may need the engines.
        serving = ending == "failed" and observed.child("Deployment", names.rollout(observed.name)) is not None
        return restarts.plan(phase="Finalizing", reason=reason, message=waiting, stage=stage, ending=ending,
                             serving=serving, wake_at=exit_deadline(observed))  # fmt: skip
    report = observed.child("Job", names.report(observed.name))
    reported = report is not None and job_finished_at(report) is not None
    deadline = _requested_at(observed, report, now) + REPORT_SECONDS
    without_storage = stage_progress.preparation(observed) in ("missing", "failed")
    ended = without_storage or reported or now >= deadline
    pods = running_pods(observed, except_roles=["report"])
    if ended and pods:
        message = f"{message} Waiting for pods to terminate: {listed(pods)}."
    elif ended:
        final: Phase = "Succeeded" if ending == "completed" else "Failed"
        return restarts.plan(phase=final, reason=reason, message=message, stage=stage, ending=ending, report=reported)
    return restarts.plan(phase="Finalizing", reason=reason, message=message, stage=stage, ending=ending,
                         report=not without_storage, wake_at=None if ended else deadline)  # fmt: skip


def _requested_at(observed: ObservedJob, report: Object | None, now: float) -> float:
    """When the report was first required. The API server may reject the Job, so its creation is not enough."""
    since = observed.status.get("finalizingSince")
    if report is None and since is not None:
        return seconds(since)
    return created_at(report, now)
