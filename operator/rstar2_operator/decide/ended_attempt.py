"""An attempt that a policy ends: first the status records the end, then the attempt's Job is deleted.

The record makes the end survive a restart of the operator, and the loss of its cause: the pods that failed are deleted
with the attempt. It also has the restart counters, so that a restart is counted exactly once.
"""

from __future__ import annotations

from typing import Literal

from rstar2_operator.decide import stage_progress
from rstar2_operator.decide.attempt import current, start
from rstar2_operator.decide.decision import AttemptEnd, Decision, Verdict
from rstar2_operator.decide.disruption import MAX_CONSECUTIVE, consecutive, failures_before, start_step
from rstar2_operator.decide.facts import Facts
from rstar2_operator.decide.failure_policy import retry_at
from rstar2_operator.decide.finalize import fail
from rstar2_operator.decide.kueue import held_workload
from rstar2_operator.observed import seconds, timestamp
from rstar2_train.api.failure_policy import exhausted


def end_attempt(
    facts: Facts, reason: str, message: str, *, fails: bool = False, counts: bool = True, disruptions: int = 0
) -> Decision | None:
    """Return the decision that records the end of the running attempt; None if no attempt runs.

    `fails`: the job fails; else the stage restarts, and `counts`: towards maxRestarts.
    """
    if facts.stage is None or facts.running_job is None:
        return None
    policy, restarts = facts.job.spec.failure_policy, facts.restarts
    counted = restarts.counted_at(facts.now, policy)
    if counts and not fails and counted >= policy.max_restarts:
        fails, message = True, exhausted(message, counted)
    action: Literal["FailJob", "RestartStage"] = "FailJob" if fails else "RestartStage"
    ended = AttemptEnd(
        stage=facts.stage.name,
        attempt=facts.attempt,
        action=action,
        reason=reason,
        message=message,
        disruptions=disruptions,
        failures=failures_before(facts.running_job, facts.stage.name, facts.attempt, facts.observed),
        step=start_step(facts.stage.name, facts.observed),
        ended_at=facts.now,
    )
    # A record that the API server rejects would keep the pods. Later the Job is one that others have deleted.
    attempt = None if facts.observed.status_rejected else current(facts.stage, facts)
    if not fails:
        restarts = restarts.after(facts.now, policy, counts=counts)
    return Decision(
        facts.stage_name,
        restarts,
        phase="Pending",
        reason=reason,
        message=message,
        serving=facts.needs_engines,
        attempt=attempt,
        ended=ended,
        wake_at=facts.now,
        workload=held_workload(facts),
    )


def end_disrupted(facts: Facts, reason: str, message: str) -> Decision | None:
    """Return the decision that records a disruption of the running attempt; None if no attempt runs.

    It counts only after many disruptions in a row without a new checkpoint.
    """
    if facts.stage is None or facts.running_job is None:
        return None
    disruptions = consecutive(facts.running_job, facts.stage.name, facts.attempt, facts.observed)
    return end_attempt(facts, reason, message, counts=disruptions > MAX_CONSECUTIVE, disruptions=disruptions)


def ended_attempt(facts: Facts) -> Verdict:
    """Delete the Job of an attempt whose end is recorded, or fail the job. `restart_ended` starts the next attempt."""
    record, observed = facts.ended, facts.observed
    if not record:
        return None
    message = str(record.get("message", ""))
    if record.get("action") == "FailJob":
        return fail(facts, "StageFailed", f"Stage {facts.stage_name} failed. {message}")
    if facts.running_job is not None or stage_progress.running_attempts(observed):
        return Decision(
            facts.stage_name,
            facts.restarts,
            phase="Pending",
            reason=record.get("reason", ""),
            message=message,
            serving=facts.has_engines and facts.needs_engines,
            workload=held_workload(facts),
        )
    return None


def restart_ended(facts: Facts) -> Verdict:
    """Start the attempt after one whose end is recorded, when all policies allow pods: also those about quota."""
    record = facts.ended
    if not record:
        return None
    message, failures = str(record.get("message", "")), int(record.get("failures", 0))
    ended_at = seconds(record["time"]) if "time" in record else 0.0
    if (retry := retry_at(ended_at, failures, now=facts.now)) is not None:
        return Decision(
            facts.stage_name,
            facts.restarts,
            phase="Pending",
            reason="BackOff",
            message=f"Stage {facts.stage_name} restarts at {timestamp(retry)}. {message}",
            serving=facts.needs_engines,
            retry_at=retry,
            wake_at=retry,
        )
    disruptions = int(record.get("disruptions", 0))
    return start(facts, facts.restarts, failure=message, failures=failures + 1, disruptions=disruptions)
