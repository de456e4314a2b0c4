"""The only writer of a job's status and Events.

A changed status is written immediately if a person or a program waits for the change; after SETTLE_SECONDS if there is
a new problem; at most every SCALE_SECONDS if the engines were scaled; at most every HOLD_SECONDS if only figures
changed; at most every COUNTS_SECONDS if only pod counts of roles changed, or new pods received a node.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from dataclasses import dataclass
from typing import Any

from kubernetes.aio.client.exceptions import ApiException

from rstar2_operator import client, names
from rstar2_operator.cache import JOB, WatchCache
from rstar2_operator.client import UNREACHABLE, KubeClient, is_transient
from rstar2_operator.decide.conditions import new_causes
from rstar2_operator.decide.decision import FINAL, INVALID_SPEC, RESTART_REASONS
from rstar2_operator.decide.events import WARNING, JobEvent, events
from rstar2_operator.observed import Object, as_json, precise
from rstar2_operator.watch_health import FAILING_SECONDS, cause_of
from rstar2_train.api.base import API_VERSION

log = logging.getLogger(__name__)

HOLD_SECONDS = 10.0
SCALE_SECONDS = 1.0
"""Minimum time between two writes if the number of engines changed: an autoscaler computes with it."""
COUNTS_SECONDS = 60.0
"""Minimum time between two writes if only pod counts of roles changed; conditions report the important ones."""
SETTLE_SECONDS = 4.0
"""Time that a problem must last before it is written: a claim that is bound a moment later needs no two writes."""
REPEAT_SECONDS = 600.0
"""Minimum time between two recurring Events with the same text about the same job."""
REMEMBERED = 4096
NOTE_BYTES = 1024
"""Maximum bytes of an Event's note."""
NOT_WRITTEN = "StatusNotWritten"
NOT_WRITTEN_TEXT = (
    "The status of the job cannot be written, so its phase and its conditions are old, and no new attempt starts. The "
    "operator retries. {}"
)
URGENT_FIELDS = ("phase", "stage", "restarts", "completionTime")
"""Fields whose change is written immediately, as are changes of some conditions."""
URGENT_CONDITIONS = frozenset({*FINAL, "Suspended"})


def is_urgent(old: Object, new: dict[str, Any]) -> bool:
    """Return whether a change of status must be written immediately. Pure."""
    if any(old.get(name) != new.get(name) for name in URGENT_FIELDS):
        return True
    if _attempts(old) != _attempts(new):
        return True  # no later attempt may have the number
    changes = changed_conditions(old, new)
    if any(kind in URGENT_CONDITIONS or reason == INVALID_SPEC for kind, reason in changes):
        return True
    if any(kind == "Training" and reason in RESTART_REASONS for kind, reason in changes):
        return True  # the failure of an attempt, also if the phase was Pending already
    return any(kind == "Degraded" for kind, _ in changes) and not is_worse(old, new)


def _attempts(status: Object) -> dict[str, int]:
    """Return stage -> number of its last attempt."""
    return {row["name"]: row.get("attempts", 0) for row in status.get("stages") or () if row.get("attempts")}


def is_worse(old: Object, new: dict[str, Any]) -> bool:
    """Return whether there is a new problem. Pure."""
    return bool(new_causes(old.get("conditions") or (), new["conditions"]))


def changed_conditions(old: Object, new: dict[str, Any]) -> set[tuple[str, str]]:
    """Return (type, new reason) of the conditions whose status or reason changed. Pure."""
    before = {
        condition["type"]: (condition["status"], condition["reason"]) for condition in old.get("conditions") or ()
    }
    return {
        (condition["type"], condition["reason"])
        for condition in new["conditions"]
        if before.get(condition["type"]) != (condition["status"], condition["reason"])
    }


def is_scaled(old: Object, new: dict[str, Any]) -> bool:
    """Return whether the number of existing engines changed; a start or stop, from or to 0, is no scaling. Pure."""
    before, after = old.get("rolloutReplicas"), new.get("rolloutReplicas")
    return bool(before and after and before != after)


def is_more_than_counts(old: Object, new: dict[str, Any]) -> bool:
    """Return whether anything but pod counts of roles and new pods without a node changed. Pure."""
    return as_json(_without_counts(old)) != as_json(_without_counts(new))


def _without_counts(status: Object) -> Object:
    conditions = [
        condition
        for condition in status.get("conditions") or ()
        if condition["type"] != "PodsScheduled" or condition["reason"] not in ("Pending", "Scheduled")
    ]
    return {**status, "roles": None, "conditions": conditions}


