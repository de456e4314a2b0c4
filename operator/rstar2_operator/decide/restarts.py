"""Restarts of a job so far: in the annotations of the attempts' Jobs and in the status, because each may be lost."""

from __future__ import annotations

from dataclasses import dataclass

from rstar2_operator import names
from rstar2_operator.observed import Object, ObservedJob, annotations_of, seconds
from rstar2_train.api.failure_policy import CountedRestarts
from rstar2_train.api.job import FailurePolicy

NONE_COUNTED = CountedRestarts()


@dataclass(frozen=True, slots=True)
class RestartCounters:
    """Restarts of the whole job."""

    total: int = 0
    counted: CountedRestarts = NONE_COUNTED
    """Those that count towards maxRestarts."""

    def counted_at(self, when: float, policy: FailurePolicy) -> int:
        """Return the counted restarts in the window of a failure at `when`."""
        return self.counted.at(when, policy).number

    def after(self, when: float, policy: FailurePolicy, *, counts: bool) -> RestartCounters:
        """Return the counters after the restart that a failure at `when` has caused."""
        counted = self.counted.at(when, policy)
        return RestartCounters(self.total + 1, counted.plus_one(when) if counts else counted)


NO_RESTARTS = RestartCounters()


def counters(observed: ObservedJob, last: Object | None) -> RestartCounters:
    """Return the restarts so far. `last`: the Job of the last attempt; without it, the status has them."""
    annotations, status = annotations_of(last) if last is not None else {}, observed.status
    of_job = _counters(
        annotations.get(names.RESTARTS), annotations.get(names.COUNTED), annotations.get(names.WINDOW_START)
    )
    of_status = _counters(
        status.get("restarts"), status.get("restartsCountedTowardsMax"), status.get("restartWindowStartTime")
    )
    # Restarts only grow, so the source with more of them is the newer one.
    return of_job if of_job.total > of_status.total else of_status


def _counters(restarts: str | int | None, counted: str | int | None, window_start: str | None) -> RestartCounters:
    since = None if window_start is None else seconds(window_start)
    return RestartCounters(int(restarts or 0), CountedRestarts(int(counted or 0), since))
