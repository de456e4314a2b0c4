"""spec.stuck: an attempt whose orchestrator runs and makes no progress, such as a hanging collective.

Every progress report is progress: a step, a finished rollout, a tokenised demonstration, another phase, a checkpoint.
Steps are much longer than the interval of the reports within them, so the limit is a multiple of the usual step time,
which `status.stages[].stepSeconds` records. Before it is known, and outside of training (validation, export), the limit
is at least UNKNOWN_SECONDS: the first step of an attempt compiles kernels.
"""

from __future__ import annotations

from typing import Any

from rstar2_operator import names
from rstar2_operator.decide.decision import STUCK, Defer, Verdict
from rstar2_operator.decide.diagnostics import (
    OF_CONTROLLERS,
    OF_STARTING_PODS,
    UNSCHEDULABLE,
    Diagnosis,
    unreported_attempts,
)
from rstar2_operator.decide.ended_attempt import end_attempt
from rstar2_operator.decide.facts import Facts
from rstar2_operator.observed import (
    READY_ROLES,
    Object,
    ObservedJob,
    created_at,
    is_true,
    job_finished_at,
    own_statuses,
    ready_of,
    seconds,
    timestamp,
)
from rstar2_train.api.contracts import Progress
from rstar2_train.api.job import AgenticRLJob

LEAST_SECONDS = 1800.0
"""Least limit."""
UNKNOWN_SECONDS = 7200.0
"""Least limit while the usual step time is unknown or does not apply."""
SMOOTHING = 8
"""Number of steps over which the mean is taken."""


def stuck(facts: Facts) -> Verdict:
    """End an attempt without progress if spec.stuck.action is Restart, unless it waits for pods that cannot start."""
    if facts.stage is None or facts.running_job is None:
        return None
    if (due := _due(facts.job, facts.observed)) is not None:
        message = _message(facts.job, facts.observed)
    elif (since := _unreported_since(facts)) is not None:
        due = since + UNKNOWN_SECONDS
        message = f"attempt {facts.attempt} of stage {facts.stage_name} has not reported since {timestamp(since)}"
    else:
        return None
    if facts.now < due:
        return Defer(wake_at=due)
    if facts.job.spec.stuck.action == "Report" or _is_blocked(facts):
        return None
    return end_attempt(facts, STUCK, f"{message}. A new attempt starts from the last checkpoint.")


def _unreported_since(facts: Facts) -> float | None:
    """Return when all pods of the running attempt had started, if its orchestrator has not reported yet."""
    name = None if facts.running_job is None else facts.running_job["metadata"]["name"]
    return next((since for job, since in unreported_attempts(facts.observed) if job == name), None)


def _is_blocked(facts: Facts) -> bool:
    """Return whether the attempt waits for pods that a restart would not start either: its own, or a whole role."""
    blocked = OF_STARTING_PODS | OF_CONTROLLERS | {UNSCHEDULABLE}
    runs = {f"Pod/{pod['metadata']['name']}" for pod in facts.observed.pods if _runs(pod)}
    roles = {problem.role for problem in facts.problems if problem.reason in blocked and problem.subject not in runs}
    return any(role not in READY_ROLES or not ready_of(facts.observed, role)[0] for role in roles)


def _runs(pod: Object) -> bool:
    """Return whether the own containers of a pod run; an injected one may crash."""
    own = own_statuses(pod)
    return bool(own) and all("running" in (status.get("state") or {}) for status in own)


def problems(job: AgenticRLJob, observed: ObservedJob, *, now: float) -> list[Diagnosis]:
    """Return the problem of an attempt without progress, or nothing."""
    due, progress = _due(job, observed), observed.progress()
    if due is None or progress is None or now < due:
        return []
    subject = f"Job/{names.attempt(observed.name, progress.stage, progress.attempt)}"
    return [Diagnosis("trainer", subject, STUCK, _message(job, observed))]


def step_times(row: Object, progress: Progress, attempt: Object | None, *, reported_at: float) -> dict[str, Any]:
    """Return the fields of a stage's new row about its usual step time. `row`: the last one; `attempt`: the Job.

    The usual time is the mean of recent steps, but at least the last one, so a validation extends it for some steps.
    The first step of an attempt is not a sample.
    """
    if progress.total_steps is None or progress.step <= int(row.get("step") or 0):
        return {}
    result: dict[str, Any] = {"lastStepTime": timestamp(reported_at)}
    last = row.get("lastStepTime")
    if last is not None and attempt is not None and seconds(last) >= created_at(attempt, reported_at):
        sample = (reported_at - seconds(last)) / (progress.step - int(row.get("step") or 0))
        mean = (row.get("stepSeconds", sample) * (SMOOTHING - 1) + sample) / SMOOTHING
        result["stepSeconds"] = max(1, round(max(sample, mean)))
    return result


def _due(job: AgenticRLJob, observed: ObservedJob) -> float | None:
    """Return when the running attempt is stuck if no further report arrives; None if none is expected."""
    progress = observed.progress()
    if progress is None or progress.phase == "Finished":
        return None
    attempts = observed.attempts(progress.stage)
    running = attempts.get(max(attempts, default=0))
    if running is None or progress.attempt != max(attempts) or running["metadata"].get("deletionTimestamp"):
        return None
    outcome = observed.outcome(progress.stage)
    if outcome is not None and outcome.attempt == progress.attempt:
        return None
    if job_finished_at(running) is not None or is_true(running, "FailureTarget"):
        return None
    return observed.reported_at(progress) + _limit(job, observed, progress)


def _limit(job: AgenticRLJob, observed: ObservedJob, progress: Progress) -> float:
    usual = observed.stage_status(progress.stage).get("stepSeconds")
    if usual is None or progress.phase in ("Starting", "Evaluating"):
        return UNKNOWN_SECONDS
    return float(max(LEAST_SECONDS, job.spec.stuck.factor * usual))


def _message(job: AgenticRLJob, observed: ObservedJob) -> str:
    progress = observed.progress() or Progress(stage="", attempt=0)
    usual = observed.stage_status(progress.stage).get("stepSeconds")
    step = "its usual step time is unknown" if usual is None else f"a step usually takes {usual} s"
    return (
        f"attempt {progress.attempt} of stage {progress.stage} has made no progress since "
        f"{timestamp(observed.reported_at(progress))} (phase {progress.phase}, step {progress.step}); {step}, and the "
        f"limit is {round(_limit(job, observed, progress))} s"
    )
