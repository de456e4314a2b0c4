"""A job's conditions: what is ready, what is not and why. Pure.

`conditions(...)` says what is; `merged` keeps the time of the last change of each; `new_causes` compares two sets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rstar2_operator import names
from rstar2_operator.decide import stage_progress
from rstar2_operator.decide.diagnostics import Diagnosis
from rstar2_operator.decide.plan import FINAL, Plan
from rstar2_operator.observed import Object, ObservedJob, timestamp

Condition = dict[str, Any]
MESSAGE_LENGTH = 4096
TOLD = 6
"""Causes that Degraded tells, the first of each role and reason before others like them."""
SEPARATOR = ","
"""Between the reasons of Degraded, where things of several kinds are in the way."""


def conditions(plan: Plan, observed: ObservedJob, found: list[Diagnosis]) -> list[Condition]:
    """Every condition of the job now, without times."""
    made = [_admitted(plan), _storage(plan, observed, found)]
    for kind, roles in (
        ("RedisReady", ("redis",)),
        ("JudgeReady", ("judge", "executor")),
        ("RolloutReady", ("rollout",)),
    ):
        made.append(_role(kind, roles, plan, observed, found))
    made.append(_training(plan, observed, found))
    suspended = plan.phase == "Suspended"
    why = ("Suspended", plan.message) if suspended else ("NotSuspended", "")
    made.append(_one("Suspended", suspended, *why))
    made.append(_degraded(found))
    for kind in FINAL:
        if plan.phase == kind:
            made.append(_one(kind, True, plan.why, plan.message))
    return made


def merged(old: Iterable[Object], new: list[Condition], *, now: float, generation: int) -> list[Condition]:
    """`new` with times: that of the old one where its status is the same."""
    before = {one["type"]: one for one in old}
    out = []
    for one in new:
        last = before.get(one["type"])
        same = last is not None and last["status"] == one["status"] and last["reason"] == one["reason"]
        since = last["lastTransitionTime"] if same and last is not None else timestamp(now)
        out.append({**one, "lastTransitionTime": since, "observedGeneration": generation})
    return out


def new_causes(old: Iterable[Object], new: Iterable[Object]) -> set[tuple[str, str]]:
    """(type of condition, reason) of what is in the way now and was not before."""
    return _causes(new) - _causes(old)


def _causes(told: Iterable[Object]) -> set[tuple[str, str]]:
    """Every reason of Degraded, and which other conditions are not met for one of them."""
    by_type = {one["type"]: one for one in told}
    degraded = by_type.pop("Degraded", None)
    if degraded is None or degraded["status"] != "True":
        return set()
    reasons = degraded["reason"].split(SEPARATOR)
    blocked = {(kind, one["reason"]) for kind, one in by_type.items() if one["reason"] in reasons}
    return blocked | {("Degraded", reason) for reason in reasons}


def ready_of(observed: ObservedJob, role: str) -> tuple[int, int]:
    """(ready, desired) pods of a role."""
    kind, name = {
        "redis": ("StatefulSet", names.redis),
        "judge": ("Deployment", names.judge),
        "executor": ("Deployment", names.executor),
        "rollout": ("Deployment", names.rollout),
    }[role]
    child = observed.child(kind, name(observed.name))
    if child is None:
        return 0, 0
    return int((child.get("status") or {}).get("readyReplicas") or 0), int(child["spec"].get("replicas", 1))


def _one(kind: str, value: bool, reason: str, message: str = "") -> Condition:
    return {
        "type": kind,
        "status": "True" if value else "False",
        "reason": reason or "Unknown",
        "message": message[:MESSAGE_LENGTH],
    }


def _admitted(plan: Plan) -> Condition:
    if plan.phase == "Invalid" or plan.released:
        return _one("Admitted", False, plan.why, plan.message)
    return _one("Admitted", True, "Admitted")


def _storage(plan: Plan, observed: ObservedJob, found: list[Diagnosis]) -> Condition:
    own = next((one for one in found if one.what.startswith("PersistentVolumeClaim/") and one.role == "storage"), None)
    if own is not None:
        return _one("StorageReady", False, own.reason, str(own))
    if stage_progress.preparation(observed) == "complete":
        return _one("StorageReady", True, "Prepared", "data and model are in the storage")
    outcome = observed.prepared()
    if outcome is not None and outcome.outcome == "failed":
        return _one("StorageReady", False, outcome.reason, outcome.message)
    trouble = next((one for one in found if one.role == "prepare"), None)
    if trouble is not None:
        return _one("StorageReady", False, trouble.reason, str(trouble))
    if plan.phase == "Invalid":
        return _one("StorageReady", False, "InvalidSpec", "nothing is fetched for a job that cannot run")
    return _one("StorageReady", False, "Preparing", "data and model are being brought into the storage")


def _role(kind: str, roles: tuple[str, ...], plan: Plan, observed: ObservedJob, found: list[Diagnosis]) -> Condition:
    if not plan.serving:
        return _one(kind, False, "NotNeeded", "no stage needs it now")
    counts = {role: ready_of(observed, role) for role in roles}
    told = ", ".join(f"{ready} of {desired} {role} pods ready" for role, (ready, desired) in counts.items())
    if all(desired and ready >= desired for ready, desired in counts.values()):
        return _one(kind, True, "Ready", told)
    trouble = next((one for one in found if one.role in roles), None)
    if trouble is not None:
        return _one(kind, False, trouble.reason, f"{told}; {trouble}")
    return _one(kind, False, "Starting", told)


def _training(plan: Plan, observed: ObservedJob, found: list[Diagnosis]) -> Condition:
    attempt, progress = plan.attempt, observed.progress()
    if attempt is None or plan.phase != "Running":
        return _one("Training", False, plan.why, plan.message)
    if progress is None or (progress.stage, progress.attempt) != (attempt.stage, attempt.number):
        message = f"attempt {attempt.number} of stage {attempt.stage}: its driver has not reported yet"
        trouble = next((one for one in found if one.role == "trainer"), None)
        if trouble is not None:
            return _one("Training", False, trouble.reason, f"{message}; {trouble}")
        return _one("Training", False, "Starting", message)
    return _one("Training", True, "Running", f"attempt {attempt.number} of stage {attempt.stage}")


def _degraded(found: list[Diagnosis]) -> Condition:
    if not found:
        return _one("Degraded", False, "AsExpected")
    first = {(one.role, one.reason): one for one in reversed(found)}
    told = sorted(found, key=lambda one: one is not first[one.role, one.reason])[:TOLD]
    more = f"\nand {len(found) - len(told)} more" if len(found) > len(told) else ""
    reasons = list(dict.fromkeys(one.reason for one in told))
    return _one("Degraded", True, SEPARATOR.join(reasons), "\n".join(map(str, told)) + more)
