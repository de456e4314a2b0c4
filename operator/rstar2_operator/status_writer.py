"""The single writer of a job's status, and of its Events.

A status is written when it differs from the one that is there: at once when something happened that a person or a
program waits for, after SETTLE_SECONDS when something is in the way, at most every HOLD_SECONDS when only figures
moved, every COUNTS_SECONDS when only numbers of pods.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from typing import Any

from kubernetes.aio.client.exceptions import ApiException

from rstar2_operator import names
from rstar2_operator.cache import Key
from rstar2_operator.client import KubeClient
from rstar2_operator.decide.conditions import new_causes
from rstar2_operator.decide.events import JobEvent, events
from rstar2_operator.observed import Object, as_json, precise
from rstar2_train.api.base import API_VERSION

log = logging.getLogger(__name__)

HOLD_SECONDS = 10.0
COUNTS_SECONDS = 60.0
"""The same where nothing moved but how many pods of each role are ready: what matters of that is a condition."""
SETTLE_SECONDS = 4.0
"""What is in the way must have been so for so long: a claim that is bound a moment later is not worth two writes."""
REPEAT_SECONDS = 600.0
"""An Event that recurs is not made again in the same words about the same job within so long."""
REMEMBERED = 4096
NOTE_BYTES = 1024
"""What the API server takes of an Event's note; it counts bytes."""
SOON = ("phase", "stage", "completionTime")
"""Fields whose change is written at once; so are those of some conditions."""


def is_urgent(old: Object, new: dict[str, Any]) -> bool:
    """Whether a change of status must not wait. Pure."""
    if any(old.get(name) != new.get(name) for name in SOON):
        return True
    changed = changed_conditions(old, new)
    return bool(changed & {"Complete", "Failed", "Suspended", "Admitted"}) or (
        "Degraded" in changed and not is_worse(old, new)
    )


def is_worse(old: Object, new: dict[str, Any]) -> bool:
    """Whether something is in the way now that was not before. Pure."""
    return bool(new_causes(old.get("conditions") or (), new["conditions"]))


def changed_conditions(old: Object, new: dict[str, Any]) -> set[str]:
    """Types of the conditions whose status or reason is another now. Pure."""
    before = {one["type"]: (one["status"], one["reason"]) for one in old.get("conditions") or ()}
    return {one["type"] for one in new["conditions"] if before.get(one["type"]) != (one["status"], one["reason"])}


def is_more_than_counts(old: Object, new: dict[str, Any]) -> bool:
    """Whether anything but the roles' numbers of pods has changed. Pure."""
    return as_json({**old, "roles": None}) != as_json({**new, "roles": None})


class StatusWriter:
    """Writes statuses and Events of all jobs."""

    def __init__(self, client: KubeClient, *, instance: str) -> None:
        self._client = client
        self._instance = instance
        self._written: dict[Key, float] = {}
        """Job -> when its status was last written."""
        self._worse_since: dict[Key, float] = {}
        """Job -> since when something is in the way that its status does not tell."""
        self._said: dict[str, float] = {}

    async def report(self, key: Key, job: Object, status: dict[str, Any]) -> float | None:
        """Write the status when it has changed. Returns the seconds after which to come again with one held back."""
        old = job.get("status") or {}
        wait = self._wait(key, old, status)
        if wait is None or wait > 0:
            return wait
        meta = job["metadata"]
        body = {
            "apiVersion": API_VERSION,
            "kind": job["kind"],
            "metadata": {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]},
            "status": status,
        }
        await self._client.apply(body, subresource="status")
        self._written[key] = time.monotonic()
        self._worse_since.pop(key, None)
        for event in events(old, status):
            await self._say(job, event)
        return None

    def forget(self, key: Key) -> None:
        """The job is gone."""
        self._written.pop(key, None)
        self._worse_since.pop(key, None)

    def _wait(self, key: Key, old: Object, new: dict[str, Any]) -> float | None:
        """Seconds until the new status may be written; None when it says what the old one says."""
        now = time.monotonic()
        if is_worse(old, new):
            since, hold = self._worse_since.setdefault(key, now), SETTLE_SECONDS
        else:
            self._worse_since.pop(key, None)
            since = self._written.get(key, -math.inf)
            hold = HOLD_SECONDS if is_more_than_counts(old, new) else COUNTS_SECONDS
        if as_json(old) == as_json(new):
            return None
        return 0.0 if is_urgent(old, new) else max(0.0, since + hold - now)

    async def _say(self, job: Object, event: JobEvent) -> None:
        """Make an Event, unless it recurs and was made a moment ago. One that cannot be made stops nothing."""
        meta = job["metadata"]
        digest = hashlib.sha256(f"{meta['uid']}{event.kind}{event.reason}{event.message}".encode()).hexdigest()[:16]
        now = time.time()
        if event.recurs and now - self._said.get(digest, 0.0) < REPEAT_SECONDS:
            return
        if len(self._said) >= REMEMBERED:
            self._said = {key: when for key, when in self._said.items() if now - when < REPEAT_SECONDS}
        self._said[digest] = now
        body = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            # The time first: `kubectl describe` lists Events of this kind in the order of their names.
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
        except ApiException as error:
            log.warning("could not make the Event %s of %s: %s", event.reason, meta["name"], error.reason)
