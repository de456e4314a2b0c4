"""Deleted objects that a finalizer of another client keeps: their pods must not hold accelerators.

Kubernetes deletes the pods of a Job after the Job is gone, so they would run as long as the finalizer stays. They are
deleted one by one with their grace period; the controller of a deleted Job creates no others. apply.py scales
Deployments and StatefulSets with a finalizer to 0 before it deletes them.

A Job that has lost its labels is invisible, as if it were deleted. Its pods would run until they end by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

from rstar2_operator import names
from rstar2_operator.decide.advice import DELETION_BLOCKED
from rstar2_operator.decide.decision import Defer, Verdict
from rstar2_operator.decide.diagnostics import STUCK_SECONDS, Diagnosis
from rstar2_operator.decide.facts import Facts
from rstar2_operator.decide.stage_progress import attempt_of
from rstar2_operator.observed import Object, ObservedJob, controller_of, is_alive, is_of, labels, seconds

OF_KUBERNETES = frozenset({"foregroundDeletion", "orphan"})
REPORTED_BY_OTHERS = frozenset({"Workload", "PersistentVolumeClaim"})
"""Kinds whose deletion another message is about."""


def stop_pods(facts: Facts) -> Verdict:
    """Delete the pods of Jobs that are deleted and remain, or that are invisible."""
    running, due = pods_of_kept_jobs(facts.observed, now=facts.now)
    running += pods_of_hidden_jobs(facts.observed)
    return Defer(wake_at=due, stop_pods=running) if running or due is not None else None


def pods_of_kept_jobs(observed: ObservedJob, *, now: float) -> tuple[tuple[Object, ...], float | None]:
    """Return the running pods of deleted Jobs that a finalizer keeps, and when the pods of the next Job are due."""
    jobs = [job for job in observed.of_kind("Job") if _finalizers(job)]
    overdue = [job for job in jobs if now >= _due(job)]
    pods = [pod for pod in observed.pods if any(is_of(pod, job) for job in overdue)]
    running = tuple(pod for pod in pods if is_alive(pod) and not pod["metadata"].get("deletionTimestamp"))
    return running, min((_due(job) for job in jobs if now < _due(job)), default=None)


def pods_of_hidden_jobs(observed: ObservedJob) -> tuple[Object, ...]:
    """Return the running pods of attempts whose Job is not visible.

    Pods of an earlier job of the name are left: they run only until this job has started an attempt of the stage.
    """
    visible = {job["metadata"]["uid"] for job in observed.of_kind("Job")}
    pods = [pod for pod in observed.pods if is_alive(pod) and not pod["metadata"].get("deletionTimestamp")]
    own = [pod for pod in pods if (attempt := attempt_of(pod)) and observed.stage_status(attempt[0]).get("startTime")]
    return tuple(pod for pod in own if (controller_of(pod) or {}).get("uid") not in visible)


def problems(observed: ObservedJob, *, now: float) -> Iterator[Diagnosis]:
    """Yield the objects that a finalizer keeps, except the Job of the preparation: storage.py has its problem."""
    for (kind, name), child in observed.children.items():
        if kind in REPORTED_BY_OTHERS or name == names.prepare(observed.name):
            continue
        if (finalizers := _finalizers(child)) and now >= _due(child):
            message = f"is deleted since {child['metadata']['deletionTimestamp']}, but kept by {', '.join(finalizers)}"
            yield Diagnosis(labels(child).get(names.ROLE_LABEL, ""), f"{kind}/{name}", DELETION_BLOCKED, message)


def _finalizers(obj: Object) -> list[str]:
    """Return the finalizers of other clients that keep a deleted object; empty for one that is not deleted."""
    if not obj["metadata"].get("deletionTimestamp"):
        return []
    return [name for name in obj["metadata"].get("finalizers") or () if name not in OF_KUBERNETES]


def _due(obj: Object) -> float:
    return seconds(obj["metadata"]["deletionTimestamp"]) + STUCK_SECONDS
