"""spec.failurePolicy: the reaction to an attempt that ended, from its Job, its outcome and the policy's rules.

`rstar2_train.api.failure_policy` has the part that `rstar2 run` shares: exit code and outcome -> action. This file adds
what only a cluster has: disruptions of pods, restart counters in the attempts' Jobs, backoff, rejected Jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rstar2_operator.decide import disruption
from rstar2_operator.decide.attempt import start
from rstar2_operator.decide.diagnostics import Diagnosis
from rstar2_operator.decide.facts import Facts
from rstar2_operator.decide.finalize import fail
from rstar2_operator.decide.plan import Plan, Verdict
from rstar2_operator.decide.restarts import RestartCounters, counters
from rstar2_operator.observed import Object, ObservedJob, exit_code, is_of, is_true, job_finished_at, labels, timestamp
from rstar2_train.api.failure_policy import FailureDecision, after_attempt, exhausted, matching_rule
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.stages import Stage

FIRST_BACKOFF_SECONDS = 5.0
MAX_BACKOFF_SECONDS = 300.0
OUT_OF_MEMORY = "OOMKilled"
POD_LOST = "PodLost: a pod of the attempt terminated or was deleted; the orchestrator wrote a checkpoint"


@dataclass(frozen=True, slots=True)
class NextStep(FailureDecision):
    """The next action after an attempt in a cluster."""

    disruptions: int = 0
    """Consecutive disruptions, for the next attempt."""


def failure_policy(facts: Facts) -> Verdict:
    """React to an attempt that has finished: fail the job, or restart the stage after a backoff."""
    stage, last, restarts = facts.stage, facts.finished_job, facts.restarts
    if stage is None or last is None:
        return None
    decision = decide_next(facts.job, stage, last, facts.observed, number=facts.attempt, counted=restarts.counted)
    if decision.action == "FailJob":
        return fail(facts, "StageFailed", f"Stage {stage.name} failed. {decision.reason}")
    if decision.action != "RestartStage":
        return None
    retry = restart_at(last, restarts=restarts.restarts)
    if facts.now < retry:
        message = f"Stage {stage.name} restarts at {timestamp(retry)}. {decision.reason}"
        return facts.plan(phase="Pending", reason="BackOff", message=message, serving=facts.needs_engines,
                          retry_at=retry, wake_at=retry)  # fmt: skip
    restarts = RestartCounters(restarts.restarts + 1, restarts.counted + decision.counts)
    return start(facts, restarts, failure=decision.reason, disruptions=decision.disruptions)


def decide_next(
    job: AgenticRLJob, stage: Stage, last: Object, observed: ObservedJob, *, number: int, counted: int
) -> NextStep:
    """Return the failure policy's decision about attempt `number`, whose Job `last` has finished."""
    outcome = observed.outcome(stage.name)
    if outcome is not None and outcome.attempt != number:
        outcome = None  # of an earlier attempt
    policy, code = job.spec.failure_policy, orchestrator_exit_code(stage, observed, number=number)
    decision = after_attempt(exit_code=code, outcome=outcome, policy=policy, counted_restarts=None)
    if decision.action in ("NextStage", "FailJob"):
        return NextStep(decision.action, reason=decision.reason)
    pressure = disruption.eviction_by_pressure(last, observed)
    disruptions = 0
    if decision.action == "RestartStage" and matching_rule(policy, code, outcome) is not None:
        counts, reason = decision.counts, decision.reason
    elif not pressure and disruption.is_disrupted(last, stage.name, number, observed):
        # A drained node does not count, whether or not the orchestrator had time for a checkpoint.
        disruptions = disruption.consecutive(last, stage.name, number, observed)
        counts, reason = disruptions > disruption.MAX_CONSECUTIVE, disruption.DISRUPTED
        if counts:
            reason += f" ({disruptions} times in a row without a new checkpoint)"
    elif decision.action == "Suspend":
        # The Job was not deleted, so the suspension was not requested: a pod was lost, which terminated the others,
        # and the orchestrator wrote a checkpoint. The restart counts, because a worker may crash in every attempt.
        counts, reason = True, POD_LOST
    else:
        counts, reason = True, decision.reason
    reason = pressure or _out_of_memory(last, observed) or reason
    if counts and counted >= policy.max_restarts:
        return NextStep("FailJob", reason=exhausted(reason, counted))
    return NextStep("RestartStage", counts=counts, reason=reason, disruptions=disruptions)


def _out_of_memory(job: Object, observed: ObservedJob) -> str:
    """A reason that names the limit, if a container of the Job was killed at its memory limit; else empty."""
    for pod in observed.pods:
        for container in (pod.get("status") or {}).get("containerStatuses") or ():
            terminated = (container.get("state") or {}).get("terminated") or {}
            if is_of(pod, job) and terminated.get("reason") == OUT_OF_MEMORY:
                return (
                    f"{OUT_OF_MEMORY}: Pod/{pod['metadata']['name']} reached its memory limit; increase "
                    "spec.trainer.resources.limits.memory, or decrease spec.trainer.tokensPerMicroBatch"
                )
    return ""


def orchestrator_exit_code(stage: Stage, observed: ObservedJob, *, number: int) -> int:
    """Return the exit code of an attempt's orchestrator; if its pod is gone, the code of its outcome or its Job."""
    ended = observed.attempts(stage.name).get(number)
    for pod in observed.pods:
        if ended is None or not is_of(pod, ended):
            continue
        index = labels(pod).get("batch.kubernetes.io/job-completion-index", "0")
        if index == "0" and (code := exit_code(pod)) is not None:
            return code
    outcome = observed.outcome(stage.name)
    if outcome is not None and outcome.attempt == number:
        return int(outcome.exit_code)
    return 0 if ended is not None and is_true(ended, "Complete") else 1


def restart_at(last: Object, *, restarts: int) -> float:
    """Return when the next attempt may start. The backoff doubles with each restart."""
    backoff = min(MAX_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(restarts, 10))
    return (job_finished_at(last) or 0.0) + backoff


def plan_after_rejections(plan: Plan, observed: ObservedJob, rejected: Sequence[Diagnosis]) -> Plan:
    """Return the plan after the API server `rejected` some objects; an attempt without a Job is not counted."""
    if not rejected or plan.attempt is None:
        return plan
    attempts = observed.attempts(plan.attempt.stage)
    if plan.attempt.number in attempts:
        return plan
    restarts = counters(observed, attempts.get(max(attempts, default=0)))
    message = f"Attempt {plan.attempt.number} of stage {plan.attempt.stage} cannot be created. {rejected[0]}"
    return replace(plan, phase="Pending", reason="ApplyRejected", message=message, attempt=None,
                   restarts=restarts.restarts, counted=restarts.counted)  # fmt: skip
