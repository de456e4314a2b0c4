"""The attempt of the current stage: it runs, or the next one starts."""

from __future__ import annotations

from rstar2_operator import names
from rstar2_operator.decide import disruption
from rstar2_operator.decide.decision import WAITING_FOR_PODS, Decision, StageAttempt, Verdict
from rstar2_operator.decide.facts import Facts
from rstar2_operator.decide.restarts import RestartCounters
from rstar2_operator.observed import condition, created_at, is_true, job_finished_at, ready_of
from rstar2_train.api.stages import Stage


def running_attempt(facts: Facts) -> Verdict:
    """Keep an attempt whose Job runs."""
    if facts.stage is None or facts.running_job is None:
        return None
    reason, message = "Running", f"Attempt {facts.attempt} of stage {facts.stage.name}."
    if is_true(facts.running_job, "FailureTarget"):
        # The Job fails when its last pod has terminated, which takes up to the grace period.
        detail = (condition(facts.running_job, "FailureTarget") or {}).get("message", "")
        message = f"{message} It has failed; waiting for its pods to terminate. {detail}".strip()
        reason = WAITING_FOR_PODS
    return Decision(
        facts.stage_name,
        facts.restarts,
        phase="Running",
        reason=reason,
        message=message,
        serving=facts.needs_engines,
        attempt=current(facts.stage, facts),
    )


def current(stage: Stage, facts: Facts) -> StageAttempt:
    """Return the running attempt of the current stage."""
    return StageAttempt(stage.name, facts.attempt, facts.restarts)


def next_attempt(facts: Facts) -> Verdict:
    """Start the next attempt of the current stage."""
    return start(facts, facts.restarts)


def start(
    facts: Facts, restarts: RestartCounters, *, failure: str = "", failures: int = 0, disruptions: int = 0
) -> Decision | None:
    """Return the decision that starts the next attempt.

    `failure`: of the last one, which has caused the restart; `failures`, `disruptions`: in a row without a checkpoint.
    """
    if facts.stage is None:
        return None
    # The Job of the new attempt carries the new counters, so a restart is never counted twice.
    attempt = StageAttempt(
        facts.stage.name,
        facts.attempt + 1,
        restarts,
        failures=failures,
        disruptions=disruptions,
        start_step=disruption.start_step(facts.stage.name, facts.observed),
    )
    message = f"Attempt {attempt.number} of stage {attempt.stage}." + (f" Last failure: {failure}" if failure else "")
    reason = "Restarted" if failure else "Running"
    return Decision(
        facts.stage_name,
        restarts,
        phase="Running",
        reason=reason,
        message=message,
        serving=facts.needs_engines,
        attempt=attempt,
    )


def idle_since(facts: Facts) -> float:
    """Return since when at the latest no attempt of the current stage uses the engines; 0 if none has used them."""
    observed = facts.observed
    engines = observed.child("Deployment", names.rollout(observed.name))
    progress, last = observed.progress(), observed.attempts(str(facts.stage_name)).get(facts.attempt)
    worked = progress.updated_at if progress is not None else 0.0
    finished = (job_finished_at(last) or 0.0) if last is not None else 0.0
    return max(created_at(engines, 0.0), worked, finished)


def has_started(facts: Facts) -> bool:
    """Return whether the attempt's orchestrator works, or waits only for roles of which each has a ready pod."""
    progress = facts.observed.progress()
    if progress is None or (progress.stage, progress.attempt) != (facts.stage_name, facts.attempt):
        return False
    if progress.phase != "Starting" or not facts.needs_engines:
        return True
    roles = ("redis", "judge", "executor", "rollout", "teacher", "environment", "agent")
    counts = [ready_of(facts.observed, role) for role in roles]
    return all(ready or not desired for ready, desired in counts)
