"""The Secret that a job's pods share: detection of its loss, and the restart of everything that uses it.

The operator may create the Secret, but not read it. If it is lost, all pods with the old passwords must terminate
before a new Secret is created; otherwise old and new pods could not authenticate to each other.
"""

from __future__ import annotations

from rstar2_operator import names
from rstar2_operator.decide import stage_progress
from rstar2_operator.decide.diagnostics import diagnoses
from rstar2_operator.decide.failure_policy import RestartCounters
from rstar2_operator.decide.plan import Plan
from rstar2_operator.observed import ObservedJob, job_finished_at, labels
from rstar2_train.api.stages import Stage


def restart_without_secret(stage: Stage | None, observed: ObservedJob, restarts: RestartCounters) -> Plan:
    """Return the plan of a job whose Secret was deleted: as for a suspension, then a new attempt, not counted."""
    message = f"Secret {names.secrets(observed.name)} was deleted. All pods that use its passwords are replaced."
    serving = stage is not None and stage.needs_engines and bool(stage_progress.running_attempts(observed))
    name = None if stage is None else stage.name
    return restarts.plan(phase="Pending", reason="SharedSecretMissing", stage=name, serving=serving, message=message)


def has_secret_consumers(observed: ObservedJob) -> bool:
    """Whether an object exists whose pods use the Secret."""
    return any(
        kind in ("Deployment", "StatefulSet")
        or (kind == "Job" and names.STAGE_LABEL in labels(child) and job_finished_at(child) is None)
        for (kind, _), child in observed.children.items()
    )


def reported_missing(observed: ObservedJob) -> bool:
    """Whether a pod cannot start because the Secret is missing."""
    error = f'secret "{names.secrets(observed.name)}" not found'
    return any(error in problem.message for problem in diagnoses(observed, now=0.0))
