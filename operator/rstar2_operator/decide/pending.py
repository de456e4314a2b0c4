"""All or nothing: a job whose pods cannot all be scheduled lets go of everything, and tries again later.

Without it two jobs could each hold half of the accelerators and wait for the other half for ever.
"""

from __future__ import annotations

import zlib

from rstar2_operator.observed import Object, Observed, condition, seconds
from rstar2_train.job.spec import AgenticRLJob

BACK_OFF_SECONDS = (30.0, 600.0)


def unscheduled(pod: Object) -> bool:
    """Whether a pod waits for a node."""
    found = condition(pod, "PodScheduled")
    return (found is None or found["status"] != "True") and not pod["metadata"].get("deletionTimestamp")


def release_at(job: AgenticRLJob, observed: Observed, *, began: float) -> float | None:
    """When to let go, if pods are still waiting then; None when all have a node, or no deadline is set."""
    limit = job.spec.deadlines.pending_seconds
    if limit is None or not any(unscheduled(pod) for pod in observed.pods):
        return None
    return began + limit


def resume_at(job: AgenticRLJob, observed: Observed) -> float | None:
    """When to try again after a release; None when the job was not released."""
    admitted = condition(observed.job, "Admitted")
    if admitted is None or admitted["status"] == "True" or admitted.get("reason") != "PendingDeadline":
        return None
    low, high = BACK_OFF_SECONDS
    wait = min(high, max(low, float(job.spec.deadlines.pending_seconds or low)))
    # Jobs that were released together must not come back together.
    spread = zlib.crc32(observed.job["metadata"]["uid"].encode()) / 2**32
    return seconds(admitted["lastTransitionTime"]) + wait * (1 + spread)
