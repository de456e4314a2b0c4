"""The Secret that a job's pods share: who holds what it said, and who says that it is gone. Pure.

The operator may create it and never read it. When it is lost, whatever was started with its passwords must go before
another one is made: otherwise old pods and new ones could not talk to each other.
"""

from __future__ import annotations

from rstar2_operator import names
from rstar2_operator.decide.diagnostics import diagnoses
from rstar2_operator.observed import ObservedJob, job_finished_at, labels


def secret_consumers(observed: ObservedJob) -> bool:
    """Whether anything is there that makes pods with the Secret's passwords."""
    return any(
        kind in ("Deployment", "StatefulSet")
        or (kind == "Job" and names.STAGE_LABEL in labels(child) and job_finished_at(child) is None)
        for (kind, _), child in observed.children.items()
    )


def reported_missing(observed: ObservedJob) -> bool:
    """Whether a pod cannot start for want of it."""
    words = f'secret "{names.secrets(observed.name)}" not found'
    return any(words in trouble.message for trouble in diagnoses(observed, now=0.0))
