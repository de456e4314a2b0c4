"""Position in the curriculum: the current stage, its last attempt, and whether the storage is prepared."""

from __future__ import annotations

from typing import Literal

from rstar2_operator import names
from rstar2_operator.observed import (
    Object,
    ObservedJob,
    attempt_in_labels,
    controller_of,
    exit_code,
    held_exit_code,
    is_alive,
    is_of,
    is_true,
    labels,
    seconds,
)
from rstar2_train.api.contracts import ENDED_WELL
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.stages import Stage

EXIT_SECONDS = 120.0
"""Time in which the pods of an attempt must exit after its orchestrator; then they are terminated."""
Preparation = Literal["missing", "running", "complete", "failed"]
_STATUS_ENDED_WELL = frozenset(outcome.capitalize() for outcome in ENDED_WELL)


def succeeded(stage: str, observed: ObservedJob) -> bool:
    """Return whether a stage ended well, by its outcome or by the last status."""
    outcome = observed.outcome(stage)
    recorded = observed.stage_status(stage).get("outcome")
    return (outcome is not None and outcome.ended_well) or recorded in _STATUS_ENDED_WELL


def current(job: AgenticRLJob, observed: ObservedJob) -> Stage | None:
    """Return the first stage that has not succeeded; None if all have."""
    return next((stage for stage in job.spec.stages if not succeeded(stage.name, observed)), None)


def last_attempt(stage: Stage, observed: ObservedJob) -> int:
    """Return the number of the stage's last attempt; 0 if there was none.

    Jobs, status, pods and the reports of orchestrators are all searched, because each of them may be lost. A second
    attempt of the same number could not be distinguished from the first one, which may still run on a lost node.
    """
    reports = observed.progress(), observed.outcome(stage.name)
    numbers = [*observed.attempts(stage.name), int(observed.stage_status(stage.name).get("attempts", 0))]
    numbers += [report.attempt for report in reports if report is not None and report.stage == stage.name]
    attempts = (attempt for pod in observed.pods if (attempt := attempt_of(pod)) is not None)
    return max([*numbers, *(number for name, number in attempts if name == stage.name)])


def attempt_of(pod: Object) -> tuple[str, int] | None:
    """Return stage and attempt of a pod; None for a pod that no Job controls, such as a copy for debugging."""
    return None if controller_of(pod) is None else attempt_in_labels(pod)


def running_attempts(observed: ObservedJob) -> list[tuple[str, int]]:
    """Return (stage, attempt) of all pods that may still hold accelerators or write to the storage.

    Stages that the spec no longer has are included, as are pods of a deleted job of the same name.
    """
    attempts = (attempt_of(pod) for pod in observed.pods if is_alive(pod))
    return sorted({attempt for attempt in attempts if attempt is not None})


def hung_at(stage: str, observed: ObservedJob) -> float | None:
    """Return when the Job of a succeeded stage is deleted, if it has not finished; None before its success is recorded.

    Its orchestrator may hang after the outcome, and the pods would hold their accelerators.
    """
    row = observed.stage_status(stage)
    if not row:
        return 0.0  # not in the spec any more
    completion = row.get("completionTime")
    return None if completion is None else seconds(completion) + EXIT_SECONDS


def first_pod(job: Object, observed: ObservedJob) -> Object | None:
    """Return the running pod of a batch Job with index 0, the orchestrator's; without indices its only one."""
    own = (pod for pod in observed.pods if is_alive(pod) and is_of(pod, job))
    return next((pod for pod in own if labels(pod).get(names.INDEX_LABEL, "0") == "0"), None)


def preparation(observed: ObservedJob) -> Preparation:
    """Return the state of the storage's preparation.

    If the prepare Job was deleted, its outcome, the status or the Job of a stage shows whether it had completed. The
    exit of its own container counts, also if an injected one keeps the pod running, or fails.
    """
    prepare = observed.child("Job", names.prepare(observed.name))
    if prepare is None:
        outcome = observed.prepared()
        completed = outcome is not None and outcome.ended_well
        has_attempts = any(names.STAGE_LABEL in labels(job) for job in observed.of_kind("Job"))
        return "complete" if completed or has_attempts or is_true(observed.job, "StorageReady") else "missing"
    if is_true(prepare, "Complete") or any(_has_succeeded(pod) for pod in observed.pods if is_of(pod, prepare)):
        return "complete"
    return "failed" if is_true(prepare, "Failed") else "running"


def _has_succeeded(pod: Object) -> bool:
    """Return whether the own container of a pod ended well, and injected ones hold the pod, or have failed it.

    The Job of any other pod completes by itself.
    """
    if is_alive(pod):
        return held_exit_code(pod) == 0
    return exit_code(pod) == 0 and (pod.get("status") or {}).get("phase") == "Failed"
