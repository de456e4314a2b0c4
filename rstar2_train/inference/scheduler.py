"""Decides which trajectory enters which engine, and when (paper §3.2).

Pure: no clock, no I/O. `Reserve` gives a trajectory room for its prompt and its whole response budget in one engine's
KV cache and holds it over all its turns, so that the cache never overflows and nothing is evicted and computed again;
the moment one ends, the next enters. `Static` is the baseline: a fixed number in each engine. Trajectories enter in
the order they came; one that fits nowhere yet is not overtaken, so none starves. `AdmissionQueue` wraps it for asyncio.
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
    """Which key runs where. Every method is one decision; `place` says who enters now."""

    def __init__(self, *, policy: Literal["Static", "Reserve"], max_in_flight: int) -> None:
        """`max_in_flight`: most trajectories in one engine."""
        self._policy = policy
        self._max_in_flight = max_in_flight
        self._engines: dict[str, _EngineCapacity[Key]] = {}
        self._waiting: list[tuple[int, Key]] = []
        self._order: dict[Key, int] = {}
        self._tokens: dict[Key, int] = {}
        self._place_of: dict[Key, str] = {}
        self._count = 0

    @property
    def engines(self) -> list[str]:
        """Engines that take trajectories."""
        return list(self._engines)

    @property
    def waiting(self) -> list[Key]:
        """Keys that wait, the next to enter first."""
        return [key for _, key in sorted(self._waiting, key=lambda entry: entry[0])]

    def running(self, engine: str) -> dict[Key, int]:
        """Keys in an engine, with the tokens that are reserved for each."""
        return dict(self._engines[engine].running)

    def add_engine(self, engine: str, *, capacity: int, block: int = 1) -> None:
        """An engine is ready: `capacity` tokens of KV cache, given out in blocks of `block` tokens."""
        if engine in self._engines:
            raise ValueError(f"engine {engine} is already in use")
        self._engines[engine] = _EngineCapacity(capacity=capacity, block=block)

    def remove_engine(self, engine: str) -> list[Key]:
        """An engine is lost: its keys wait again, where they stood. Returns them; unknown engines have none."""
        lost = self._engines.pop(engine, None)
        if lost is None:
            return []
        for key in lost.running:
            del self._place_of[key]
            heapq.heappush(self._waiting, (self._order[key], key))
        return list(lost.running)

    def submit(self, key: Key, *, tokens: int) -> None:
        """A trajectory wants to run, and may need so many tokens, prompt included."""
        if key in self._order:
            raise ValueError(f"{key!r} is already submitted")
        self._order[key] = self._count
        self._tokens[key] = tokens
        heapq.heappush(self._waiting, (self._count, key))
        self._count += 1

    def finish(self, key: Key) -> None:
        """A trajectory ended, or was given up, wherever it was."""
        del self._order[key], self._tokens[key]
        place = self._place_of.pop(key, None)
        if place is None:
            self._waiting = [entry for entry in self._waiting if entry[1] != key]
            heapq.heapify(self._waiting)
        else:
            engine = self._engines[place]
            engine.used -= engine.running.pop(key)

    def place(self) -> list[tuple[Key, str]]:
        """Who enters which engine now; the caller must let them run."""
        placed: list[tuple[Key, str]] = []
        while self._waiting:
            key = self._waiting[0][1]
            name = self._roomiest(self._tokens[key])
            if name is None:
                break
            heapq.heappop(self._waiting)
            engine = self._engines[name]
            engine.running[key] = _blocks(self._tokens[key], engine.block)
            engine.used += engine.running[key]
            self._place_of[key] = name
            placed.append((key, name))
        return placed

    def _roomiest(self, tokens: int) -> str | None:
        """The engine with most room among those that can take so many tokens; None when none can."""
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


class Ticket:
    """One trajectory's place: waits for an engine, keeps it, waits again when the engine is lost."""

    __slots__ = ("_admission", "_future", "request")

    def __init__(self, admission: AdmissionQueue) -> None:
        self._admission = admission
        self._future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.request: asyncio.Future[Any] | None = None
        """What it is doing in its engine now; cancelled when the engine is lost."""

    async def engine(self) -> str:
        """The engine that it may use. Raises what `AdmissionQueue.give_up` was given."""
        return await self._future

    def leave(self) -> None:
        """The trajectory ended."""
        self._admission.leave(self)

    def _place(self, engine: str) -> None:
        if not self._future.done():
            self._future.set_result(engine)

    def _displace(self) -> None:
        self._future = asyncio.get_running_loop().create_future()
        if self.request is not None:
            self.request.cancel()

    def _fail(self, error: Exception) -> None:
        if not self._future.done():
            self._future.set_exception(error)
            self._future.exception()  # a ticket that nobody waits on must not warn


class AdmissionQueue:
    """The scheduler for asyncio: hands out tickets, and places them whenever something changes."""

    def __init__(self, *, policy: Literal["Static", "Reserve"], max_in_flight: int) -> None:
        self._scheduler: Scheduler[Ticket] = Scheduler(policy=policy, max_in_flight=max_in_flight)

    @property
    def engines(self) -> list[str]:
        """Engines that take trajectories now."""
        return self._scheduler.engines

    def enter(self, *, tokens: int) -> Ticket:
        """Queue a trajectory that may need so many tokens of KV cache, prompt included."""
        ticket = Ticket(self)
        self._scheduler.submit(ticket, tokens=tokens)
        self._pump()
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """A trajectory ended: the next one enters at once."""
        self._scheduler.finish(ticket)
        self._pump()

    def add_engine(self, engine: str, *, capacity: int, block: int) -> None:
        """An engine is ready."""
        self._scheduler.add_engine(engine, capacity=capacity, block=block)
        self._pump()

    def remove_engine(self, engine: str) -> None:
        """An engine is lost: what runs in it is cancelled there and waits for another."""
        for ticket in self._scheduler.remove_engine(engine):
            ticket._displace()
        self._pump()

    def give_up(self, error: Exception) -> None:
        """Fail everyone who waits."""
        for ticket in self._scheduler.waiting:
            ticket._fail(error)

    def _pump(self) -> None:
        for ticket, engine in self._scheduler.place():
            ticket._place(engine)


def _blocks(tokens: int, block: int) -> int:
    """Tokens rounded up to whole blocks."""
    return -(-tokens // block) * block
