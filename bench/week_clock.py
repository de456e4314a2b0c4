"""Fake time for one process, and the client of the API server that lives in it; for bench/week.py.

All timers of the operator and of the played cluster are timers of one event loop. When nothing is left to do at a
moment, the clock jumps to the next timer. An API server has a clock of its own, so the client replaces the times that
it sets: creation and deletion of an object happen when this process first sees them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from kubernetes.aio import client as aio
from kubernetes.aio.client.exceptions import ApiException

from rstar2_operator import client as client_module
from rstar2_operator.client import KubeClient
from rstar2_operator.observed import timestamp

Body = dict[str, Any]
ENDLESS = 10**9
"""Seconds of timers that must never fire: of watches and connections, which live in real time."""
CALM_ROUNDS = 4
"""Rounds of the event loop without a request after which nothing is left to do."""
LONGEST_WAIT = 60_000
"""Pauses of 1 ms after which the simulation has a defect; a busy machine needs many."""
REQUEST_SECONDS = 600.0
"""Limit of a request. No fake time passes while it is in flight, but a busy machine may need long."""
WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class FakeClock:
    """The clock of this process: real time and the sum of all jumps. A context manager, because it replaces `time`."""

    def __init__(self) -> None:
        self._real = time.time, time.monotonic
        self.ahead = 0.0
        """Seconds by which the clock is ahead of real time."""

    def __enter__(self) -> FakeClock:
        wall, monotonic = self._real
        time.time = lambda: wall() + self.ahead
        time.monotonic = lambda: monotonic() + self.ahead  # the event loop reads it too
        return self

    def __exit__(self, *_: object) -> None:
        time.time, time.monotonic = self._real

    def jump(self, loop: Any) -> None:
        """Advance to the next timer of the event loop."""
        timers = [handle.when() for handle in loop._scheduled if not handle.cancelled()]
        if timers:
            self.ahead += max(0.0, min(timers) - loop.time())


class Delivery:
    """Which writes the watches have delivered: the clock must not jump before."""

    def __init__(self) -> None:
        self._expected: dict[str, int] = {}
        self._delivered: dict[tuple[str, str], int] = {}
        self._deleted: dict[tuple[str, str], set[str]] = {}
        self._expected_deletions: dict[str, set[str]] = {}
        self.watchers: dict[str, frozenset[str]] = {}
        """Name of a watcher -> kinds that it watches."""

    def start(self, watcher: str, kinds: frozenset[str]) -> None:
        """Add a watcher, or replace it by a new one."""
        self.watchers[watcher] = kinds

    def stop(self, watcher: str) -> None:
        """Remove a watcher."""
        self.watchers.pop(watcher, None)

    def write(self, kind: str, body: Body) -> None:
        """Record the response to a write."""
        meta = body.get("metadata") or {}
        if meta.get("resourceVersion"):
            self._expected[kind] = max(self._expected.get(kind, 0), int(meta["resourceVersion"]))

    def delete(self, kind: str, uid: str) -> None:
        """Record that an object was deleted."""
        self._expected_deletions.setdefault(kind, set()).add(uid)

    def event(self, watcher: str, kind: str, body: Body, *, gone: bool) -> None:
        """Record an event of a watch, or an object of a list."""
        version = int(body["metadata"]["resourceVersion"])
        key = watcher, kind
        self._delivered[key] = max(self._delivered.get(key, 0), version)
        if gone:
            self._deleted.setdefault(key, set()).add(body["metadata"]["uid"])

    def listed(self, watcher: str, kind: str, version: str) -> None:
        """Record a complete list: earlier deletions have no event."""
        key = watcher, kind
        self._delivered[key] = max(self._delivered.get(key, 0), int(version))
        self._deleted.setdefault(key, set()).update(self._expected_deletions.get(kind, ()))

    def missing(self) -> list[str]:
        """Return what a watcher has not seen yet, for an error message."""
        lines = []
        for watcher, kinds in self.watchers.items():
            for kind in sorted(kinds):
                delivered, expected = self._delivered.get((watcher, kind), 0), self._expected.get(kind, 0)
                gone = self._expected_deletions.get(kind, set()) - self._deleted.get((watcher, kind), set())
                if delivered < expected or gone:
                    lines.append(f"{watcher} {kind}: {delivered} of {expected}, deletions {sorted(gone)}")
        return lines

    def is_complete(self) -> bool:
        """Return whether every watcher has seen every write."""
        for watcher, kinds in self.watchers.items():
            for kind in kinds:
                if self._delivered.get((watcher, kind), 0) < self._expected.get(kind, 0):
                    return False
                if not self._expected_deletions.get(kind, set()) <= self._deleted.get((watcher, kind), set()):
                    return False
        for kind, uids in self._expected_deletions.items():  # all watchers have seen them
            for watcher in self.watchers:
                self._deleted.get((watcher, kind), set()).difference_update(uids)
            uids.clear()
        return True


class Times:
    """When this process first saw the creation, the last version and the deletion of each object."""

    def __init__(self) -> None:
        self._created: dict[str, str] = {}
        self._deleted: dict[str, str] = {}
        self._changed: dict[str, tuple[str, str]] = {}

    def replace(self, body: Body) -> Body:
        """Replace the API server's times in an object, in place."""
        meta = body.get("metadata") or {}
        if (uid := meta.get("uid")) is not None:
            now = timestamp(time.time())
            if "creationTimestamp" in meta:
                meta["creationTimestamp"] = self._created.setdefault(uid, now)
            if "deletionTimestamp" in meta:
                meta["deletionTimestamp"] = self._deleted.setdefault(uid, now)
            version = meta.get("resourceVersion", "")
            if self._changed.get(uid, ("", ""))[0] != version:
                self._changed[uid] = version, now
            for entry in meta.get("managedFields") or ():  # the policy reads when a report was written
                entry["time"] = self._changed[uid][1]
        return body


