"""Position in the curriculum: the current stage, its last attempt, and whether the storage is prepared."""

from __future__ import annotations

from typing import Literal

from rstar2_operator import names
from rstar2_operator.observed import ObservedJob, is_true, job_finished_at, labels
from rstar2_train.api.contracts import ENDED_WELL
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.stages import Stage

Preparation = Literal["missing", "running", "complete", "failed"]
_STATUS_ENDED_WELL = frozenset(outcome.capitalize() for outcome in ENDED_WELL)


def succeeded(stage: str, observed: ObservedJob) -> bool:
    """Whether a stage ended well, by its outcome or by the last status."""
    outcome = observed.outcome(stage)
    recorded = observed.stage_status(stage).get("outcome")
    return (outcome is not None and outcome.ended_well) or recorded in _STATUS_ENDED_WELL


def current(job: AgenticRLJob, observed: ObservedJob) -> Stage | None:
    """Return the first stage that has not succeeded; None if all have."""
    return next((stage for stage in job.spec.stages if not succeeded(stage.name, observed)), None)


def last_attempt(stage: Stage, observed: ObservedJob) -> int:
    """Return the number of the stage's last attempt; 0 if there was none.

    Jobs, outcome, status and pods are all searched, because each of them may be lost on its own.
    """
    outcome = observed.outcome(stage.name)
    numbers = [*observed.attempts(stage.name), int(observed.stage_status(stage.name).get("attempts", 0))]
    if outcome is not None:
        numbers.append(outcome.attempt)
    pod_labels = (labels(pod) for pod in observed.pods)
    numbers += [int(each[names.ATTEMPT_LABEL]) for each in pod_labels if each.get(names.STAGE_LABEL) == stage.name]
    return max(numbers)


def has_running_pods(stage: Stage, observed: ObservedJob) -> bool:
    """Whether a pod of any attempt of the stage may still write to the storage."""
    return any(
        labels(pod).get(names.STAGE_LABEL) == stage.name
        and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        for pod in observed.pods
    )


def preparation(observed: ObservedJob) -> Preparation:
    """Return the state of the storage's preparation.

    If the prepare Job was deleted, the status or the Job of a stage shows whether it had completed.
    """
    prepare = observed.child("Job", names.prepare(observed.name))
    if prepare is None:
        has_attempts = any(names.STAGE_LABEL in labels(job) for job in observed.of_kind("Job"))
        return "complete" if has_attempts or is_true(observed.job, "StorageReady") else "missing"
    if job_finished_at(prepare) is None:
        return "running"
    return "failed" if is_true(prepare, "Failed") else "complete"
