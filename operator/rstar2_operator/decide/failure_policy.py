"""After an attempt: what its Job, its driver's outcome and the failure policy say happens next, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rstar2_operator import names
from rstar2_operator.decide.diagnostics import Diagnosis
from rstar2_operator.decide.plan import Plan
from rstar2_operator.observed import (
    Object,
    ObservedJob,
    annotations_of,
    exit_code,
    is_true,
    job_finished_at,
    labels,
)
from rstar2_train.api.failure_policy import FailureDecision, after_attempt
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.stages import Stage

FIRST_BACK_OFF_SECONDS = 5.0
LONGEST_BACK_OFF_SECONDS = 300.0
DISRUPTED = "Disrupted: a pod was evicted, preempted or drained"
LOST = "PodLost: a pod of the attempt ended or was deleted; the driver wrote a checkpoint"


@dataclass(frozen=True, slots=True)
class RestartCounters:
    """Restarts of the whole job."""

    restarts: int
    counted: int


def counters(observed: ObservedJob, last: Object | None) -> RestartCounters:
    """Restarts so far: what the last attempt's Job carries, or the status when that Job is gone."""
    told = annotations_of(last) if last is not None else {}
    return RestartCounters(
        max(int(told.get(names.RESTARTS, 0)), int(observed.status.get("restarts", 0))),
        max(int(told.get(names.COUNTED, 0)), int(observed.status.get("restartsCountedTowardsMax", 0))),
    )


def decide_next(
    job: AgenticRLJob, stage: Stage, observed: ObservedJob, *, number: int, counted: int
) -> FailureDecision:
    """What the failure policy says about a finished attempt."""
    outcome = observed.outcome(stage.name)
    if outcome is not None and outcome.attempt != number:
        outcome = None  # an earlier attempt's
    policy = job.spec.failure_policy
    disrupted = names.attempt(observed.name, stage.name, number) in observed.disrupted
    decision = after_attempt(
        exit_code=driver_exit_code(stage, observed, number=number),
        outcome=outcome,
        policy=policy,
        counted_restarts=None if disrupted else counted,
    )
    # Who drains a node does no harm to the job, whether the driver found the time for a checkpoint or not.
    if disrupted and decision.action in ("Suspend", "RestartStage"):
        return FailureDecision("RestartStage", why=DISRUPTED)
    if decision.action != "Suspend":
        return decision
    # Nobody asked for it, or its Job would have been deleted: a pod was lost, which ends the others, and the driver
    # used its grace for a checkpoint. A worker that dies again and again must not go on for ever.
    if counted >= policy.max_restarts:
        return FailureDecision("FailJob", why=f"{LOST} (after {counted} restarts, the most that maxRestarts allows)")
    return FailureDecision("RestartStage", counts=True, why=LOST)


def driver_exit_code(stage: Stage, observed: ObservedJob, *, number: int) -> int:
    """Exit code of the attempt's driver: its pod's, or what its outcome or its Job imply when the pod is gone."""
    attempt = names.attempt(observed.name, stage.name, number)
    for pod in observed.pods:
        told = labels(pod)
        if told.get(names.OF_JOB_LABEL) != attempt:
            continue
        if told.get("batch.kubernetes.io/job-completion-index", "0") == "0" and (code := exit_code(pod)) is not None:
            return code
    outcome = observed.outcome(stage.name)
    if outcome is not None and outcome.attempt == number:
        return int(outcome.exit_code)
    ended = observed.attempts(stage.name).get(number)
    return 0 if ended is not None and is_true(ended, "Complete") else 1


def restart_at(last: Object, *, restarts: int) -> float:
    """When the next attempt may start: each restart waits twice as long as the one before."""
    wait = min(LONGEST_BACK_OFF_SECONDS, FIRST_BACK_OFF_SECONDS * 2.0 ** min(restarts, 10))
    return (job_finished_at(last) or 0.0) + wait


def plan_after_refusals(plan: Plan, observed: ObservedJob, refused: Sequence[Diagnosis]) -> Plan:
    """The plan once the API server has `refused` some of it: an attempt that was not made is not counted."""
    if not refused or plan.attempt is None:
        return plan
    attempts = observed.attempts(plan.attempt.stage)
    if plan.attempt.number in attempts:
        return plan
    told = counters(observed, attempts.get(max(attempts, default=0)))
    message = f"attempt {plan.attempt.number} of stage {plan.attempt.stage} cannot be made: {refused[0]}"
    return replace(plan, phase="Pending", why="Refused", message=message, attempt=None, restarts=told.restarts,
                   counted=told.counted)  # fmt: skip
