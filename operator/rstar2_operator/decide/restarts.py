"""Restarts of a job so far: in the annotations of the attempts' Jobs and in the status, because each may be lost."""

from __future__ import annotations

from dataclasses import dataclass

from rstar2_operator import names
from rstar2_operator.observed import Object, ObservedJob, annotations_of


@dataclass(frozen=True, slots=True)
class RestartCounters:
    """Restarts of the whole job."""

    restarts: int
    counted: int
    """Those of them that count towards maxRestarts."""


def counters(observed: ObservedJob, last: Object | None) -> RestartCounters:
    """Return the restarts so far. `last`: the Job of the last attempt; without it, the status has them."""
    annotations = annotations_of(last) if last is not None else {}
    return RestartCounters(
        max(int(annotations.get(names.RESTARTS, 0)), int(observed.status.get("restarts", 0))),
        max(int(annotations.get(names.COUNTED, 0)), int(observed.status.get("restartsCountedTowardsMax", 0))),
    )