@dataclass(slots=True)
class WriteTimes:
    """When the status of one job was written, and may be written again; by the monotonic clock."""

    written: float | None = None
    """Last write, or first observation of a status that needs none."""
    worse_since: float | None = None
    """Start of a problem that the status does not have yet."""
    rejected: bool = False
    """Whether the API server rejected the last write: no attempt may start, because its number is not recorded."""
    failing_since: float | None = None
    """First of the consecutive failed writes."""
    reported: float = -math.inf
    """Last Event about them."""

    def failed(self, error: Exception) -> bool:
        """Record a failed write. Return whether an Event about it is due."""
        now = time.monotonic()
        self.failing_since = now if self.failing_since is None else self.failing_since
        self.rejected = not is_transient(error) or now >= self.failing_since + client.LASTING_SECONDS
        if not self.is_failing() or now < self.reported + REPEAT_SECONDS:
            return False
        self.reported = now
        return True

    def is_failing(self) -> bool:
        """Return whether the status could not be written for FAILING_SECONDS: it is an old one."""
        return self.failing_since is not None and time.monotonic() >= self.failing_since + FAILING_SECONDS

    def wait(self, old: Object, new: dict[str, Any]) -> float | None:
        """Return the seconds until the new status may be written; None if it equals the old one."""
        now = time.monotonic()
        worse = old != new and is_worse(old, new)
        self.worse_since = (self.worse_since or now) if worse else None
        if old == new:  # in most rounds, and much faster than a comparison of texts
            self.written, self.rejected, self.failing_since = self.written or now, False, None
            return None
        if self.worse_since is not None:
            since, hold = self.worse_since, SETTLE_SECONDS
        elif is_scaled(old, new):
            since, hold = self.written or -math.inf, SCALE_SECONDS
        elif is_more_than_counts(old, new):
            since, hold = self.written or -math.inf, HOLD_SECONDS
        else:  # a new leader does not know the last write
            self.written = self.written or now
            since, hold = self.written, COUNTS_SECONDS
        if as_json(old) == as_json(new):
            return None
        return 0.0 if is_urgent(old, new) else max(0.0, since + hold - now)


class StatusWriter:
    """Writes statuses and Events of all jobs."""

    def __init__(self, client: KubeClient, cache: WatchCache, *, instance: str) -> None:
        self._client = client
        self._cache = cache
        self._instance = instance
        self._sent: dict[str, float] = {}
        """Digest of an Event -> time at which it was created."""

    async def write(
        self, times: WriteTimes, job: Object, status: dict[str, Any], *, attempt_is_current: bool = False
    ) -> tuple[float | None, bool]:
        """Write the status if it has changed. Return the seconds until a delayed write is due, and whether it wrote.

        The cache has the written status immediately: the next round reads the timers of this one from it. `times`: of
        the job.
        `attempt_is_current`: as for `events`.
        """
        old = job.get("status") or {}
        wait = times.wait(old, status)
        if wait is None or wait > 0:
            return wait, False
        meta = job["metadata"]
        body = {
            "apiVersion": API_VERSION,
            "kind": job["kind"],
            "metadata": {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]},
            "status": status,
        }
        try:
            written = await self._client.apply(body, subresource="status")
        except (ApiException, *UNREACHABLE) as error:
            if times.failed(error):
                await self._create_event(job, JobEvent(WARNING, NOT_WRITTEN, NOT_WRITTEN_TEXT.format(cause_of(error))))
            raise
        times.rejected, times.failing_since = False, None
        self._cache.record_write(JOB, written)
        times.written, times.worse_since = time.monotonic(), None
        for event in events(old, status, attempt_is_current=attempt_is_current):
            await self._create_event(job, event)
        return None, True

    async def _create_event(self, job: Object, event: JobEvent) -> None:
        """Create an Event, unless it recurs and was created a moment ago. A failure is only logged."""
        meta = job["metadata"]
        digest = hashlib.sha256(f"{meta['uid']}{event.kind}{event.reason}{event.message}".encode()).hexdigest()[:16]
        now = time.time()
        if event.recurs and now - self._sent.get(digest, 0.0) < REPEAT_SECONDS:
            return
        if len(self._sent) >= REMEMBERED:
            self._sent = {key: when for key, when in self._sent.items() if now - when < REPEAT_SECONDS}
        self._sent[digest] = now
        body = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            # The time is first, because `kubectl describe` sorts Events of this kind by name.
            "metadata": {"name": f"{meta['name']}.{int(now * 1000):x}.{digest}", "namespace": meta["namespace"]},
            "eventTime": precise(now),
            "reportingController": f"{names.GROUP}/operator",
            "reportingInstance": self._instance[:128],
            "action": event.action,
            "reason": event.reason,
            "note": event.message.encode()[:NOTE_BYTES].decode(errors="ignore"),
            "type": event.kind,
            "regarding": {
                "apiVersion": API_VERSION,
                "kind": job["kind"],
                "namespace": meta["namespace"],
                "name": meta["name"],
                "uid": meta["uid"],
            },
        }
        try:
            await self._client.create(body)
        except (ApiException, *UNREACHABLE) as error:
            log.warning("could not create Event %s of %s: %s", event.reason, meta["name"], error)
