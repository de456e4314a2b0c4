"""A queue of keys: each key is queued at most once, is in at most one worker, and is retried after a failure.

watch.py and informer.py add the keys of changed jobs; the workers of reconcile.py take them. Level-triggered: the queue
holds keys, not events. Urgent keys are taken first, so that a failure is not reported after the changes of all other
jobs; a worker that takes only urgent keys is free when the others are busy.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

FIRST_RETRY_SECONDS = 0.2
LONGEST_RETRY_SECONDS = 60.0


class WorkQueue(Generic[K]):
    """`add` a key; a worker calls `take`, and then `done`."""

    def __init__(self) -> None:
        self._urgent: dict[K, None] = {}
        self._ordinary: dict[K, None] = {}
        """Waiting keys, the first one first."""
        self._taken: set[K] = set()
        self._again: dict[K, tuple[float, bool]] = {}
        """Taken key that was added again -> when first, and whether it is urgent."""
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._held_until: dict[K, float] = {}
        self._since: dict[K, float] = {}
        """Key -> time at which it was first queued after it was last taken."""
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._has_urgent, self._has_any = asyncio.Event(), asyncio.Event()

    def __len__(self) -> int:
        """Return the number of keys that wait for a worker."""
        return len(self._urgent) + len(self._ordinary)

    @property
    def busy(self) -> bool:
        """Whether a key waits for a worker, or a worker has one."""
        return bool(self._urgent or self._ordinary or self._taken)

    def waited_since(self, key: K) -> float:
        """Return when a taken key was first queued, by the monotonic clock."""
        return self._since.get(key, time.monotonic())

    async def close(self) -> None:
        """Give no more keys to workers. Return when no worker has a key."""
        self._closed = True
        await self._idle.wait()

    def add(self, key: K, *, urgent: bool = False) -> None:
        """Queue the key, unless it is queued already, or held after a failure. A queued key can become urgent."""
        if key in self._held_until and (wait := self._held_until[key] - asyncio.get_running_loop().time()) > 0:
            self._add_within(key, wait)
        elif key in self._taken:
            since, was_urgent = self._again.get(key, (time.monotonic(), False))
            self._again[key] = since, urgent or was_urgent
        elif key not in self._urgent:
            if key not in self._ordinary:
                self._since[key] = time.monotonic()
            if urgent:
                self._ordinary.pop(key, None)
            (self._urgent if urgent else self._ordinary)[key] = None
            self._signal()

    def add_after(self, key: K, seconds: float) -> None:
        """Queue the key after a delay; replaces an earlier timer of the key."""
        self.drop_timer(key)
        self._timers[key] = asyncio.get_running_loop().call_later(max(0.0, seconds), self._fire, key)

    def _add_within(self, key: K, seconds: float) -> None:
        timer = self._timers.get(key)
        if timer is None or timer.when() > asyncio.get_running_loop().time() + seconds:
            self.add_after(key, seconds)

    def drop_timer(self, key: K) -> None:
        """Cancel the timer of `add_after`."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def _fire(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    async def take(self, *, urgent_only: bool = False) -> K:
        """Return the next key; no other worker gets it until `done`."""
        while not (keys := self._urgent or ({} if urgent_only else self._ordinary)):
            await (self._has_urgent if urgent_only else self._has_any).wait()
        if self._closed:
            await asyncio.Event().wait()
        key = next(iter(keys))
        del keys[key]
        self._taken.add(key)
        self._idle.clear()
        self._signal()
        return key

    def _signal(self) -> None:
        """Let workers wait, or continue."""
        for event, keys in ((self._has_urgent, self._urgent), (self._has_any, self._urgent or self._ordinary)):
            if keys:
                event.set()
            else:
                event.clear()

    def done(self, key: K, *, failed: bool = False, after: float = 0.0) -> None:
        """Release the key; a failed one is queued again with exponential backoff, and not before `after` seconds."""
        self._taken.discard(key)
        self._since.pop(key, None)
        if not self._taken:
            self._idle.set()
        if failed:
            if after:
                self._held_until[key] = asyncio.get_running_loop().time() + after
            self._failures[key] = failures = self._failures.get(key, 0) + 1
            wait = min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** min(failures, 12))
            self._add_within(key, max(after, wait * (0.5 + random.random() / 2)))
        else:
            self._failures.pop(key, None)
            self._held_until.pop(key, None)
        if (again := self._again.pop(key, None)) is not None:
            since, urgent = again
            self.add(key, urgent=urgent)
            if key in self._since:
                self._since[key] = since
