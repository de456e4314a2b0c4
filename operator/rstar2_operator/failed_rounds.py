"""Jobs that the operator cannot reconcile: their rounds fail, or their objects cannot be watched.

A request before the decision, the write of the status or a defect ends a round. The first errors are only in the log,
because most of them pass. After a minute the last status would be untrue, so the problem is added to it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass

from kubernetes.aio.client.exceptions import ApiException

from rstar2_operator import client
from rstar2_operator.cache import JOB, Key
from rstar2_operator.client import is_transient
from rstar2_operator.decide.advice import NOT_COMPLETED, RECONCILE_FAILED
from rstar2_operator.decide.decision import FINAL
from rstar2_operator.decide.diagnostics import Diagnosis, diagnoses
from rstar2_operator.decide.status import failed_status
from rstar2_operator.observed import ObservedJob
from rstar2_operator.status_writer import StatusWriter, WriteTimes
from rstar2_operator.watch_health import FAILING_SECONDS, cause_of

log = logging.getLogger(__name__)


@dataclass(slots=True)
class FailedRounds:
    """The consecutive failed rounds of one job."""

    since: float | None = None
    """Monotonic time of the first one; None after a round without an error."""

    def lasts(self, error: Exception) -> bool:
        """Record a failed round. Return whether the error lasts; a transient one may take client.LASTING_SECONDS."""
        now = time.monotonic()
        self.since = now if self.since is None else self.since
        return now >= self.since + (client.LASTING_SECONDS if is_transient(error) else FAILING_SECONDS)


def failure(key: Key, error: Exception) -> Diagnosis:
    """Return the problem of a job whose rounds fail."""
    return Diagnosis("", f"{JOB}/{key[1]}", RECONCILE_FAILED, lasting_cause(error))


def lasting_cause(error: Exception) -> str:
    """Return the cause of a failed request that is reported; of a transient error also that it lasts."""
    return f"{NOT_COMPLETED}: {cause_of(error)}" if is_transient(error) else cause_of(error)


def unwatched(key: Key, failing: Iterable[tuple[str, str]]) -> list[Diagnosis]:
    """Return the problems of a job of which some kinds cannot be watched. `failing`: of `WatchHealth.lasting`."""
    return [
        Diagnosis("", f"{JOB}/{key[1]}", RECONCILE_FAILED, f"{kind} cannot be watched: {cause}")
        for kind, cause in failing
    ]


async def report_problems(
    writer: StatusWriter,
    times: WriteTimes,
    observed: ObservedJob,
    problems: list[Diagnosis],
    *,
    now: float,
    is_complete: bool,
) -> float | None:
    """Add problems to the last status, unless the job has ended. Return the seconds until a delayed write is due.

    `is_complete`: all objects of the job are known, and with them their problems. An error of the write, or a defect,
    is only logged.
    """
    if observed.status.get("phase") in FINAL:
        return None
    try:
        others = diagnoses(observed, now=now) if is_complete else []
        status = failed_status(observed, [*problems, *others], now=now)
        wait, _ = await writer.write(times, observed.job, status)
    except Exception as error:
        log.warning("the status of %s cannot state its problem: %s", observed.name, cause_of(error))
        return None
    return wait


def log_failure(key: Key, error: Exception) -> None:
    """Log a failed round: one line for an error of the API server, a traceback for a bug."""
    job = "/".join(key)
    if isinstance(error, ApiException):
        body = (error.body or "")[:500]
        log.warning("%s: the API server returned %s %s: %s", job, error.status, error.reason, body)
    elif is_transient(error):
        log.warning("%s: the API server is unreachable: %s", job, error or type(error).__name__)
    else:
        log.exception("%s: reconciliation failed", job)
