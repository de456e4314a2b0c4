"""Decides which trajectory runs in which engine, and when (paper §3.2).

`Scheduler` is pure: no clock, no I/O. With `Reserve`, a trajectory reserves the KV cache of its prompt and its whole
response budget in one engine, and keeps it over all its turns. The cache never overflows, so nothing is evicted and
computed again. When a trajectory finishes, the next one starts. `Static` is the baseline: a fixed number per engine.
Trajectories start in order of arrival. A later one never overtakes one that does not fit yet, so none starves.
`AdmissionQueue` wraps the scheduler for asyncio.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class _EngineCapacity(Generic[Key]):
    capacity: int
    block: int
    used: int = 0
    running: dict[Key, int] = field(default_factory=dict)


class Scheduler(Generic[Key]):
    """Assigns keys to engines. Methods change the state; `assign` returns the keys that start now."""

    def __init__(self, *, policy: Literal["Static", "Reserve"], max_in_flight: int) -> None:
        """`max_in_flight`: largest number of trajectories per engine."""
        self._policy = policy
        self._max_in_flight = max_in_flight
        self._engines: dict[str, _EngineCapacity[Key]] = {}
        self._waiting: list[tuple[int, Key]] = []
        self._order: dict[Key, int] = {}
        self._tokens: dict[Key, int] = {}
        self._engine_of: dict[Key, str] = {}
        self._count = 0

    @property
    def engines(self) -> list[str]:
        """Engines that accept trajectories."""
        return list(self._engines)

    @property
    def waiting(self) -> list[Key]:
        """Keys that wait, in the order in which they start."""
        return [key for _, key in sorted(self._waiting, key=lambda entry: entry[0])]

    def running(self, engine: str) -> dict[Key, int]:
        """Return the keys in an engine with their reserved tokens."""
        return dict(self._engines[engine].running)

    def add_engine(self, engine: str, *, capacity: int, block: int = 1) -> None:
        """Add an engine with `capacity` tokens of KV cache, allocated in blocks of `block` tokens."""
        if engine in self._engines:
            raise ValueError(f"engine {engine} is already in use")
        self._engines[engine] = _EngineCapacity(capacity=capacity, block=block)

    def remove_engine(self, engine: str) -> list[Key]:
        """Remove an engine and return its keys, which wait again at their old position; an unknown engine has none."""
        removed = self._engines.pop(engine, None)
        if removed is None:
            return []
        for key in removed.running:
            del self._engine_of[key]
            heapq.heappush(self._waiting, (self._order[key], key))
        return list(removed.running)

    def submit(self, key: Key, *, tokens: int) -> None:
        """Queue a trajectory that needs at most `tokens` tokens, prompt included."""
        if key in self._order:
            raise ValueError(f"{key!r} is already submitted")
        self._order[key] = self._count
        self._tokens[key] = tokens
        heapq.heappush(self._waiting, (self._count, key))
        self._count += 1

    def finish(self, key: Key) -> None:
        """Remove a trajectory, waiting or running."""
        del self._order[key], self._tokens[key]
        engine = self._engine_of.pop(key, None)
        if engine is None:
            self._waiting = [entry for entry in self._waiting if entry[1] != key]
            heapq.heapify(self._waiting)
        else:
            load = self._engines[engine]
            load.used -= load.running.pop(key)

    def assign(self) -> list[tuple[Key, str]]:
        """Assign waiting keys to engines, and return each (key, engine); the caller must let them run."""
        assigned: list[tuple[Key, str]] = []
        while self._waiting:
            key = self._waiting[0][1]
            name = self._best_engine(self._tokens[key])
            if name is None:
                break
            heapq.heappop(self._waiting)
            engine = self._engines[name]
            engine.running[key] = _blocks(self._tokens[key], engine.block)
            engine.used += engine.running[key]
            self._engine_of[key] = name
            assigned.append((key, name))
        return assigned

    def _best_engine(self, tokens: int) -> str | None:
        """Return the engine with the most free capacity among those that can take `tokens` tokens; None if none can."""
        best: tuple[int, int, str] | None = None
        for name, engine in self._engines.items():
            count = len(engine.running)
            free = engine.capacity - engine.used
            if count >= self._max_in_flight:
                continue
            if self._policy == "Reserve" and _blocks(tokens, engine.block) > free:
                continue
            rank = (free if self._policy == "Reserve" else 0, -count, name)
            if best is None or rank[:2] > best[:2]:
                best = rank
        return best[2] if best else None


class EngineSlot:
    """The slot of one trajectory: it waits for an engine, keeps it, and waits again when the engine is lost."""

    __slots__ = ("_future", "_queue", "request")

    def __init__(self, queue: AdmissionQueue) -> None:
        self._queue = queue
        self._future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.request: asyncio.Future[Any] | None = None
        """The request in the engine; cancelled when the engine is lost."""

    async def wait_for_engine(self) -> str:
        """Wait for an engine and return it. Raises the error of `AdmissionQueue.fail_waiting`."""
        return await self._future

    def release(self) -> None:
        """Release the slot: the trajectory has finished."""
        self._queue.release(self)

    def _assign(self, engine: str) -> None:
        if not self._future.done():
            self._future.set_result(engine)

    def _unassign(self) -> None:
        self._future = asyncio.get_running_loop().create_future()
        if self.request is not None:
            self.request.cancel()

    def _fail(self, error: Exception) -> None:
        if not self._future.done():
            self._future.set_exception(error)
            self._future.exception()  # avoid a warning if nothing awaits this slot


class AdmissionQueue:
    """The scheduler for asyncio: creates slots, and assigns engines to them on every change."""

    def __init__(self, *, policy: Literal["Static", "Reserve"], max_in_flight: int) -> None:
        self._scheduler: Scheduler[EngineSlot] = Scheduler(policy=policy, max_in_flight=max_in_flight)

    @property
    def engines(self) -> list[str]:
        """Engines that accept trajectories now."""
        return self._scheduler.engines

    def request_slot(self, *, tokens: int) -> EngineSlot:
        """Queue a trajectory that needs at most `tokens` tokens of KV cache, prompt included."""
        slot = EngineSlot(self)
        self._scheduler.submit(slot, tokens=tokens)
        self._assign_slots()
        return slot

    def release(self, slot: EngineSlot) -> None:
        """Release a slot; the next trajectory starts immediately."""
        self._scheduler.finish(slot)
        self._assign_slots()

    def add_engine(self, engine: str, *, capacity: int, block: int) -> None:
        """Add an engine that is ready."""
        self._scheduler.add_engine(engine, capacity=capacity, block=block)
        self._assign_slots()

    def remove_engine(self, engine: str) -> None:
        """Remove a lost engine: its requests are cancelled, and its slots wait for another engine."""
        for slot in self._scheduler.remove_engine(engine):
            slot._unassign()
        self._assign_slots()

    def fail_waiting(self, error: Exception) -> None:
        """Raise `error` in every waiting slot."""
        for slot in self._scheduler.waiting:
            slot._fail(error)

    def _assign_slots(self) -> None:
        for slot, engine in self._scheduler.assign():
            slot._assign(engine)


def _blocks(tokens: int, block: int) -> int:
    """Round tokens up to whole blocks."""
    return -(-tokens // block) * block
