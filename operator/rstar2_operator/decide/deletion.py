"""The ordered deletion of a job, while the operator's finalizer keeps the AgenticRLJob and all that it owns.

First the pods of the attempt terminate, and a training orchestrator writes a checkpoint. Then the other pods terminate,
and the report Job closes the MLflow run. When no pod is left, the finalizer is removed, and the garbage collector
deletes the other objects, such as NetworkPolicies. A job in a final phase has no finalizer, because it has no pods.
"""

from __future__ import annotations

from rstar2_operator import names
from rstar2_operator.decide import stage_progress
from rstar2_operator.decide.decision import DELETING, FINAL, Decision, Verdict, listed
from rstar2_operator.decide.facts import Facts
from rstar2_operator.decide.finalize import REPORT_SECONDS, is_reported, report_requested_at
from rstar2_operator.decide.pod_termination import running_pods
from rstar2_operator.observed import Object, ObservedJob, is_true, job_finished_at

CREATION_SECONDS = 30.0
"""Maximum wait for the creation of the report Job; a namespace that is being deleted rejects it."""


def deletion(facts: Facts) -> Verdict:
    """End the pods of a deleted job, in any phase."""
    observed = facts.observed
    if not is_deleted(observed.job):
        return None
    if stage_progress.running_attempts(observed):
        message = "Waiting for pods to terminate. A training orchestrator writes a checkpoint first."
        return _deleting(facts, message, serving=facts.has_engines and facts.needs_engines)
    due = _report_due(facts)
    if due is not None and facts.now < due:
        return _deleting(facts, "Writing the report and closing the MLflow run.", report=True, wake_at=due)
    finished = ["report"] if is_reported(observed) else []
    if pods := running_pods(observed, except_roles=finished) or _controllers(observed):
        return _deleting(facts, f"Waiting for pods to terminate: {listed(pods)}.")
    return _deleting(facts, "No pod is left.", release=True)


def _deleting(
    facts: Facts,
    message: str,
    *,
    serving: bool = False,
    report: bool = False,
    release: bool = False,
    wake_at: float | None = None,
) -> Decision:
    return Decision(
        facts.stage_name,
        facts.restarts,
        phase=DELETING,
        reason=DELETING,
        message=f"The job is being deleted. {message}",
        ending="deleted",
        serving=serving,
        report=report,
        release=release,
        wake_at=wake_at,
    )


def _report_due(facts: Facts) -> float | None:
    """Return until when the report may take; None if it is finished, or no stage has started.

    A deletion in the foreground has deleted the objects that the report needs.
    """
    observed = facts.observed
    started = any(stage_progress.last_attempt(stage, observed) for stage in facts.job.spec.stages)
    if not started or "foregroundDeletion" in _finalizers(observed.job):
        return None
    if any(is_true(observed.job, phase) for phase in FINAL):
        return None
    report = observed.child("Job", names.report(observed.name))
    if is_reported(facts.observed):
        return None
    limit = CREATION_SECONDS if report is None else REPORT_SECONDS
    return report_requested_at(observed, report, facts.now) + limit


def _controllers(observed: ObservedJob) -> list[str]:
    """Return the names of the objects that create pods: the watch of their pods may be late."""
    report = names.report(observed.name)
    return sorted(
        name
        for (kind, name), child in observed.children.items()
        if kind in ("Deployment", "StatefulSet")
        or (kind == "Job" and job_finished_at(child) is None and not (name == report and is_reported(observed)))
    )


def is_deleted(job: Object) -> bool:
    """Return whether the AgenticRLJob was deleted, and exists until its finalizers are removed."""
    return "deletionTimestamp" in job["metadata"]


def has_finalizer(job: Object) -> bool:
    """Return whether the AgenticRLJob has the operator's finalizer."""
    return names.FINALIZER in _finalizers(job)


def keeps_objects(job: Object) -> bool:
    """Return whether a person deletes the AgenticRLJob without its objects (kubectl delete --cascade=orphan)."""
    return is_deleted(job) and "orphan" in _finalizers(job)


def needs_finalizer(decision: Decision) -> bool:
    """Return whether a deletion must wait for the operator: the job may have pods, or an open MLflow run."""
    return decision.phase not in FINAL and not decision.release


def _finalizers(job: Object) -> list[str]:
    return job["metadata"].get("finalizers") or []
