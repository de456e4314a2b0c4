"""All or nothing: a job whose pods cannot all be scheduled lets go of everything, and tries again later.

Without it two jobs could each hold half of the accelerators and wait for the other half for ever.
"""

from __future__ import annotations

import zlib

from rstar2_operator.observed import Object, ObservedJob, condition, is_true, lacks_pods, seconds
from rstar2_train.api.job import AgenticRLJob

BACK_OFF_SECONDS = (30.0, 600.0)


def unscheduled(pod: Object) -> bool:
    """Whether a pod waits for a node."""
    found = condition(pod, "PodScheduled")
    return (found is None or found["status"] != "True") and not pod["metadata"].get("deletionTimestamp")


def waiting(observed: ObservedJob) -> list[str]:
    """Names of the pods that have no node, and of what lacks pods that are refused (a RuntimeClass, a quota)."""
    pods = [pod["metadata"]["name"] for pod in observed.pods if unscheduled(pod)]
    lacking = [
        name
        for (kind, name), child in observed.children.items()
        if is_true(child, "ReplicaFailure") or lacks_pods(kind, child)
    ]
    return sorted(pods) + sorted(lacking)


def release_at(job: AgenticRLJob, observed: ObservedJob, *, began: float) -> float | None:
    """When to let go, if pods are still waiting then; None when all exist and have a node, or no deadline is set."""
    limit = job.spec.pending_deadline_seconds
    return began + limit if limit is not None and waiting(observed) else None


def resume_at(job: AgenticRLJob, observed: ObservedJob) -> float | None:
    """When to try again after a release; None when the job was not released."""
    admitted = condition(observed.job, "Admitted")
    if admitted is None or admitted["status"] == "True" or admitted.get("reason") != "PendingDeadline":
        return None
    return seconds(admitted["lastTransitionTime"]) + pause(job, observed)


def pause(job: AgenticRLJob, observed: ObservedJob) -> float:
    """Seconds between a release and the next try."""
    low, high = BACK_OFF_SECONDS
    wait = min(high, max(low, float(job.spec.pending_deadline_seconds or low)))
    # Jobs that were released together must not come back together.
    spread = zlib.crc32(observed.job["metadata"]["uid"].encode()) / 2**32
    return wait * (1 + spread)
