"""Events of a job, from the difference between two statuses. Pure. `kubectl describe` shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rstar2_operator.decide.conditions import new_causes
from rstar2_operator.decide.decision import INVALID_SPEC, QUEUED, RESTART_REASONS

NORMAL, WARNING = "Normal", "Warning"
TAKES_EFFECT = "The changed fields take effect now. Stage {stage} needs no new attempt."
NEEDS_ATTEMPT = (
    "Engine, judge and Redis pods are updated now; stage {stage} keeps its settings until its next attempt. "
    "To apply them now, suspend and resume the job."
)
Status = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One Event."""

    kind: str
    reason: str
    message: str
    action: str = "Reconcile"
    recurs: bool = False
    """Whether it may come and go. The same text is then not repeated for a while."""


def events(old: Status, new: Status, *, attempt_is_current: bool = False) -> list[JobEvent]:
    """Return the Events of the step from `old` to `new`.

    `attempt_is_current`: a new attempt would have the settings of the running one.
    """
    resumed = old.get("phase") == "Suspended" and new.get("phase") in ("Pending", "Preparing", "Running")
    result = [JobEvent(NORMAL, "Resumed", "The job resumes from its last checkpoint.", "Resume")] if resumed else []
    result += _stage_events(old, new)
    state = _state(new)
    if state != _state(old):
        result += _state_events(state, new, requested=resumed)
    elif state == "Running" and new.get("observedGeneration") != old.get("observedGeneration"):
        effect = TAKES_EFFECT if attempt_is_current else NEEDS_ATTEMPT
        result.append(JobEvent(NORMAL, "SpecChanged", f"Spec changed. {effect.format(stage=new.get('stage'))}"))
    ignored = _condition(new, "SpecIgnored")
    if ignored is not None and _condition(old, "SpecIgnored") is None:
        result.append(JobEvent(WARNING, "SpecIgnored", ignored["message"], "Validate"))
    return result + _condition_events(old, new)


def _state(status: Status) -> str:
    """Return the phase, or a reason that has an Event of its own."""
    reason = _plan_reason(status)
    if reason == INVALID_SPEC:
        return INVALID_SPEC
    return "Restarting" if status.get("phase") == "Pending" and reason in RESTART_REASONS else str(status.get("phase"))


def _plan_reason(status: Status) -> str:
    """Return the reason of the phase: while no attempt runs, Training has it."""
    training = _condition(status, "Training")
    return "" if training is None else str(training["reason"])


def _state_events(state: str, new: Status, *, requested: bool) -> list[JobEvent]:
    """Return the Event of a new state. `requested`: a person resumed the job."""
    message = new.get("message", "")
    expected = requested or _plan_reason(new) == QUEUED
    event = {
        "Pending": JobEvent(NORMAL if expected else WARNING, _plan_reason(new) or "Pending", message, "Release"),
        "Preparing": JobEvent(NORMAL, "Preparing", message, "Prepare"),
        "Restarting": JobEvent(WARNING, "Restarting", message, "Restart"),
        "Suspending": JobEvent(NORMAL, "Suspending", message, "Suspend"),
        "Deleting": JobEvent(NORMAL, "Deleting", message, "Delete"),
        "Suspended": JobEvent(NORMAL, "Suspended", message, "Suspend"),
        "Succeeded": JobEvent(NORMAL, "Succeeded", _summary(new), "Finish"),
        "Failed": JobEvent(WARNING, "Failed", message, "Finish"),
        INVALID_SPEC: JobEvent(WARNING, INVALID_SPEC, message, "Validate"),
    }.get(state)
    return [] if event is None else [event]


def _stage_events(old: Status, new: Status) -> list[JobEvent]:
    before = {row["name"]: row for row in old.get("stages") or ()}
    result = []
    for row in new.get("stages") or ():
        last = before.get(row["name"], {})
        name = row["name"]
        if row["attempts"] > last.get("attempts", 0) and row["phase"] != "Pending":
            detail = f" {new['message']}" if row["attempts"] > 1 else ""  # which attempt, and after which failure
            result.append(
                JobEvent(NORMAL, "StageStarted", f"Stage {name} ({row['type']}) started.{detail}", "RunStage")
            )
        if row["phase"] == "Succeeded" and last.get("phase") != "Succeeded":
            reward = (row.get("metrics") or {}).get("reward")
            step = row.get("step") or 0
            steps = f" after {step} step{'s' if step > 1 else ''}" if step else ""
            rewarded = f", reward {reward}" if reward is not None else ""
            reason = f" ({row['reason']})" if row.get("reason") else ""
            message = f"Stage {name} succeeded{steps}{rewarded}{reason}."
            result.append(JobEvent(NORMAL, "StageSucceeded", message, "RunStage"))
    return result


def _condition_events(old: Status, new: Status) -> list[JobEvent]:
    """Return Events of new problems, or the end of all problems."""
    last, now = _condition(old, "Degraded"), _condition(new, "Degraded")
    if now is None or now["status"] == "True":
        return _problem_events(new_causes(old.get("conditions") or (), new.get("conditions") or ()), new)
    running = new.get("phase") in ("Preparing", "Running", "Finalizing") and _state(new) != INVALID_SPEC
    if last is None or last["status"] == "False" or not running:
        return []  # a job that has deleted its pods has not recovered
    return [JobEvent(NORMAL, "Recovered", "All reported problems are resolved.", "Watch", recurs=True)]


def _problem_events(causes: set[tuple[str, str]], new: Status) -> list[JobEvent]:
    """Return one Event if Degraded has a new reason; else one for each condition with a new reason."""
    degraded = any(kind == "Degraded" for kind, _ in causes)
    return [
        JobEvent(WARNING, condition["reason"], condition["message"][:1024], "Watch", recurs=True)
        for condition in new.get("conditions") or ()
        if (condition["type"], condition["reason"]) in causes and (condition["type"] == "Degraded") == degraded
    ]


def _condition(status: Status, kind: str) -> Mapping[str, Any] | None:
    return next((condition for condition in status.get("conditions") or () if condition["type"] == kind), None)


def _summary(new: Status) -> str:
    reward = f" Last reward: {new['reward']}." if new.get("reward") else ""
    return f"{len(new.get('stages') or ())} stages succeeded.{reward}"
