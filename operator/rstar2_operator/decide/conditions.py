"""The conditions of a job: readiness of its parts, and the reasons. Pure.

`conditions` gives all of them without times; `with_times` adds the time of each one's last transition; `new_causes`
compares two sets. Ready and Stalled follow kstatus, so that kubectl wait, Argo CD and Flux understand the job:

- Ready is True while the job is as requested (running, suspended or finalizing) and after it has succeeded.
- Stalled is True only if a person must act: the job failed, its spec is invalid, or a problem cannot resolve itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rstar2_operator.decide import stage_progress
from rstar2_operator.decide.advice import NO_STORE
from rstar2_operator.decide.decision import FINAL, INVALID_SPEC, SCHEDULING_TIMEOUT, WAITING_FOR_PODS, Decision, listed
from rstar2_operator.decide.diagnostics import REASONS, Diagnosis
from rstar2_operator.decide.pending_deadline import controllers_without_pods, pending_pods, unscheduled_pods
from rstar2_operator.observed import Object, ObservedJob, is_true, ready_of, timestamp
from rstar2_operator.observed import condition as condition_of

Condition = dict[str, Any]
MESSAGE_LENGTH = 4096
MAX_PROBLEMS = 6
"""Problems that the message of Degraded lists: first one of each role and reason."""
ROLE_CONDITIONS = {
    "RedisReady": ("redis",),
    "JudgeReady": ("judge", "executor"),
    "RolloutReady": ("rollout", "teacher"),
}
OPTIONAL_ROLES = frozenset({"teacher"})
"""Roles that only some stages have."""
JUDGE_CONDITIONS = ("RedisReady", "JudgeReady")
CAUSE_CONDITIONS = frozenset({"StorageReady", *ROLE_CONDITIONS, "Training", "Degraded"})
"""Conditions whose reason may be that of a problem."""
CONDITIONS_OF_PROBLEMS = frozenset({"Ready", "Stalled", "Degraded"})
"""Conditions that a problem of any part changes."""
ABOUT_THE_END = frozenset({*FINAL, "Training"})
"""Conditions of an ended job that are about the spec that ran, also after later edits."""


def conditions(
    decision: Decision, observed: ObservedJob, problems: list[Diagnosis], *, needs_judge: bool = True
) -> list[Condition]:
    """Return every condition of the job, without times. `needs_judge`: of its spec."""
    training = _training(decision, observed, problems)
    suspended = decision.phase == "Suspended"
    return [
        _ready(decision, training, problems),
        _stalled(decision, problems),
        _scheduled(decision, observed, problems),
        _storage(decision, observed, problems),
        *(
            _condition(kind, False, "NotNeeded", "No tool and no reward of the job runs in the judge.")
            if kind in JUDGE_CONDITIONS and not needs_judge
            else _role(kind, roles, decision, observed, problems)
            for kind, roles in ROLE_CONDITIONS.items()
        ),
        training,
        _condition("Suspended", suspended, "Suspended" if suspended else "NotSuspended", decision.message * suspended),
        _degraded(problems),
        *(_condition(kind, True, decision.reason, decision.message) for kind in FINAL if decision.phase == kind),
    ]


def with_times(
    old: Iterable[Object], new: list[Condition], *, now: float, generation: int, ran: int | None = None
) -> list[Condition]:
    """Return `new` with times: lastTransitionTime of the old condition, unless its status is another now.

    `ran`: generation of the spec that ran, of a job that has ended or fails.
    """
    before = {condition["type"]: condition for condition in old}
    result = []
    for condition in new:
        last = before.get(condition["type"])
        same = last is not None and last["status"] == condition["status"]
        since = last["lastTransitionTime"] if same and last is not None else timestamp(now)
        about = ran if ran is not None and condition["type"] in ABOUT_THE_END else generation
        result.append({**condition, "lastTransitionTime": since, "observedGeneration": about})
    return result


def generation_of_end(observed: ObservedJob, *, fails: bool) -> int | None:
    """Return the generation of the spec that ran, if the job has ended; None before. `fails`: by the decision."""
    end = next((final for kind in FINAL if (final := condition_of(observed.job, kind)) is not None), None)
    if end is None and fails and observed.status.get("phase") == "Finalizing":
        end = condition_of(observed.job, "Training")
    return None if end is None else end.get("observedGeneration")


def spec_ignored(observed: ObservedJob, ran: int | None) -> list[Condition]:
    """Return the condition of a job whose spec was changed after its end; nothing for other jobs. `ran`: generation."""
    if ran is None or ran == int(observed.job["metadata"].get("generation", 0)):
        return []
    if any(is_true(observed.job, kind) for kind in FINAL):
        message = (
            "The job has ended, so of a changed spec only ttlSecondsAfterFinished takes effect. To run the change, "
            "create a job of another name, or delete this one first."
        )
        return [_condition("SpecIgnored", True, "JobEnded", message)]
    message = (
        "The job has failed and writes its report, so the changed spec starts no attempt. To run the change, delete "
        "the job after it is Failed, and create it again: it continues from its last checkpoint."
    )
    return [_condition("SpecIgnored", True, "JobFails", message)]


def new_causes(old: Iterable[Object], new: Iterable[Object]) -> set[tuple[str, str]]:
    """Return (type of condition, reason) of every problem in `new` that `old` does not have."""
    return _causes(new) - _causes(old)


def _causes(conditions: Iterable[Object]) -> set[tuple[str, str]]:
    return {
        (condition["type"], condition["reason"])
        for condition in conditions
        if condition["type"] in CAUSE_CONDITIONS and condition["reason"] in REASONS
    }


def _condition(kind: str, value: bool, reason: str, message: str = "") -> Condition:
    return {
        "type": kind,
        "status": "True" if value else "False",
        "reason": reason or "Unknown",
        "message": message[:MESSAGE_LENGTH],
    }


def _ready(decision: Decision, training: Condition, problems: list[Diagnosis]) -> Condition:
    if decision.reason == INVALID_SPEC:
        return _condition("Ready", False, INVALID_SPEC, decision.message)
    if decision.phase in FINAL:
        return _condition("Ready", decision.phase == "Succeeded", decision.reason, decision.message)
    if problems:
        return _condition("Ready", False, problems[0].reason, str(problems[0]))
    if decision.phase == "Running" and training["status"] == "False":
        return _condition("Ready", False, training["reason"], training["message"])
    as_requested = decision.phase in ("Running", "Suspended") or decision.ending == "completed"
    return _condition("Ready", as_requested, decision.reason, decision.message)


def _stalled(decision: Decision, problems: list[Diagnosis]) -> Condition:
    if decision.phase == "Failed" or decision.reason == INVALID_SPEC:
        return _condition("Stalled", True, decision.reason, decision.message)
    blocking = next((problem for problem in problems if problem.needs_action), None)
    if blocking is None or decision.phase == "Succeeded":
        return _condition("Stalled", False, "NotStalled")
    return _condition("Stalled", True, blocking.reason, str(blocking))


def _scheduled(decision: Decision, observed: ObservedJob, problems: list[Diagnosis]) -> Condition:
    if decision.reason == SCHEDULING_TIMEOUT:
        return _condition("PodsScheduled", False, SCHEDULING_TIMEOUT, decision.message)
    pending = pending_pods(observed)
    if pending:
        problem = next((diagnosis for diagnosis in problems if diagnosis.subject.rpartition("/")[2] in pending), None)
        if problem is not None:
            return _condition("PodsScheduled", False, problem.reason, str(problem))
        waiting = {
            "Waiting for a node": unscheduled_pods(observed),
            "Waiting for the creation of pods": controllers_without_pods(observed),
        }
        message = " ".join(f"{text}: {listed(objects)}." for text, objects in waiting.items() if objects)
        return _condition("PodsScheduled", False, "Pending", message)
    if not observed.pods:
        return _condition("PodsScheduled", False, "NoPods", "The job has no pods now.")
    return _condition("PodsScheduled", True, "Scheduled")


def _storage(decision: Decision, observed: ObservedJob, problems: list[Diagnosis]) -> Condition:
    unusable = next(
        (
            diagnosis
            for diagnosis in problems
            if diagnosis.role == "storage"
            and (diagnosis.subject.startswith("PersistentVolumeClaim/") or diagnosis.reason == NO_STORE)
        ),
        None,
    )
    if unusable is not None:
        return _condition("StorageReady", False, unusable.reason, str(unusable))
    if stage_progress.preparation(observed) == "complete":
        return _condition("StorageReady", True, "Prepared", "Model and datasets are in the storage.")
    outcome = observed.prepared()
    if outcome is not None and outcome.outcome == "failed":
        return _condition("StorageReady", False, outcome.reason, outcome.message)
    problem = next((diagnosis for diagnosis in problems if diagnosis.role == "prepare"), None)
    if problem is not None:
        return _condition("StorageReady", False, problem.reason, str(problem))
    if decision.reason == INVALID_SPEC:
        return _condition("StorageReady", False, INVALID_SPEC, "Nothing is downloaded while the spec is invalid.")
    message = decision.message if decision.phase == "Preparing" else "Downloading model and datasets."
    return _condition("StorageReady", False, "Preparing", message)


def _role(
    kind: str, roles: tuple[str, ...], decision: Decision, observed: ObservedJob, problems: list[Diagnosis]
) -> Condition:
    if not decision.serving:
        return _condition(kind, False, "NotNeeded", "No stage needs it now.")
    counts = {role: ready_of(observed, role) for role in roles}
    counts = {role: count for role, count in counts.items() if count[1] or role not in OPTIONAL_ROLES}
    summary = ", ".join(f"{ready} of {desired} {role} pods ready" for role, (ready, desired) in counts.items())
    if all(desired and ready >= desired for ready, desired in counts.values()):
        return _condition(kind, True, "Ready", f"{summary}.")
    problem = next((diagnosis for diagnosis in problems if diagnosis.role in roles), None)
    if problem is not None:
        return _condition(kind, False, problem.reason, f"{summary}. {problem}")
    return _condition(kind, False, "Starting", f"{summary}.")


def _training(decision: Decision, observed: ObservedJob, problems: list[Diagnosis]) -> Condition:
    attempt, progress = decision.attempt, observed.progress()
    if attempt is None or decision.phase != "Running" or decision.reason == WAITING_FOR_PODS:
        return _condition("Training", False, decision.reason, decision.message)
    if progress is None or (progress.stage, progress.attempt) != (attempt.stage, attempt.number):
        message = f"Attempt {attempt.number} of stage {attempt.stage}: its orchestrator has not reported yet."
        problem = next((diagnosis for diagnosis in problems if diagnosis.role == "trainer"), None)
        if problem is not None:
            return _condition("Training", False, problem.reason, f"{message} {problem}")
        return _condition("Training", False, "Starting", message)
    return _condition("Training", True, "Running", f"Attempt {attempt.number} of stage {attempt.stage}.")


def _degraded(problems: list[Diagnosis]) -> Condition:
    if not problems:
        return _condition("Degraded", False, "AsExpected")
    groups: dict[tuple[str, ...], list[Diagnosis]] = {}
    for problem in problems:
        groups.setdefault(problem.likeness, []).append(problem)
    first = {(problem.role, problem.reason): problem for problem in reversed(problems)}
    ordered = sorted(groups.values(), key=lambda group: group[0] is not first[group[0].role, group[0].reason])
    lines = [_line(group) for group in ordered[:MAX_PROBLEMS]]
    listed_problems = sum(map(len, ordered[:MAX_PROBLEMS]))
    more = f"\nand {len(problems) - listed_problems} more" if len(problems) > listed_problems else ""
    return _condition("Degraded", True, ordered[0][0].reason, "\n".join(lines) + more)


def _line(group: list[Diagnosis]) -> str:
    """Return the text of a problem that several objects have."""
    others = [problem.subject.rpartition("/")[2] for problem in group[1:]]
    return f"{group[0]}" + (f" The same problem: {len(others)} more ({listed(others)})." if others else "")
