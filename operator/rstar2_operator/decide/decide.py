"""`decide(job, observed, now)`: the policies in the order in which they apply; the first that applies gives the plan.

Finished? Active for too long? Suspended? Secret lost? Released? Storage prepared? Which stage, which attempt? All state
that must survive a restart of the operator is in the objects themselves.
"""

from __future__ import annotations

import dataclasses

from rstar2_operator import names
from rstar2_operator.decide import (
    active_deadline,
    disruption,
    node_loss,
    pending_deadline,
    pod_termination,
    stage_progress,
)
from rstar2_operator.decide.conditions import ready_of
from rstar2_operator.decide.failure_policy import RestartCounters, counters, decide_next, restart_at
from rstar2_operator.decide.finalize import finalize
from rstar2_operator.decide.plan import FINAL, WAITING_FOR_PODS, Plan, StageAttempt
from rstar2_operator.decide.shared_secret import restart_without_secret
from rstar2_operator.decide.suspend import suspend
from rstar2_operator.decide.ttl_after_finished import finished
from rstar2_operator.observed import Object, ObservedJob, condition, created_at, is_true, job_finished_at, timestamp
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.stages import Stage


def decide(job: AgenticRLJob, observed: ObservedJob, *, now: float) -> Plan:
    """Return what the job should have at `now` (seconds since the epoch)."""
    return node_loss.with_lost_nodes(_decide(job, observed, now=now), job, observed, now=now)


def _decide(job: AgenticRLJob, observed: ObservedJob, *, now: float) -> Plan:
    for final in FINAL:
        if is_true(observed.job, final):
            return finished(job, observed, final, now=now)
    deadline, stage = active_deadline.deadline(job, observed, now=now), stage_progress.current(job, observed)
    if deadline is None or stage is None:
        return _unfinished(job, stage, observed, now=now)
    if now >= deadline:
        limit = job.spec.active_deadline_seconds
        message = f"The job was active for longer than spec.activeDeadlineSeconds ({limit} s)."
        return _fail(observed, "DeadlineExceeded", message, stage=stage, now=now)
    return pending_deadline.wake_earlier(_unfinished(job, stage, observed, now=now), deadline)


def _unfinished(job: AgenticRLJob, stage: Stage | None, observed: ObservedJob, *, now: float) -> Plan:
    restarts = counters(observed, _last_job(stage, observed))
    name = None if stage is None else stage.name
    if job.spec.suspend:
        return suspend(stage, observed, restarts)
    if observed.secret_missing:
        return restart_without_secret(stage, observed, restarts)
    until = pending_deadline.released_until(observed)
    if until is not None and now < until:
        return pending_deadline.released(name, observed, restarts, until=until)
    preparation = stage_progress.preparation(observed)
    if (
        preparation == "missing"
        and (waiting := pod_termination.wait_for_attempts(None, observed, restarts)) is not None
    ):
        return waiting
    if preparation in ("missing", "running"):
        plan = restarts.plan(phase="Preparing", reason="Preparing", stage=name, prepare=True,
                             message="Downloading model and datasets.")  # fmt: skip
        since = created_at(observed.child("Job", names.prepare(observed.name)), now)
        return pending_deadline.release_if_overdue(plan, job, observed, since=since, now=now)
    if preparation == "failed":
        return _fail(observed, *_preparation_failure(observed), stage=stage, now=now)
    if stage is None:
        return finalize(observed, ending="completed", restarts=restarts, reason="Completed",
                        message="All stages succeeded.", now=now)  # fmt: skip
    return _at_stage(job, stage, observed, restarts, now=now)


