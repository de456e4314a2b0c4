"""The input of the policies: the job, its objects, the time, and the position in the curriculum."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from rstar2_operator import names
from rstar2_operator.decide import stage_progress
from rstar2_operator.decide.diagnostics import Diagnosis, diagnoses
from rstar2_operator.decide.restarts import RestartCounters, counters
from rstar2_operator.observed import Object, ObservedJob, exited_at, is_true, job_finished_at, seconds
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.stages import Stage


@dataclass(frozen=True)
class Facts:
    """The argument of every policy."""

    job: AgenticRLJob
    observed: ObservedJob
    now: float
    """Seconds since the epoch."""

    @cached_property
    def stage(self) -> Stage | None:
        """The current stage; None if all have succeeded."""
        return stage_progress.current(self.job, self.observed)

    @property
    def stage_name(self) -> str | None:
        """Name of the current stage."""
        return None if self.stage is None else self.stage.name

    @property
    def needs_engines(self) -> bool:
        """Whether the current stage samples: it needs engines, and what else the rollouts of the job use."""
        return self.stage is not None and self.stage.needs_engines

    @property
    def has_engines(self) -> bool:
        """Whether the Deployment of the engines exists. A checkpoint may need it."""
        return self.observed.child("Deployment", names.rollout(self.observed.name)) is not None

    @cached_property
    def problems(self) -> list[Diagnosis]:
        """Problems of the job's objects."""
        return diagnoses(self.observed, now=self.now)

    @cached_property
    def attempt(self) -> int:
        """Number of the current stage's last attempt; 0 if there was none."""
        return 0 if self.stage is None else stage_progress.last_attempt(self.stage, self.observed)

    @cached_property
    def attempt_job(self) -> Object | None:
        """The Job of the current stage's last attempt, also if it is being deleted."""
        return None if self.stage is None else self.observed.attempts(self.stage.name).get(self.attempt)

    @cached_property
    def running_job(self) -> Object | None:
        """The Job of the last attempt while it runs; None if it has finished or is being deleted."""
        job = self.attempt_job
        if job is None or job["metadata"].get("deletionTimestamp") or job_finished_at(job) is not None:
            return None
        return job

    @cached_property
    def finished_job(self) -> Object | None:
        """The Job of the last attempt after it has finished; None while it runs or is being deleted."""
        job = self.attempt_job
        if job is None or job["metadata"].get("deletionTimestamp") or job_finished_at(job) is None:
            return None
        return job

    @cached_property
    def exited_at(self) -> float | None:
        """Time at which the orchestrator of the running attempt exited or reported a failure; None if it works.

        None too if another client has suspended its Job, which ends the orchestrator and may start it again.
        """
        job = self.running_job
        if self.stage is None or job is None or any(is_true(job, kind) for kind in ("FailureTarget", "Suspended")):
            return None
        pod, outcome = stage_progress.first_pod(job, self.observed), self.observed.outcome(self.stage.name)
        reported = self.observed.stage_status(self.stage.name).get("outcomeTime")
        if reported is not None and outcome is not None and outcome.attempt == self.attempt:
            return seconds(reported)  # by the operator's clock: that of the node may be wrong
        return None if pod is None else exited_at(pod)

    @property
    def ended(self) -> Object:
        """The record of the last attempt's end, if a policy ended it; else empty."""
        record = {} if self.stage is None else self.observed.stage_status(self.stage.name).get("ended") or {}
        return record if record.get("attempt") == self.attempt else {}

    @cached_property
    def preparation(self) -> stage_progress.Preparation:
        """State of the storage's preparation."""
        return stage_progress.preparation(self.observed)

    @cached_property
    def restarts(self) -> RestartCounters:
        """Restarts of the whole job so far."""
        return counters(self.observed, self.attempt_job)
