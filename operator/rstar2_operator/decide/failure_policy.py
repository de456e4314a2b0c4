"""spec.failurePolicy: the reaction to an attempt that ended, from its Job, its outcome and the policy's rules.

`rstar2_train.api.failure_policy` has the part that `rstar2 run` shares: exit code and outcome -> action. This file adds
what only a cluster has: disruptions of pods, restart counters in the attempts' Jobs, backoff, rejected Jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rstar2_operator import names
from rstar2_operator.decide import disruption
from rstar2_operator.decide.attempt import start
from rstar2_operator.decide.containers import OUT_OF_MEMORY, memory_limit
from rstar2_operator.decide.decision import AttemptEnd, Decision, Verdict
from rstar2_operator.decide.diagnostics import Diagnosis
from rstar2_operator.decide.facts import Facts
from rstar2_operator.decide.finalize import fail
from rstar2_operator.decide.kueue import held_workload
from rstar2_operator.decide.restarts import counters
from rstar2_operator.observed import (
    Object,
    ObservedJob,
    condition,
    exit_code,
    is_of,
    is_true,
    job_finished_at,
    labels,
    own_statuses,
    timestamp,
    true_conditions,
)
from rstar2_train.api.contracts import ExitCode
from rstar2_train.api.failure_policy import (
    Failure,
    FailureDecision,
    after_attempt,
    attempt_failure,
    exhausted,
    matching_rule,
)
from rstar2_train.api.stages import Stage

FIRST_BACKOFF_SECONDS = 5.0
MAX_BACKOFF_SECONDS = 300.0
DEADLINE_EXCEEDED = "DeadlineExceeded"
POD_LOST = "PodLost: a pod of the attempt terminated or was deleted"


@dataclass(frozen=True, slots=True)
class NextStep(FailureDecision):
    """The next action after an attempt in a cluster."""

    disruptions: int = 0
    """Consecutive disruptions, for the next attempt."""


def failure_policy(facts: Facts) -> Verdict:
    """React to an attempt that has finished: fail the job, or restart the stage after a backoff.

    The status records the end: another client may delete the Job, by hand or by a TTL.
    """
    stage, last = facts.stage, facts.finished_job
    if stage is None or last is None:
        return None
    if facts.ended:
        return None  # it is counted already
    return react(facts, stage, last, failed_at=job_finished_at(last) or 0.0)


def react(facts: Facts, stage: Stage, last: Object, *, failed_at: float) -> Decision | None:
    """Return the reaction to the end of the last attempt, whose batch Job is `last`; None if the stage succeeded."""
    decision = decide_next(facts, stage, last)
    failures = disruption.failures_before(last, stage.name, facts.attempt, facts.observed)
    ended = AttemptEnd(
        stage=stage.name,
        attempt=facts.attempt,
        action="FailJob" if decision.action == "FailJob" else "RestartStage",
        reason="BackOff",
        message=decision.reason,
        disruptions=decision.disruptions,
        failures=failures,
        step=disruption.start_step(stage.name, facts.observed),
        ended_at=failed_at,
    )
    if decision.action == "FailJob":
        return replace(fail(facts, "StageFailed", f"Stage {stage.name} failed. {decision.reason}"), ended=ended)
    if decision.action != "RestartStage":
        return None
    restarts = facts.restarts.after(failed_at, facts.job.spec.failure_policy, counts=decision.counts)
    if (retry := retry_at(failed_at, failures, now=facts.now)) is not None:
        message = f"Stage {stage.name} restarts at {timestamp(retry)}. {decision.reason}"
        return Decision(
            facts.stage_name,
            restarts,
            phase="Pending",
            reason="BackOff",
            message=message,
            serving=facts.needs_engines,
            ended=ended,
            retry_at=retry,
            wake_at=retry,
            workload=held_workload(facts),
        )
    return start(facts, restarts, failure=decision.reason, failures=failures + 1, disruptions=decision.disruptions)


def backoff_seconds(failures: int) -> float:
    """Return the wait before the next attempt. `failures`: in a row before the last one, without a new checkpoint."""
    return min(MAX_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(failures, 10))


def retry_at(failed_at: float, failures: int, *, now: float) -> float | None:
    """Return when the next attempt starts after a failure; None if it is due. `failures`: as for `backoff_seconds`.

    A failure in the future by more than any backoff has the time of a wrong clock: then nothing waits for it.
    """
    retry = failed_at + backoff_seconds(failures)
    return retry if now < retry <= now + 2 * MAX_BACKOFF_SECONDS else None


def decide_next(facts: Facts, stage: Stage, last: Object) -> NextStep:
    """Return the policy's decision about the last attempt, whose Job `last` has finished, is deleted, or cannot end."""
    observed, number, policy = facts.observed, facts.attempt, facts.job.spec.failure_policy
    outcome = observed.outcome(stage.name)
    if outcome is not None and outcome.attempt != number:
        outcome = None  # of an earlier attempt
    code = orchestrator_exit_code(stage, observed, number=number)
    finished_at, is_deleted = job_finished_at(last), bool(last["metadata"].get("deletionTimestamp"))
    disrupted = disruption.disruption(last, stage.name, number, observed)
    if is_deleted and finished_at is None:
        disrupted = disruption.JOB_DELETED
    pressure, memory = disruption.eviction_by_pressure(last, observed), out_of_memory(last, observed)
    cause_of_pods = pressure or memory or deadline_exceeded(last, observed)
    texts = (pressure, memory, disrupted)
    pods = Failure(
        reasons=frozenset(text.partition(":")[0] for text in texts if text) | _lost(bool(disrupted), code),
        pod_conditions=_pod_conditions(last, observed, is_disrupted=bool(disrupted)),
    )
    decision = after_attempt(exit_code=code, outcome=outcome, policy=policy, counted_restarts=None, pods=pods)
    if decision.action == "NextStage":
        return NextStep(decision.action)
    rule, disruptions = matching_rule(policy, attempt_failure(code, outcome, pods)), 0
    progressed = disruption.has_new_checkpoint(last, stage.name, number, observed)
    checkpoint = "; the orchestrator wrote a checkpoint" if progressed else ""
    cause = f"{POD_LOST}{checkpoint}" if decision.action == "Suspend" else decision.reason
    if rule is not None:
        cause = disrupted or cause
        if rule.action == "FailJob":
            return NextStep("FailJob", reason=cause_of_pods or cause)
        counts, reason = rule.counts_towards_max, cause
    elif decision.action == "FailJob":
        return NextStep("FailJob", reason=cause)
    elif disrupted and not pressure:
        # A drained node does not count, whether or not the orchestrator had time for a checkpoint.
        disruptions = disruption.consecutive(last, stage.name, number, observed)
        counts, reason = disruptions > disruption.MAX_CONSECUTIVE, disrupted
        if counts:
            reason += f" ({disruptions} times in a row without a new checkpoint)"
    else:
        # Exit code 75, but the Job was not deleted: the suspension was not requested. A pod was lost, which terminated
        # the others, and the operator did not see its deletion: then it counts only without a new checkpoint. A worker
        # that crashes counts, because it may crash in every attempt.
        is_lost = decision.action == "Suspend" and not _has_crashed_worker(last, observed)
        counts, reason = not (is_lost and progressed), cause
    reason = cause_of_pods or reason
    counted = facts.restarts.counted_at(facts.now if finished_at is None else finished_at, policy)
    if counts and counted >= policy.max_restarts:
        return NextStep("FailJob", reason=exhausted(reason, counted))
    return NextStep("RestartStage", counts=counts, reason=reason, disruptions=disruptions)


