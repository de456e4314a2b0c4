"""The Secret that a job's pods share: detection of its loss, and the restart of everything that uses it.

A loss is a disruption of the attempt that runs: a client that deletes each Secret must not restart it indefinitely. The
operator may create the Secret, but not read it. If it is lost, all pods with the old passwords must terminate before a
new Secret is created; otherwise old and new pods could not authenticate to each other.
"""

from __future__ import annotations

from collections.abc import Iterator

from rstar2_operator import names
from rstar2_operator.decide import stage_progress
from rstar2_operator.decide.decision import SHARED_SECRET_MISSING, Decision, Verdict
from rstar2_operator.decide.diagnostics import diagnoses
from rstar2_operator.decide.ended_attempt import end_disrupted
from rstar2_operator.decide.facts import Facts
from rstar2_operator.decide.kueue import held_workload
from rstar2_operator.observed import ObservedJob, job_finished_at, labels


def shared_secret(facts: Facts) -> Verdict:
    """Replace all pods of a job whose Secret was deleted: as for a suspension, then a new attempt."""
    if not facts.observed.secret_missing:
        return None
    message = f"Secret {names.secrets(facts.observed.name)} was deleted. All pods that use its passwords are replaced."
    if not facts.ended and (ended := end_disrupted(facts, SHARED_SECRET_MISSING, message)) is not None:
        return ended
    serving = facts.needs_engines and bool(stage_progress.running_attempts(facts.observed))
    return Decision(
        facts.stage_name,
        facts.restarts,
        phase="Pending",
        reason=SHARED_SECRET_MISSING,
        serving=serving,
        message=message,
        workload=held_workload(facts),
    )


def has_secret_consumers(observed: ObservedJob) -> bool:
    """Return whether an object exists whose pods use the Secret."""
    return any(
        kind in ("Deployment", "StatefulSet")
        or (kind == "Job" and names.STAGE_LABEL in labels(child) and job_finished_at(child) is None)
        for (kind, _), child in observed.children.items()
    )


def reported_missing(observed: ObservedJob) -> bool:
    """Return whether a pod cannot start because the Secret is missing."""
    error = f'secret "{names.secrets(observed.name)}" not found'
    if not any(error in message for message in _messages(observed)):  # in most rounds
        return False
    return any(error in problem.message for problem in diagnoses(observed, now=0.0))


def _messages(observed: ObservedJob) -> Iterator[str]:
    """Return the messages of the kubelet about pods that cannot start."""
    yield from (str(event.get("message", "")) for event in observed.warnings)
    for pod in observed.pods:
        for container in (pod.get("status") or {}).get("containerStatuses") or ():
            yield str(((container.get("state") or {}).get("waiting") or {}).get("message", ""))
