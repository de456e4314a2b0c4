"""Rounds of a job that end with an error: requests before the decision, the write of the status, a defect.

The first errors are only in the log, because most of them pass. If all rounds of a minute fail, the last status would
be untrue, so the problem is added to it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from rstar2_operator import client
from rstar2_operator.cache import JOB
from rstar2_operator.client import is_transient, message_of
from rstar2_operator.decide.advice import RECONCILE_FAILED
from rstar2_operator.decide.decision import FINAL
from rstar2_operator.decide.diagnostics import Diagnosis, diagnoses
from rstar2_operator.decide.status import failed_status
from rstar2_operator.observed import ObservedJob
from rstar2_operator.status_writer import StatusWriter, WriteTimes

FAILING_SECONDS = 60.0
"""Seconds of failed rounds after which the status has the error; a transient one may take client.LASTING_SECONDS."""


@dataclass(slots=True)
class FailedRounds:
    """The consecutive failed rounds of one job."""

    since: float | None = None
    """Monotonic time of the first one; None after a round without an error."""

    def lasts(self, error: Exception) -> bool:
        """Record a failed round. Return whether the error lasts."""
        now = time.monotonic()
        self.since = now if self.since is None else self.since
        return now >= self.since + (client.LASTING_SECONDS if is_transient(error) else FAILING_SECONDS)


async def report_failure(
    writer: StatusWriter, times: WriteTimes, observed: ObservedJob, error: Exception, *, now: float
) -> float | None:
    """Add an error to the status of a job, unless the job has ended. Return the seconds until a delayed write is due.

    Raises the error of the write.
    """
    if observed.status.get("phase") in FINAL:
        return None
    problem = Diagnosis("", f"{JOB}/{observed.name}", RECONCILE_FAILED, message_of(error))
    status = failed_status(observed, [problem, *diagnoses(observed, now=now)], now=now)
    wait, _ = await writer.write(times, observed.job, status)
    return wait
