"""spec.storage: model and datasets are downloaded into the storage before the first stage.

Sources that are added or changed later are downloaded before the next attempt.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from rstar2_operator import names
from rstar2_operator.decide import repeated_preparation, stage_progress
from rstar2_operator.decide.advice import PREPARE_SLOW
from rstar2_operator.decide.attempt import idle_since
from rstar2_operator.decide.decision import Decision, Verdict, wake_earlier
from rstar2_operator.decide.diagnostics import STUCK_SECONDS, Diagnosis
from rstar2_operator.decide.disruption import PREPARATION_DELETED, REJECTED, cause_of_rejection
from rstar2_operator.decide.facts import Facts
from rstar2_operator.decide.failed_jobs import cause_of_failure, cause_of_pods, pods_of
from rstar2_operator.decide.failure_policy import backoff_seconds
from rstar2_operator.decide.finalize import fail
from rstar2_operator.decide.kueue import has_lost_quota, held_workload
from rstar2_operator.decide.pod_termination import pod_termination
from rstar2_operator.observed import (
    Object,
    ObservedJob,
    annotations_of,
    as_json,
    created_at,
    held_exit_code,
    seconds,
    timestamp,
)
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.sources import BUCKETS, GENERATED, HUB, sources

SLOW_SECONDS = 6 * 3600.0
"""Seconds after which a preparation is reported: it may hang. Large downloads take hours, so it is not ended."""


def storage(facts: Facts) -> Verdict:
    """Prepare the storage; fail the job if that fails."""
    if (failed := repeated_preparation.failed(facts)) is not None:
        return failed
    if facts.preparation == "missing":
        return _deleted(facts) or pod_termination(facts) or _started(facts, "Downloading model and datasets.")
    if facts.preparation == "running":
        failed_pods = _failed_pods(facts.observed)
        return _preparing(facts, "Downloading model and datasets.", prepare=True, remove_pods=failed_pods)
    if facts.preparation == "failed":
        return _rejected_preparation(facts) or fail(facts, *_failure(facts.observed))
    if facts.stage is None or stage_progress.running_attempts(facts.observed) or not _has_new_sources(facts):
        return None
    message = "Downloading sources that were added or changed."
    last = facts.observed.child("Job", names.prepare(facts.observed.name))
    if last is None:
        return _deleted(facts) or _started(facts, message)
    if last["metadata"].get("deletionTimestamp"):
        return _preparing(facts, f"{message} {_deleting(last)}")
    return _preparing(facts, message, stale_jobs=(last,))


def _started(facts: Facts, message: str) -> Decision:
    """Create the Job, after the backoff if the last one was disrupted."""
    if (retry := repeated_preparation.repeats_at(facts)) is None:
        return _preparing(facts, message, prepare=True)
    cause = str(repeated_preparation.record_of(facts.observed).get("message", ""))
    return _waiting(_preparing(facts, f"The preparation restarts at {timestamp(retry)}. {cause}"), retry)


def _waiting(decision: Decision, retry: float) -> Decision:
    return replace(wake_earlier(decision, retry), retry_at=retry)


def _deleted(facts: Facts) -> Decision | None:
    """Record that another client has deleted the Job; None if no Job ran."""
    if not repeated_preparation.is_deleted_by_others(facts.observed):
        return None
    return _disrupted(facts, PREPARATION_DELETED, repeated_preparation.record_of(facts.observed)["job"])


def _rejected_preparation(facts: Facts) -> Decision | None:
    """Record that the last pod was rejected, then delete the Job; None if the preparation itself failed."""
    prepare, cause = facts.observed.child("Job", names.prepare(facts.observed.name)), _rejected(facts.observed)
    if prepare is None or not cause:
        return None
    record = repeated_preparation.record_of(facts.observed)
    if "action" not in record or record.get("job") != prepare["metadata"]["uid"]:
        return _disrupted(facts, f"{REJECTED}: {cause}", prepare["metadata"]["uid"])
    stale = () if prepare["metadata"].get("deletionTimestamp") else (prepare,)
    return _preparing(facts, f"The preparation is retried: {record.get('message', '')}", stale_jobs=stale)


def _disrupted(facts: Facts, cause: str, job: str) -> Decision:
    """Return the decision that records a disruption. `job`: UID of the Job."""
    end = repeated_preparation.end_of_preparation(facts, cause, job)
    if end.action == "FailJob":
        return replace(fail(facts, end.reason, end.message), preparation_end=end)
    restarts = facts.restarts.after(facts.now, facts.job.spec.failure_policy, counts=end.counts)
    retry = facts.now + backoff_seconds(end.disruptions - 1)
    decision = _preparing(facts, f"The preparation restarts at {timestamp(retry)}. {cause}")
    return replace(_waiting(decision, retry), restarts=restarts, preparation_end=end)


def _preparing(
    facts: Facts,
    message: str,
    *,
    prepare: bool = False,
    remove_pods: tuple[Object, ...] = (),
    stale_jobs: tuple[Object, ...] = (),
) -> Decision:
    """Return phase Preparing. Engines and quota of the last attempt stay for spec.pendingDeadlineSeconds."""
    due = idle_since(facts) + facts.job.spec.pending_deadline_seconds
    kept = facts.now < due
    slow = created_at(facts.observed.child("Job", names.prepare(facts.observed.name)), facts.now) + SLOW_SECONDS
    return Decision(
        facts.stage_name,
        facts.restarts,
        phase="Preparing",
        reason="Preparing",
        message=message,
        prepare=prepare,
        serving=kept and facts.has_engines and facts.needs_engines and not has_lost_quota(facts),
        workload=held_workload(facts, with_quota=kept),
        remove_pods=remove_pods,
        stale_jobs=stale_jobs,
        wake_at=min((when for when in (due, slow) if when > facts.now), default=None),
    )


def problems(observed: ObservedJob, *, now: float) -> list[Diagnosis]:
    """Return the problem of a preparation that runs for long or retries, or whose last Job is not deleted."""
    prepare, record = observed.child("Job", names.prepare(observed.name)), repeated_preparation.record_of(observed)
    if record.get("disruptions") and observed.status.get("phase") == "Preparing":
        message = f"was disrupted {record['disruptions']} times in a row; the last cause: {record.get('message', '')}"
        return [Diagnosis("prepare", f"Job/{names.prepare(observed.name)}", PREPARE_SLOW, message)]
    if prepare is None:
        return []
    subject, deleted = f"Job/{prepare['metadata']['name']}", prepare["metadata"].get("deletionTimestamp")
    if deleted and prepare["metadata"].get("finalizers") and now >= seconds(deleted) + STUCK_SECONDS:
        return [Diagnosis("prepare", subject, PREPARE_SLOW, f"since {deleted}. {_deleting(prepare)}")]
    if deleted or stage_progress.preparation(observed) != "running":
        return []
    since, failed = created_at(prepare, now), cause_of_pods("prepare", observed)
    if not failed and now < since + SLOW_SECONDS:
        return []
    message = f"runs since {timestamp(since)}" + (f"; its last failed pod: {failed}" if failed else "")
    return [Diagnosis("prepare", subject, PREPARE_SLOW, message)]


def _deleting(job: Object) -> str:
    """Return which finalizers keep a deleted Job."""
    finalizers = ", ".join(job["metadata"].get("finalizers") or ())
    return f"Waiting for the deletion of Job {job['metadata']['name']} (finalizers: {finalizers})."


def source_digest(job: AgenticRLJob) -> str:
    """Return a digest of the sources that preparation downloads or generates."""
    provided = {source.value for source in sources(job) if source.value.startswith((GENERATED, HUB, *BUCKETS))}
    return hashlib.sha256(as_json([sorted(provided), job.spec.seed]).encode()).hexdigest()[:16]


def prepared_sources(job: AgenticRLJob, observed: ObservedJob) -> str | None:
    """Return the digest of the sources in the storage, for the status; None before they are there."""
    if stage_progress.preparation(observed) != "complete":
        return observed.status.get("preparedSources")
    return _prepared(observed) or source_digest(job)  # prepared by a version without digests


def _prepared(observed: ObservedJob) -> str | None:
    """Return the digest of the last preparation: its Job has it, or the status."""
    last = observed.child("Job", names.prepare(observed.name))
    digest = None if last is None else annotations_of(last).get(names.SOURCES)
    return digest or observed.status.get("preparedSources")


def _has_new_sources(facts: Facts) -> bool:
    prepared = _prepared(facts.observed)
    return prepared is not None and prepared != source_digest(facts.job)


def _failure(observed: ObservedJob) -> tuple[str, str]:
    """Return the reason and message of a failed preparation."""
    outcome = observed.prepared()
    if outcome is not None and not outcome.ended_well:  # a good one is that of the preparation before
        return outcome.reason, outcome.message
    prepare = observed.child("Job", names.prepare(observed.name)) or {}
    return "PrepareFailed", cause_of_failure(prepare, "prepare", observed)


def _rejected(observed: ObservedJob) -> str:
    """Return the kubelet's words if the last pod of the preparation failed before its container started; else empty.

    Such a failure is one of the node, or of an injected container, as for an attempt.
    """
    pods = pods_of("prepare", observed)
    cause = cause_of_rejection(pods[0]) if pods else ""
    return f"Pod/{pods[0]['metadata']['name']}: {cause}" if cause else ""


def _failed_pods(observed: ObservedJob) -> tuple[Object, ...]:
    """Return the pod whose container failed, and which an injected one keeps running: its Job could not retry."""
    prepare = observed.child("Job", names.prepare(observed.name))
    pod = None if prepare is None else stage_progress.first_pod(prepare, observed)
    return (pod,) if pod is not None and held_exit_code(pod) else ()
