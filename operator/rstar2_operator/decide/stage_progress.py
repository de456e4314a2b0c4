"""The curriculum: which stage a job is at, and how often it has been tried."""

from __future__ import annotations

from typing import Literal

from rstar2_operator import names
from rstar2_operator.observed import ObservedJob, is_true, job_finished_at, labels
from rstar2_train.api.contracts import ENDED_WELL
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.stages import Stage

Preparation = Literal["missing", "running", "complete", "failed"]


def ended_well(stage: str, observed: ObservedJob) -> bool:
    """Whether a stage ended well: its driver said so, or the last status did."""
    outcome = observed.outcome(stage)
    told = observed.stage_status(stage).get("outcome")
    return (outcome is not None and outcome.ended_well) or told in ENDED_WELL


def current(job: AgenticRLJob, observed: ObservedJob) -> Stage | None:
    """The first stage that has not ended well; None when all have."""
    return next((stage for stage in job.spec.stages if not ended_well(stage.name, observed)), None)


def last_attempt(stage: Stage, observed: ObservedJob) -> int:
    """Number of the stage's last attempt that anything remembers; 0 when there was none."""
    outcome = observed.outcome(stage.name)
    told = [outcome.attempt] if outcome is not None else []
    remembered = int(observed.stage_status(stage.name).get("attempts", 0))
    pods = (labels(pod) for pod in observed.pods)  # they outlive their Job, and a status that was never written
    alive = [int(one[names.ATTEMPT_LABEL]) for one in pods if one.get(names.STAGE_LABEL) == stage.name]
    return max([*observed.attempts(stage.name), *told, *alive, remembered], default=0)


def preparation(observed: ObservedJob) -> Preparation:
    """How far the storage is prepared. Where its Job was deleted, the status or a stage's Job says whether it ended."""
    prepare = observed.child("Job", names.prepare(observed.name))
    if prepare is None:
        tried = any(names.STAGE_LABEL in labels(job) for job in observed.of_kind("Job"))
        return "complete" if tried or is_true(observed.job, "StorageReady") else "missing"
    if job_finished_at(prepare) is None:
        return "running"
    return "failed" if is_true(prepare, "Failed") else "complete"