def _has_crashed_worker(job: Object, observed: ObservedJob) -> bool:
    """Return whether a pod of the Job failed by itself, without being deleted, apart from the orchestrator's."""
    return any(
        exit_code(pod) not in (None, 0)
        and labels(pod).get(names.INDEX_LABEL, "0") != "0"
        and not pod["metadata"].get("deletionTimestamp")
        for pod in observed.pods
        if is_of(pod, job)
    )


def _lost(is_disrupted: bool, code: int) -> frozenset[str]:
    """Return the reason of an attempt that lost a pod, by itself or by a disruption."""
    if is_disrupted:
        return frozenset({"Disrupted"})
    return frozenset({"PodLost"}) if code == ExitCode.SUSPENDED else frozenset()


def _pod_conditions(job: Object, observed: ObservedJob, *, is_disrupted: bool) -> frozenset[str]:
    """Return the true conditions of the Job's pods. A disruption is known also after its pod was deleted."""
    types = [kind for pod in observed.pods if is_of(pod, job) for kind in true_conditions(pod)]
    return frozenset([*types, disruption.DISRUPTION_TARGET] if is_disrupted else types)


def out_of_memory(job: Object, observed: ObservedJob) -> str:
    """Return a reason with container, limit and field, if an own container of the Job reached its memory limit."""
    for pod in observed.pods:
        if not is_of(pod, job):
            continue
        for container in own_statuses(pod):
            terminated = (container.get("state") or {}).get("terminated") or {}
            if terminated.get("reason") == OUT_OF_MEMORY:
                return f"{OUT_OF_MEMORY}: Pod/{pod['metadata']['name']}: {memory_limit(pod, container, 'trainer')}"
    return ""


def deadline_exceeded(job: Object, observed: ObservedJob) -> str:
    """Return the words of Job controller or kubelet if an activeDeadlineSeconds of others ended the attempt."""
    parts = [("Job", job, condition(job, "Failed") or {})]
    parts += [("Pod", pod, pod.get("status") or {}) for pod in observed.pods if is_of(pod, job)]
    for kind, part, status in parts:
        if status.get("reason") == DEADLINE_EXCEEDED:
            return f"{DEADLINE_EXCEEDED}: {kind}/{part['metadata']['name']}: {status.get('message', '')}"
    return ""


def orchestrator_exit_code(stage: Stage, observed: ObservedJob, *, number: int) -> int:
    """Return the exit code of an attempt's orchestrator; if its pod is gone, the code of its outcome or its Job."""
    ended = observed.attempts(stage.name).get(number)
    for pod in observed.pods:
        if ended is None or not is_of(pod, ended):
            continue
        index = labels(pod).get(names.INDEX_LABEL, "0")
        if index == "0" and (code := exit_code(pod)) is not None:
            return code
    outcome = observed.outcome(stage.name)
    if outcome is not None and outcome.attempt == number:
        return int(outcome.exit_code)
    return 0 if ended is not None and is_true(ended, "Complete") else 1


def decision_after_rejections(decision: Decision, observed: ObservedJob, rejected: Sequence[Diagnosis]) -> Decision:
    """Return the decision after the API server `rejected` some objects; an attempt without a Job is not counted.

    Without rejections the Job waits: for a status that the API server accepts, or for the end of a deleted object.
    """
    if decision.attempt is None:
        return decision
    attempts = observed.attempts(decision.attempt.stage)
    if decision.attempt.number in attempts:
        return decision
    restarts = counters(observed, attempts.get(max(attempts, default=0)))
    cause = rejected[0] if rejected else "The last status was rejected, or an older object is being deleted."
    message = f"Attempt {decision.attempt.number} of stage {decision.attempt.stage} cannot be created. {cause}"
    return replace(decision, phase="Pending", reason="ApplyRejected", message=message, attempt=None, restarts=restarts)
