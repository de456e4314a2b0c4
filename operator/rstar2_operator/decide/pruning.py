"""What a job has and should not have any more: roles that no stage needs now, attempts that are over. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rstar2_operator import names
from rstar2_operator.decide import stage_progress
from rstar2_operator.observed import Object, ObservedJob, job_finished_at, labels

PRUNED = frozenset({"Deployment", "StatefulSet", "Service"})
KEPT_ATTEMPTS = 3
"""Finished attempts of a stage whose Job stays, for its log."""


def prunable(observed: ObservedJob, wanted: Iterable[Any]) -> list[tuple[str, Object]]:
    """(kind, object) to delete."""
    named = {(body["kind"], body["metadata"]["name"]) for body in wanted}
    out = []
    for (kind, name), child in observed.children.items():
        if (kind, name) in named or child["metadata"].get("deletionTimestamp"):
            continue
        if kind in PRUNED or (kind == "Job" and _job_is_left(child, observed)):
            out.append((kind, child))
    return out


def prunable_when_suspended(observed: ObservedJob) -> list[tuple[str, Object]]:
    """(kind, object) to delete of a suspended job whose spec cannot be read: the driver first, then what it needs."""
    left = prunable(observed, ())
    jobs = [(kind, child) for kind, child in left if kind == "Job"]
    trainers = (pod for pod in observed.pods if names.STAGE_LABEL in labels(pod))
    checkpointing = any((pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed") for pod in trainers)
    return jobs if jobs or checkpointing else left


def _job_is_left(job: Object, observed: ObservedJob) -> bool:
    stage = labels(job).get(names.STAGE_LABEL)
    if job_finished_at(job) is None:
        # One that was suspended, released or given up; not one whose driver is done and whose pods are just ending.
        return stage is None or not stage_progress.ended_well(stage, observed)
    if stage is None:
        return False
    attempts = sorted(observed.attempts(stage), reverse=True)
    return int(labels(job)[names.ATTEMPT_LABEL]) not in attempts[:KEPT_ATTEMPTS]
