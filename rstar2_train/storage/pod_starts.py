"""The starts of a job's pods, by which they claim its state. Pure."""

from __future__ import annotations

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.storage.manifest import PodStart


def launch_start(job: AgenticRLJob, stage: str, attempt: int) -> PodStart:
    """Return the start of a pod of a stage's attempt."""
    return PodStart(uid=_uid(job), program="launch", stage=stage, attempt=attempt)


def prepare_start(job: AgenticRLJob) -> PodStart:
    """Return the start of the pod that prepares a job."""
    return PodStart(uid=_uid(job), program="prepare")


def report_start(job: AgenticRLJob) -> PodStart:
    """Return the start of the pod that writes the report."""
    return PodStart(uid=_uid(job), program="report")


def _uid(job: AgenticRLJob) -> str:
    return job.metadata.uid or "none"
