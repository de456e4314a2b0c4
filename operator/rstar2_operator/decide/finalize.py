"""The end of a job: all pods terminate, then the report Job runs, then the phase is final.

A job in a final phase holds no accelerator, and its report exists.
"""

from __future__ import annotations

from rstar2_operator import names
from rstar2_operator.decide import stage_progress
from rstar2_operator.decide.decision import Decision, Ending, Phase, Verdict, listed
from rstar2_operator.decide.facts import Facts
from rstar2_operator.decide.failed_jobs import cause_of_failure
from rstar2_operator.decide.pod_termination import exit_deadline, running_pods
from rstar2_operator.observed import (
    Object,
    ObservedJob,
    created_at,
    held_exit_code,
    is_true,
    job_finished_at,
    seconds,
)

REPORT_SECONDS = 300.0
"""Maximum wait for the report Job; a report that hangs or is rejected must not delay the end any longer."""


def completion(facts: Facts) -> Verdict:
    """End a job whose stages have all succeeded."""
    if facts.stage is not None:
        return None
    return _finalize(facts, ending="completed", reason="Completed", message="All stages succeeded.")


def fail(facts: Facts, reason: str, message: str) -> Decision:
    """Return the decision of a job that fails."""
    return _finalize(facts, ending="failed", reason=reason, message=message)


def _finalize(facts: Facts, *, ending: Ending, reason: str, message: str) -> Decision:
    """Return phase Finalizing until the report is written, then the final phase."""
    observed, now = facts.observed, facts.now
    attempts = stage_progress.running_attempts(observed)
    if attempts:
        waiting = f"{message} Waiting for the pods of stage {attempts[0][0]} to terminate."
        serving = ending == "failed" and facts.has_engines
        return Decision(
            facts.stage_name,
            facts.restarts,
            phase="Finalizing",
            reason=reason,
            message=waiting,
            ending=ending,
            serving=serving,
            wake_at=exit_deadline(observed, now=now),
        )
    report = observed.child("Job", names.report(observed.name))
    reported = is_reported(observed)
    deadline = report_requested_at(observed, report, now) + REPORT_SECONDS
    without_storage = facts.preparation in ("missing", "failed")
    ended = without_storage or reported or now >= deadline
    pods = running_pods(observed, except_roles=["report"])
    if ended and pods:
        message = f"{message} Waiting for pods to terminate: {listed(pods)}."
    elif ended:
        final: Phase = "Succeeded" if ending == "completed" else "Failed"
        message += "" if without_storage else _missing_report(observed)
        return Decision(
            facts.stage_name,
            facts.restarts,
            phase=final,
            reason=reason,
            message=message,
            ending=ending,
            report=reported,
        )
    return Decision(
        facts.stage_name,
        facts.restarts,
        phase="Finalizing",
        reason=reason,
        message=message,
        ending=ending,
        report=not without_storage,
        wake_at=None if ended else deadline,
    )


def _missing_report(observed: ObservedJob) -> str:
    """Return a sentence about a report that was not written as a whole; empty if the report Job succeeded."""
    name = names.report(observed.name)
    report = observed.child("Job", name)
    if report is None or not is_reported(observed):
        return f" It has no report: Job {name} did not finish in time."
    if not is_true(report, "Failed") and not held_exit_code(stage_progress.first_pod(report, observed)):
        return ""
    cause = cause_of_failure(report, "report", observed)
    return f" Its report may be missing, or its MLflow run open: Job {name} failed. {cause}"


def is_reported(observed: ObservedJob) -> bool:
    """Return whether the report Job has finished, or the own container of its pod, which an injected one keeps running.

    In the second case the Job ends by its own deadline; another try of it is not possible.
    """
    report = observed.child("Job", names.report(observed.name))
    if report is None:
        return False
    pod = stage_progress.first_pod(report, observed)
    return job_finished_at(report) is not None or held_exit_code(pod) is not None


def report_requested_at(observed: ObservedJob, report: Object | None, now: float) -> float:
    """Return when the report was first required. The API server may reject the Job, so its creation is not enough."""
    since = observed.status.get("finalizingSince")
    if report is None and since is not None:
        return seconds(since)
    return created_at(report, now)