class WeekClient(KubeClient):
    """The operator's client in fake time. `refuse` returns the error of a request, or None."""

    def __init__(
        self,
        api: aio.ApiClient,
        times: Times,
        delivery: Delivery,
        *,
        refuse: Callable[[], Exception | None] = lambda: None,
        count: Callable[[str, str, int], None] | None = None,
    ) -> None:
        super().__init__(api, count=count)
        self._times = times
        self._delivery = delivery
        self._refuse = refuse
        self.in_flight = 0
        """Requests without a response."""

    async def _request(self, *arguments: Any, limit: Any = REQUEST_SECONDS, **options: Any) -> Any:
        return await super()._request(*arguments, limit=limit, **options)

    async def _call(self, method: str, path: str, body: Any, query: Any, **options: Any) -> Body:
        if (error := self._refuse()) is not None:
            raise error
        self.in_flight += 1
        try:
            answer = await super()._call(method, path, body, query, **options)
        finally:
            self.in_flight -= 1
        for item in answer.get("items") or ():
            self._times.replace(item)
        self._times.replace(answer)
        if method in WRITES and ("dryRun", "All") not in query:
            self._record(method, body, answer)
        return answer

    def _record(self, method: str, body: Any, answer: Body) -> None:
        meta, kind = answer.get("metadata") or {}, str(answer.get("kind", ""))
        if method == "DELETE" and kind == "Status":
            kind = DETAIL_KINDS.get((answer.get("details") or {}).get("kind", ""), "")
            self._delivery.delete(kind, body["preconditions"]["uid"])
        elif (
            meta.get("deletionTimestamp") and not meta.get("finalizers") and not meta.get("deletionGracePeriodSeconds")
        ):
            self._delivery.delete(kind, meta["uid"])
        elif "uid" in meta:
            self._delivery.write(kind, answer)

    async def watch(self, kind: str, *arguments: Any, **options: Any) -> AsyncIterator[tuple[str, Body]]:
        """Yield the changes, with the times of this process."""
        if (error := self._refuse()) is not None:
            raise error
        async for change, body in super().watch(kind, *arguments, **options):
            yield change, self._times.replace(body)


DETAIL_KINDS = {plural: kind for kind, (_, plural) in client_module.KINDS.items() if kind not in ("Event", "Warning")}
"""Plural -> kind, of the answers to deletions."""


async def keep_connected(api: aio.ApiClient) -> None:
    """Keep watches and connections open, however far the clock jumps."""
    await KubeClient(api).find("Node", "", "none")  # the first request creates the pool of connections
    client_module.SILENCE_SECONDS = float(ENDLESS)
    client_module.WATCH_SECONDS = 86_400
    connections: Any = api.rest_client.pool_manager
    connections.connector._keepalive_timeout = float(ENDLESS)


def unavailable() -> ApiException:
    """Return the error of an API server that is overloaded."""
    return ApiException(status=503, reason="the API server is unavailable")


async def settle(clock: FakeClock, is_busy: Callable[[], bool]) -> None:
    """Let everything happen that is due now, then advance to the next timer."""
    calm, waited = 0, 0
    while calm < CALM_ROUNDS:
        if is_busy():
            calm, waited = 0, waited + 1
            if waited == LONGEST_WAIT:
                raise TimeoutError("the API server has not delivered all writes")
            await _breathe()
        else:
            calm += 1
            await asyncio.sleep(0)
    clock.jump(asyncio.get_running_loop())
    await asyncio.sleep(0)


async def _breathe() -> None:
    """Wait for input from the API server, 1 ms of real time at most."""
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(0.001, over.set)
    await over.wait()
