"""The starts of a job's pods, by which they claim its state. Pure."""

from __future__ import annotations

from typing import Literal

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.storage.manifest import PodStart


def launch_start(job: AgenticRLJob, stage: str, attempt: int) -> PodStart:
    """Return the start of a pod of a stage's attempt."""
    return _start(job, "launch").model_copy(update={"stage": stage, "attempt": attempt})


def prepare_start(job: AgenticRLJob) -> PodStart:
    """Return the start of the pod that prepares a job."""
    return _start(job, "prepare")


def report_start(job: AgenticRLJob) -> PodStart:
    """Return the start of the pod that writes the report."""
    return _start(job, "report")


def _start(job: AgenticRLJob, program: Literal["prepare", "launch", "report"]) -> PodStart:
    return PodStart(uid=job.metadata.uid or "none", namespace=job.metadata.namespace, program=program)
