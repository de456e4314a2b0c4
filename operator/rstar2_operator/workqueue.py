"""A queue of keys: each key is queued at most once, is in at most one worker, and is retried after a failure.

watch.py adds the keys of changed jobs; the workers of reconcile.py take them. Level-triggered: the queue holds keys,
not events.
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
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._waiting: set[K] = set()
        self._taken: set[K] = set()
        self._again: dict[K, float] = {}
        """Taken key that was added again -> when."""
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._held_until: dict[K, float] = {}
        self._since: dict[K, float] = {}
        """Key -> time at which it was first queued after it was last taken."""
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        """Return the number of keys that wait for a worker."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether a key waits for a worker, or a worker has one."""
        return bool(self._waiting or self._taken)

    def waited_since(self, key: K) -> float:
        """Return when a taken key was first queued, by the monotonic clock."""
        return self._since.get(key, time.monotonic())

    async def close(self) -> None:
        """Give no more keys to workers. Return when no worker has a key."""
        self._closed = True
        await self._idle.wait()

    def add(self, key: K) -> None:
        """Queue the key, unless it is queued already, or held after a failure."""
        if key in self._held_until and (wait := self._held_until[key] - asyncio.get_running_loop().time()) > 0:
            self._add_within(key, wait)
        elif key in self._taken:
            self._again.setdefault(key, time.monotonic())
        elif key not in self._waiting:
            self._waiting.add(key)
            self._since[key] = time.monotonic()
            self._ready.put_nowait(key)

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

    async def take(self) -> K:
        """Return the next key; no other worker gets it until `done`."""
        key = await self._ready.get()
        if self._closed:
            await asyncio.Event().wait()
        self._waiting.discard(key)
        self._taken.add(key)
        self._idle.clear()
        return key

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
        if (since := self._again.pop(key, None)) is not None:
            self.add(key)
            if key in self._waiting:
                self._since[key] = since
