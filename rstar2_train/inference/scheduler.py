"""Decides which trajectory runs in which engine, and when (paper §3.2).

`Scheduler` is pure: no I/O, and its clock is an argument. It keeps the queue and the engines; a policy (`policies.py`)
decides. With `Reserve` a trajectory keeps its engine over all its turns, and trajectories start in order
of arrival: a later one never overtakes one that does not fit yet, so none starves. With `Graded` a trajectory can start
before an earlier one, by a bounded number of arrivals. `admission.py` wraps the scheduler for asyncio.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar, cast

from rstar2_train.inference.engine_load import EngineLoad, LagDetector
from rstar2_train.inference.policies import EngineState, PolicyName, QueuedTrajectory, SchedulingPolicy, make_policy

Key = TypeVar("Key", bound=Hashable)
RANK_SECONDS = 5.0
"""Seconds between two rankings of all waiting trajectories."""
_RATE_WEIGHT = 0.1
"""Weight of the newest turn in an engine's tokens per second."""


class _WaitingWork:
    """The waiting trajectories: one queue per group, in order of arrival; the policy ranks the heads of the groups."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._policy = policy
        self._groups: dict[Hashable, list[tuple[int, QueuedTrajectory]]] = {}
        self._heads: list[tuple[float, int, Hashable]] = []
        """Rank, order and group of each head; also entries that are no longer valid."""
        self._ranks: dict[Hashable, tuple[float, int]] = {}
        """Valid rank and order of the head of each group."""

    def works(self) -> list[QueuedTrajectory]:
        """Return all waiting trajectories, in order of arrival."""
        return [work for _, work in sorted(entry for queue in self._groups.values() for entry in queue)]

    def __bool__(self) -> bool:
        return bool(self._groups)

    def push(self, work: QueuedTrajectory) -> None:
        queue = self._groups.setdefault(work.group, [])
        heapq.heappush(queue, (work.order, work))
        self.rank(work.group)

    def first(self) -> QueuedTrajectory:
        """Return the trajectory of the smallest rank."""
        while True:
            rank, order, group = self._heads[0]
            if self._ranks.get(group) == (rank, order):
                return self._groups[group][0][1]
            heapq.heappop(self._heads)

    def remove(self, work: QueuedTrajectory) -> None:
        queue = self._groups[work.group]
        if queue[0][1] is work:
            heapq.heappop(queue)
        else:
            queue.remove((work.order, work))
            heapq.heapify(queue)
        self.rank(work.group)

    def rank(self, group: Hashable) -> None:
        """Rank the head of a group again, after it changed or the policy learned about the group."""
        queue = self._groups.get(group)
        if not queue:
            self._groups.pop(group, None)
            self._ranks.pop(group, None)
            return
        order, work = queue[0]
        ranked = (self._policy.rank(work), order)
        if self._ranks.get(group) != ranked:
            self._ranks[group] = ranked
            heapq.heappush(self._heads, (*ranked, group))

    def rank_all(self) -> None:
        """Rank all heads again: trajectories that run make their groups look longer."""
        for group, queue in self._groups.items():
            order, work = queue[0]
            self._ranks[group] = (self._policy.rank(work), order)
        self._heads = [(*ranked, group) for group, ranked in self._ranks.items()]
        heapq.heapify(self._heads)


class Scheduler(Generic[Key]):
    """Assigns keys to engines. Methods change the state; `assign` returns the keys that start now."""

    def __init__(
        self,
        *,
        policy: PolicyName | SchedulingPolicy,
        max_in_flight: int = 256,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_in_flight`: largest number of trajectories per engine, for a policy that is given by its name."""
        self.policy = make_policy(policy, max_in_flight=max_in_flight) if isinstance(policy, str) else policy
        self._clock = clock
        self._engines: dict[str, EngineState] = {}
        self._held: set[str] = set()
        self._lag = LagDetector()
        self._waiting = _WaitingWork(self.policy)
        self._works: dict[Key, QueuedTrajectory] = {}
        self._engine_of: dict[Key, EngineState] = {}
        self._count = 0
        self._ranked = clock()

    @property
    def engines(self) -> list[str]:
        """Engines that accept trajectories."""
        return [name for name in self._engines if name not in self._held]

    @property
    def waiting(self) -> list[Key]:
        """Keys that wait, in order of arrival."""
        return [cast(Key, work.key) for work in self._waiting.works()]

    def running(self, engine: str) -> dict[Key, int]:
        """Return the keys in an engine with the largest number of tokens that each can take, in whole blocks."""
        state = self._engines[engine]
        return {cast(Key, key): state.rounded(work.tokens) for key, work in state.running.items()}

    def add_engine(self, engine: str, *, capacity: int, block: int = 1) -> None:
        """Add an engine with `capacity` tokens of KV cache, allocated in blocks of `block` tokens.

        A held engine keeps its keys and accepts new ones again.
        """
        self._lag.remove(engine)
        if engine in self._held:
            self._held.remove(engine)
            return
        if engine in self._engines:
            raise ValueError(f"engine {engine} is already in use")
        self._engines[engine] = EngineState(engine, capacity, block)

    def hold_engine(self, engine: str) -> None:
        """Let an engine keep its keys, but assign no new one to it, until it is added again or removed."""
        if engine in self._engines:
            self._held.add(engine)

    def remove_engine(self, engine: str) -> list[Key]:
        """Remove an engine and return its keys, which wait again at their old position; an unknown engine has none."""
        state = self._engines.pop(engine, None)
        self._held.discard(engine)
        self._lag.remove(engine)
        return [] if state is None else [self._requeue(work) for work in list(state.running.values())]

    def submit(self, key: Key, *, tokens: int, prompt_tokens: int = 0, group: Hashable = None) -> None:
        """Queue a trajectory that needs at most `tokens` tokens, prompt included.

        `group`: the prompt that it samples. Trajectories of one group start in order of arrival.
        """
        if key in self._works:
            raise ValueError(f"{key!r} is already submitted")
        work = QueuedTrajectory(key, self._count, tokens, prompt_tokens, group)
        self._works[key] = work
        self._count += 1
        self._waiting.push(work)

    def next_turn(self, key: Key, *, context: int) -> str | None:
        """Report that a running trajectory starts a turn with `context` tokens, or continues one in another engine.

        Return its engine, old or new; None for a trajectory that waits.
        """
        work, engine = self._works[key], self._engine_of.get(key)
        if engine is None:
            return None
        now = self._clock()
        if work.in_turn and now > work.since:
            rate = max(0, context - work.context) / (now - work.since)
            engine.rate = rate if not engine.rate else engine.rate + _RATE_WEIGHT * (rate - engine.rate)
        work.context, work.since, work.in_turn = context, now, True
        if not self._waiting:
            candidates = [engine, *(state for state in self._accepting() if state is not engine)]
            better = self.policy.moved(work, engine, candidates, now=now)
            if better is not engine:
                self._leave(work)
                self._enter(work, better)
                work.in_turn = True
                engine = better
        return engine.name

    def observe(self, engine: str, load: EngineLoad) -> list[Key]:
        """Report live figures of an engine. Return the keys that must leave it now; they wait again."""
        state = self._engines.get(engine)
        if state is None:
            return []
        state.load = load
        self.policy.observed(state, now=self._clock())
        self._lag.observe(engine, load, now=self._clock())
        if self._clock() - self._ranked >= RANK_SECONDS:
            self._ranked = self._clock()
            self._waiting.rank_all()
        return [self._requeue(work) for work in self.policy.displaced(state, now=self._clock())]

    def relieve(self, engine: str) -> list[tuple[Key, str]]:
        """Move the younger half of the trajectories of an engine that lags, as far as others have space for them.

        Return each (key, new engine). Call it after `observe`.
        """
        state, now = self._engines.get(engine), self._clock()
        if state is None or state in (accepting := self._accepting()):
            return []
        moved: list[tuple[Key, str]] = []
        waiting = self._waiting_count
        for work in state.youngest(now)[: (len(state.running) + 1) // 2]:
            self._leave(work)
            target = self.policy.choose(work, accepting, now=now, waiting=waiting)
            self._enter(work, target or state)
            if target is None:
                break
            moved.append((cast(Key, work.key), target.name))
        return moved

    def finish(self, key: Key, *, tokens: int | None = None) -> None:
        """Remove a trajectory, waiting or running. `tokens`: its length with its prompt, if it finished."""
        work = self._works.pop(key)
        if key in self._engine_of:
            self._leave(work)
        else:
            self._waiting.remove(work)
        if tokens is not None:
            self.policy.finished(work, tokens)
            self._waiting.rank(work.group)

    def assign(self) -> list[tuple[Key, str]]:
        """Assign waiting keys to engines, and return each (key, engine); the caller must let them run."""
        assigned: list[tuple[Key, str]] = []
        while self._waiting:
            work = self._waiting.first()
            engine = self.policy.choose(work, self._accepting(), now=self._clock(), waiting=self._waiting_count)
            if engine is None:
                break
            self._enter(work, engine)
            self._waiting.remove(work)
            assigned.append((cast(Key, work.key), engine.name))
        return assigned

    @property
    def _waiting_count(self) -> int:
        return len(self._works) - len(self._engine_of)

    def _accepting(self) -> list[EngineState]:
        """Return the engines that take trajectories; one that lags does only if all lag."""
        states = [state for name, state in self._engines.items() if name not in self._held]
        now = self._clock()
        return [state for state in states if not self._lag.lags(state.name, now=now)] or states

    def _enter(self, work: QueuedTrajectory, engine: EngineState) -> None:
        work.since, work.in_turn = self._clock(), False
        engine.running[work.key] = work
        engine.reserved += engine.rounded(work.tokens)
        self._engine_of[cast(Key, work.key)] = engine
        self.policy.entered(work, engine, now=self._clock())

    def _leave(self, work: QueuedTrajectory) -> None:
        engine = self._engine_of.pop(cast(Key, work.key))
        del engine.running[work.key]
        engine.reserved -= engine.rounded(work.tokens)
        self.policy.left(work, engine, now=self._clock())

    def _requeue(self, work: QueuedTrajectory) -> Key:
        self._leave(work)
        self._waiting.push(work)
        return cast(Key, work.key)
