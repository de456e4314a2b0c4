"""The state of one job between two rounds, in memory only. It saves requests and work.

reconcile.py has one `ReconcileState` per job and hands its parts to the modules that read and write them. It drops the
state with the job.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rstar2_operator.client import TransientErrors
from rstar2_operator.desired import DesiredJob
from rstar2_operator.drift import DriftCorrections
from rstar2_operator.failed_rounds import FailedRounds
from rstar2_operator.identity import MutatedObjects
from rstar2_operator.metrics import JobFigures
from rstar2_operator.quota import AssignedFlavors
from rstar2_operator.references import MissingReferences
from rstar2_operator.shared_secrets import SharedSecret
from rstar2_operator.status_writer import WriteTimes


@dataclass(slots=True)
class ReconcileState:
    """One job, identified by its UID."""

    uid: str
    desired: DesiredJob = field(default_factory=DesiredJob)
    corrections: DriftCorrections = field(default_factory=DriftCorrections)
    flavors: AssignedFlavors = field(default_factory=AssignedFlavors)
    missing: MissingReferences = field(default_factory=MissingReferences)
    mutated: MutatedObjects = field(default_factory=MutatedObjects)
    secret: SharedSecret = field(default_factory=SharedSecret)
    status: WriteTimes = field(default_factory=WriteTimes)
    transient: TransientErrors = field(default_factory=TransientErrors)
    failed: FailedRounds = field(default_factory=FailedRounds)
    figures: JobFigures | None = None
    """Its figures for a scrape; None before the first round."""
