"""Objects that a job has and should not have any more: roles that no stage needs now, and superseded attempts. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rstar2_operator import names
from rstar2_operator.decide import stage_progress
from rstar2_operator.decide.decision import FINAL, Ending
from rstar2_operator.decide.deletion import is_deleted
from rstar2_operator.decide.kueue import WITHOUT_QUOTA
from rstar2_operator.decide.pod_termination import running_pods
from rstar2_operator.observed import Object, ObservedJob, attempt_in_labels, is_true, job_finished_at, labels

ROLES_OF_ROLLOUTS = frozenset({"redis", "judge", "executor", "teacher", "environment", "agent"})
"""Roles that an edit of the job may remove, and that a running attempt uses."""
PRUNED = frozenset({"Deployment", "StatefulSet", "Service", "PodDisruptionBudget"})
KEPT_ATTEMPTS = 3
"""Finished attempts per stage whose Job is kept, and with it the log as long as Kubernetes keeps the pods."""


def prunable(
    observed: ObservedJob, bodies: Iterable[Any], *, now: float, ending: Ending | None = None
) -> list[tuple[str, Object]]:
    """Return (kind, object) of the objects to delete. `bodies`, `ending`: of the decision.

    A judge, environment or agent that the decision no longer needs, after an upgrade or an edit, stays for the attempt
    that started with it.
    """
    holds_pods = bool(running_pods(observed, except_roles=WITHOUT_QUOTA))
    desired = {(body["kind"], body["metadata"]["name"]) for body in bodies}
    samples = ("Deployment", names.rollout(observed.name)) in desired
    kept = ROLES_OF_ROLLOUTS if samples and stage_progress.running_attempts(observed) else frozenset()
    return [
        (kind, child)
        for (kind, name), child in observed.children.items()
        if (kind, name) not in desired
        and labels(child).get(names.ROLE_LABEL) not in kept
        and not child["metadata"].get("deletionTimestamp")
        and (
            kind in PRUNED
            # Its deletion returns the quota; at the end of the job the condition Finished does.
            or (kind == "Workload" and not holds_pods and ending not in ("completed", "failed"))
            or (kind == "Job" and _is_superseded(child, observed, now, ending) and _is_recorded(child, observed))
        )
    ]


def _is_superseded(job: Object, observed: ObservedJob, now: float, ending: Ending | None) -> bool:
    """Return whether a Job that is not in the decision should be deleted."""
    own = attempt_in_labels(job)
    if job_finished_at(job) is None:
        # It was suspended, released or cancelled. A stage that has succeeded keeps its Job while its pods exit.
        if own is None or not stage_progress.succeeded(own[0], observed):
            return True
        due = stage_progress.hung_at(own[0], observed)
        return due is not None and now >= due
    if own is None:  # the report about an end that an edit has taken back would be that of the next end
        has_ended = ending is not None or any(is_true(observed.job, phase) for phase in FINAL)
        return not has_ended and labels(job).get(names.ROLE_LABEL) == "report"
    attempts = sorted(observed.attempts(own[0]), reverse=True)
    return own[1] not in attempts[:KEPT_ATTEMPTS]


def _is_recorded(job: Object, observed: ObservedJob) -> bool:
    """Return whether no later attempt can have the number of a Job that is deleted, because the status has it.

    The operator may have restarted between the creation of the Job and the write of the status.
    """
    own = attempt_in_labels(job)
    if own is None or is_deleted(observed.job):
        return True
    if row := observed.stage_status(own[0]):
        return int(row.get("attempts", 0)) >= own[1]
    # The status of this spec has no row: the stage was removed from it.
    return bool(observed.status.get("observedGeneration") == observed.job["metadata"].get("generation"))
