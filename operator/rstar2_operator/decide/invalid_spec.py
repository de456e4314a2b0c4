"""The objects and pods that a job with an invalid spec must not keep. Pure.

Its pods continue, and no new one starts. `suspend` and a deletion stop it as with a valid spec, and so does an eviction
by Kueue: the attempt first, then the objects without an attempt.
"""

from __future__ import annotations

from dataclasses import dataclass

from rstar2_operator import names
from rstar2_operator.decide import stage_progress
from rstar2_operator.decide.deletion import is_deleted
from rstar2_operator.decide.deletion_blocked import pods_of_kept_jobs
from rstar2_operator.decide.kueue import is_evicted
from rstar2_operator.decide.node_loss import removable_pods
from rstar2_operator.decide.pod_termination import running_pods
from rstar2_operator.decide.pruning import prunable
from rstar2_operator.observed import Object, ObservedJob, job_finished_at, labels


@dataclass(frozen=True, slots=True)
class Remains:
    """The objects and pods of a job with an invalid spec."""

    objects: list[tuple[str, Object]]
    """(kind, object) to delete."""
    stop_pods: tuple[Object, ...]
    """Pods to delete with their grace period."""
    running: bool
    """Whether the job has pods, or objects that must go."""
    wake_at: float | None
    """When a pod of a lost node, or of a Job that a finalizer keeps, may be deleted."""


def remains(observed: ObservedJob, *, now: float) -> Remains:
    """Return the remains of a job with an invalid spec at `now` (seconds since the epoch)."""
    ends = bool(observed.job["spec"].get("suspend")) or is_deleted(observed.job)
    candidates = prunable(observed, (), now=now)
    running = bool(running_pods(observed)) or (ends and bool(candidates))
    lost, lost_at = _lost_pods(observed, now=now) if ends else ([], None)
    stopped, stopped_at = pods_of_kept_jobs(observed, now=now)
    objects = [*_prunable(observed, candidates, ends=ends), *(("Pod", pod) for pod in (*lost, *stopped))]
    if not running:
        objects += (workload for workload in _workloads(observed) if workload not in objects)
    times = [when for when in (lost_at, stopped_at) if when is not None]
    return Remains(objects, stopped, running, min(times, default=None))


def _lost_pods(observed: ObservedJob, *, now: float) -> tuple[list[Object], float | None]:
    after = (observed.job["spec"].get("nodeLoss") or {}).get("afterSeconds")
    return removable_pods(observed, after if isinstance(after, int) else None, now=now)


def _prunable(observed: ObservedJob, objects: list[tuple[str, Object]], *, ends: bool) -> list[tuple[str, Object]]:
    """Return those of the prunable objects to delete: Jobs first, then the objects without an attempt.

    `ends`: the job is suspended or deleted, so that no Job stays; an eviction by Kueue leaves no attempt.
    """
    jobs = [(kind, child) for kind, child in objects if kind == "Job"]
    attempts = [(kind, child) for kind, child in jobs if names.STAGE_LABEL in labels(child)]
    stopped = jobs if ends else attempts if is_evicted(observed) else []
    running = any(job_finished_at(child) is None for _, child in attempts)
    if stopped or running or stage_progress.running_attempts(observed):
        return stopped
    return [(kind, child) for kind, child in objects if kind != "Job"]


def _workloads(observed: ObservedJob) -> list[tuple[str, Object]]:
    """Return (kind, object) of the Workloads, which hold the quota of a job without pods."""
    workloads = observed.of_kind("Workload")
    return [("Workload", body) for body in workloads if not body["metadata"].get("deletionTimestamp")]
