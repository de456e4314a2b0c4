"""Whether a job has its Secret. The operator may create a Secret, but not read or watch it, so it asks by a dry run.

A new process asks once per job, and again if a pod reports the loss. Of a running job it asks after a random delay:
pods that run have read the Secret, and 1,000 requests would delay the first reconciliation of all jobs.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace

from rstar2_operator.apply import applied_spec, is_missing, owned
from rstar2_operator.builders.config import secret
from rstar2_operator.builders.pod import BuildContext
from rstar2_operator.client import KubeClient
from rstar2_operator.decide.shared_secret import has_secret_consumers, reported_missing
from rstar2_operator.observed import ObservedJob

SPREAD_SECONDS = 30.0
"""Maximum time between the first reconciliation of a running job and the request."""


@dataclass(slots=True)
class SharedSecret:
    """The Secret of one job, as far as the operator knows it."""

    exists: bool = False
    """Whether it is known to exist."""
    _ask_at: float | None = None
    """Monotonic time of the request; None if none is scheduled."""

    def record(self) -> None:
        """Record that the Secret exists."""
        self.exists, self._ask_at = True, None

    def invalidate(self) -> None:
        """Ask in the next round: the Secret may belong to an earlier job, and be deleted with it."""
        self.exists, self._ask_at = False, 0.0

    def due_in(self) -> float | None:
        """Return the seconds until the delayed request; None if there is none."""
        wait = (self._ask_at or 0.0) - time.monotonic()
        return wait if wait > 0 else None

    async def checked(self, client: KubeClient, context: BuildContext, observed: ObservedJob) -> ObservedJob:
        """Return the snapshot with `secret_missing` set. Asks the API server if necessary."""
        if reported_missing(observed):
            self.invalidate()
        if self.exists or not has_secret_consumers(observed):
            return observed
        now = time.monotonic()
        if self._ask_at is None:
            delay = random.uniform(0.0, SPREAD_SECONDS) if observed.status.get("phase") == "Running" else 0.0
            self._ask_at = now + delay
        if self._ask_at > now:
            return observed
        body = owned(secret(context), observed.job, keep_claims=True, spec=applied_spec(observed.job))
        if await is_missing(client, body):
            return replace(observed, secret_missing=True)
        self.record()
        return observed
