"""What happened to a job, told as Events: the difference between two statuses, as a person would say it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rstar2_operator.decide.conditions import SEPARATOR, new_causes

NORMAL, WARNING = "Normal", "Warning"


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One line of `kubectl describe`."""

    kind: str
    reason: str
    message: str
    action: str = "Reconcile"
    recurs: bool = False
    """It may come and go: the same words are not said again for a while. What happens once is always said."""


def events(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[JobEvent]:
    """What to say about the step from `old` to `new`."""
    phase, before = new.get("phase"), old.get("phase")
    said = [JobEvent(NORMAL, "Resumed", "going on where it stopped", "Resume")] if _resumed(before, phase) else []
    said += _of_stages(old, new)
    if phase != before:
        told = {
            "Preparing": JobEvent(NORMAL, "Preparing", "bringing data and model into the storage", "Prepare"),
            "Restarting": JobEvent(WARNING, "Restarting", new.get("message", ""), "Restart"),
            "Suspending": JobEvent(NORMAL, "Suspending", new.get("message", ""), "Suspend"),
            "Suspended": JobEvent(NORMAL, "Suspended", new.get("message", ""), "Suspend"),
            "Pending": JobEvent(
                WARNING, "Released" if _released(new) else "Waiting", new.get("message", ""), "Release"
            ),
            "Complete": JobEvent(NORMAL, "Complete", _summary(new), "Finish"),
            "Failed": JobEvent(WARNING, "Failed", new.get("message", ""), "Finish"),
            "Invalid": JobEvent(WARNING, "InvalidSpec", new.get("message", ""), "Validate"),
        }.get(str(phase))
        if told is not None:
            said.append(told)
    elif phase == "Running" and new.get("observedGeneration") != old.get("observedGeneration"):
        kept = f"stage {new.get('stage')} goes on with the settings that its attempt began with"
        message = f"the spec was changed: the roles' pods follow now, {kept} (to have them reread: suspend and resume)"
        said.append(JobEvent(NORMAL, "SpecChanged", message))
    said += _of_conditions(old, new)
    return said


def _of_stages(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[JobEvent]:
    before = {row["name"]: row for row in old.get("stages") or ()}
    said = []
    for row in new.get("stages") or ():
        last = before.get(row["name"], {})
        name = row["name"]
        if row["attempts"] > last.get("attempts", 0) and row["phase"] != "Waiting":
            again = f": {new['message']}" if row["attempts"] > 1 else ""  # which attempt, and after what
            said.append(JobEvent(NORMAL, "StageStarted", f"stage {name} ({row['type']}){again}", "RunStage"))
        if row["phase"] == "Done" and last.get("phase") != "Done":
            reward = (row.get("metrics") or {}).get("reward")
            step = row.get("step") or 0
            steps = f" after {step} step{'s' if step > 1 else ''}" if step else ""
            told = f", reward {reward}" if reward is not None else ""
            why = f" ({row['reason']})" if row.get("reason") else ""
            said.append(JobEvent(NORMAL, "StageCompleted", f"stage {name}{steps}{told}{why}", "RunStage"))
    return said


def _of_conditions(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[JobEvent]:
    """What came in the way, or went out of it."""
    last, now = _condition(old, "Degraded"), _condition(new, "Degraded")
    if now is None or now["status"] == "True":
        return _of_causes(new_causes(old.get("conditions") or (), new.get("conditions") or ()), new)
    if last is None or last["status"] == "False" or new.get("phase") not in ("Preparing", "Running", "Finishing"):
        return []  # a job that has let go of its pods has recovered from nothing
    return [JobEvent(NORMAL, "Recovered", "nothing is in the way any more", "Watch", recurs=True)]


def _of_causes(causes: set[tuple[str, str]], new: Mapping[str, Any]) -> list[JobEvent]:
    """One Event for causes of a new kind, with all that is in the way; else one for each condition that they touch."""
    whole = any(kind == "Degraded" for kind, _ in causes)
    said = []
    for one in new.get("conditions") or ():
        reasons = [reason for reason in one["reason"].split(SEPARATOR) if (one["type"], reason) in causes]
        if reasons and (one["type"] == "Degraded") == whole:
            said.append(JobEvent(WARNING, reasons[0], one["message"][:1024], "Watch", recurs=True))
    return said


def _resumed(before: object, phase: object) -> bool:
    return before == "Suspended" and phase in ("Pending", "Preparing", "Running")


def _released(status: Mapping[str, Any]) -> bool:
    admitted = _condition(status, "Admitted")
    return admitted is not None and admitted["status"] == "False"


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    return next((one for one in status.get("conditions") or () if one["type"] == kind), None)


def _summary(new: Mapping[str, Any]) -> str:
    rows = new.get("stages") or ()
    return f"{len(rows)} stages are done" + (f", last reward {new['reward']}" if new.get("reward") else "")
