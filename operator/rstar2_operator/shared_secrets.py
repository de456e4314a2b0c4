"""Which jobs have their Secret. The operator may create a Secret, but not read or watch it, so it asks by a dry run.

A new process asks once per job, and again if a pod reports the loss. Of a running job it asks after a random delay:
pods that run have read the Secret, and 1,000 requests would delay the first reconciliation of all jobs.
"""

from __future__ import annotations

import random
import time
from dataclasses import replace

from rstar2_operator.apply import applied_spec, is_missing, owned
from rstar2_operator.builders.config import secret
from rstar2_operator.builders.pod import BuildContext
from rstar2_operator.cache import Key
from rstar2_operator.client import KubeClient
from rstar2_operator.decide.shared_secret import has_secret_consumers, reported_missing
from rstar2_operator.observed import ObservedJob

SPREAD_SECONDS = 30.0
"""Maximum time between the first reconciliation of a running job and the request."""


class SharedSecrets:
    """The Secrets of all jobs."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._known: dict[Key, str] = {}
        """Job -> UID, of jobs whose Secret is known to exist."""
        self._ask_at: dict[Key, float] = {}
        """Job -> monotonic time of its request."""

    def exists(self, key: Key, observed: ObservedJob) -> bool:
        """Return whether the Secret is known to exist."""
        return bool(self._known.get(key) == observed.job["metadata"]["uid"])

    def record(self, key: Key, observed: ObservedJob) -> None:
        """Record that the Secret exists."""
        self._known[key] = observed.job["metadata"]["uid"]
        self._ask_at.pop(key, None)

    def invalidate(self, key: Key) -> None:
        """Ask in the next round: the Secret may belong to an earlier job, and be deleted with it."""
        self._known.pop(key, None)
        self._ask_at[key] = 0.0

    def forget(self, key: Key) -> None:
        """Drop a deleted job."""
        self._known.pop(key, None)
        self._ask_at.pop(key, None)

    def due_in(self, key: Key) -> float | None:
        """Return the seconds until the delayed request; None if there is none."""
        wait = self._ask_at.get(key, 0.0) - time.monotonic()
        return wait if wait > 0 else None

    async def checked(self, key: Key, context: BuildContext, observed: ObservedJob) -> ObservedJob:
        """Return the snapshot with `secret_missing` set. Asks the API server if necessary."""
        if reported_missing(observed):
            self.invalidate(key)
        if self.exists(key, observed) or not has_secret_consumers(observed):
            return observed
        now = time.monotonic()
        delay = random.uniform(0.0, SPREAD_SECONDS) if observed.status.get("phase") == "Running" else 0.0
        if self._ask_at.setdefault(key, now + delay) > now:
            return observed
        body = owned(secret(context), observed.job, keep_claims=True, spec=applied_spec(observed.job))
        if await is_missing(self._client, body):
            return replace(observed, secret_missing=True)
        self.record(key, observed)
        return observed