def _at_stage(job: AgenticRLJob, stage: Stage, observed: ObservedJob, restarts: RestartCounters, *, now: float) -> Plan:
    number = stage_progress.last_attempt(stage, observed)
    last = observed.attempts(stage.name).get(number)
    serving = stage.needs_engines
    if last is not None and last["metadata"].get("deletionTimestamp"):
        last = None  # it is being deleted: its pods show when it is gone
    if last is not None and job_finished_at(last) is None:
        attempt = StageAttempt(stage.name, number, restarts.restarts, restarts.counted)
        plan = restarts.plan(phase="Running", reason="Running", stage=stage.name, serving=serving, attempt=attempt,
                             message=f"Attempt {number} of stage {stage.name}.")  # fmt: skip
        if (ending := condition(last, "FailureTarget")) is not None and ending["status"] == "True":
            # The Job fails when its last pod has terminated, which takes up to the grace period.
            message = f"{plan.message} It has failed; waiting for its pods to terminate. {ending.get('message', '')}"
            return dataclasses.replace(plan, reason=WAITING_FOR_PODS, message=message.strip())
        if _has_started(stage, number, observed):
            return plan  # from now on, replaced pods do not release the job
        return pending_deadline.release_if_overdue(plan, job, observed, since=created_at(last, now), now=now)
    if (waiting := pod_termination.wait_for_attempts(stage, observed, restarts)) is not None:
        return waiting
    cause, disruptions = "", 0
    if last is not None:
        decision = decide_next(job, stage, last, observed, number=number, counted=restarts.counted)
        if decision.action == "FailJob":
            return _fail(observed, "StageFailed", f"Stage {stage.name} failed. {decision.reason}", stage=stage, now=now)
        if decision.action == "RestartStage":
            disruptions = decision.disruptions
            cause, retry = decision.reason, restart_at(last, restarts=restarts.restarts)
            if now < retry:
                message = f"Stage {stage.name} restarts at {timestamp(retry)}. {cause}"
                return restarts.plan(phase="Pending", reason="BackOff", message=message, stage=stage.name,
                                     serving=serving, retry_at=retry, wake_at=retry)  # fmt: skip
            # The Job of the new attempt carries the new counters, so a restart is never counted twice.
            restarts = RestartCounters(restarts.restarts + 1, restarts.counted + decision.counts)
    attempt = StageAttempt(stage.name, number + 1, restarts.restarts, restarts.counted, disruptions=disruptions,
                           start_step=disruption.start_step(stage.name, observed))  # fmt: skip
    message = f"Attempt {number + 1} of stage {stage.name}." + (f" Last failure: {cause}" if cause else "")
    return restarts.plan(phase="Running", reason="Restarted" if cause else "Running", message=message,
                         stage=stage.name, serving=serving, attempt=attempt)  # fmt: skip


def _has_started(stage: Stage, number: int, observed: ObservedJob) -> bool:
    """Whether the attempt's orchestrator works, or waits only for roles of which each has a ready pod."""
    progress = observed.progress()
    if progress is None or (progress.stage, progress.attempt) != (stage.name, number):
        return False
    if progress.phase != "Starting" or not stage.needs_engines:
        return True
    counts = [ready_of(observed, role) for role in ("redis", "judge", "executor", "rollout")]
    return all(ready or not desired for ready, desired in counts)


def _fail(observed: ObservedJob, reason: str, message: str, *, stage: Stage | None, now: float) -> Plan:
    restarts = counters(observed, _last_job(stage, observed))
    name = None if stage is None else stage.name
    return finalize(observed, ending="failed", restarts=restarts, reason=reason, message=message, stage=name, now=now)


def _preparation_failure(observed: ObservedJob) -> tuple[str, str]:
    """Reason and message of a failed preparation."""
    outcome = observed.prepared()
    if outcome is not None:
        return outcome.reason, outcome.message
    failed = condition(observed.child("Job", names.prepare(observed.name)) or {}, "Failed") or {}
    return "PrepareFailed", f"{failed.get('reason', 'The Job failed')}: {failed.get('message', '')}"


def _last_job(stage: Stage | None, observed: ObservedJob) -> Object | None:
    return None if stage is None else observed.attempts(stage.name).get(stage_progress.last_attempt(stage, observed))
