"""Restarts of a job so far: in the annotations of the attempts' Jobs and in the status, because each may be lost."""

from __future__ import annotations

from dataclasses import dataclass

from rstar2_operator import names
from rstar2_operator.observed import Object, ObservedJob, annotations_of, seconds
from rstar2_train.api.failure_policy import CountedRestarts
from rstar2_train.api.job import FailurePolicy


@dataclass(frozen=True, slots=True)
class RestartCounters:
    """Restarts of the whole job."""

    restarts: int = 0
    counted: int = 0
    """Those in the current window that count towards maxRestarts."""
    window_start: float | None = None
    """First counted restart in the current window; seconds since the epoch."""

    def counted_at(self, when: float, policy: FailurePolicy) -> int:
        """Return the counted restarts in the window of a failure at `when`."""
        return CountedRestarts(self.counted, self.window_start).at(when, policy).number

    def after(self, when: float, policy: FailurePolicy, *, counts: bool) -> RestartCounters:
        """Return the counters after the restart that a failure at `when` has caused."""
        counted = CountedRestarts(self.counted, self.window_start).at(when, policy)
        if counts:
            counted = counted.plus_one(when)
        return RestartCounters(self.restarts + 1, counted.number, counted.since)


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
    return of_job if of_job.restarts > of_status.restarts else of_status


def _counters(restarts: str | int | None, counted: str | int | None, window_start: str | None) -> RestartCounters:
    start = None if window_start is None else seconds(window_start)
    return RestartCounters(int(restarts or 0), int(counted or 0), start)
