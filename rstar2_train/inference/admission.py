"""Admission for asyncio: each trajectory has a slot, which waits for an engine, keeps it, and moves with it.

    rollout.generation --> EngineSlot <--> AdmissionQueue --> scheduler        in the orchestrator
                               '--------> RemoteQueue ~~~~~~> AdmissionQueue   in a rollout worker (rollout/workers)

The scheduler decides; `AdmissionQueue` reports its decisions to the slots. A slot is the same in every process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Any, Protocol

from rstar2_train.inference.engine_load import EngineLoad
from rstar2_train.inference.policies import PolicyName
from rstar2_train.inference.scheduler import Scheduler
from rstar2_train.utils.pacer import Pacer


class SlotQueue(Protocol):
    """Assigns engines to slots."""

    @property
    def pacer(self) -> Pacer:
        """Spreads the requests of slots that get an engine together."""

    def request_slot(self, *, tokens: int, prompt_tokens: int = 0, group: Hashable = None) -> EngineSlot:
        """Queue a trajectory that needs at most `tokens` tokens of KV cache, prompt included; `group`: its prompt."""

    async def start_turn(self, slot: EngineSlot, context: int) -> None:
        """Report the start of a turn; its engine can change if the policy moves trajectories."""

    def release(self, slot: EngineSlot, *, tokens: int | None = None) -> None:
        """Release a slot. `tokens`: length of the trajectory with its prompt, if it finished."""


class EngineSlot:
    """The slot of one trajectory: it waits for an engine, keeps it, and waits again when the engine is lost."""

    __slots__ = ("_future", "_queue", "is_displaced", "requesting")

    def __init__(self, queue: SlotQueue) -> None:
        self._queue = queue
        self._future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.requesting: asyncio.Task[Any] | None = None
        """The task that awaits a request in the engine; cancelled, and then None, when the engine is lost."""
        self.is_displaced = False
        """Whether the trajectory was moved away from a full or lagging engine since the last failure."""

    async def wait_for_engine(self) -> str:
        """Wait for an engine and return it. Raises the error of `AdmissionQueue.fail_waiting`."""
        return await self._future

    async def start_turn(self, context: int) -> None:
        """Report that a turn starts with `context` tokens; the policy can assign another engine to it."""
        await self._queue.start_turn(self, context)

    def release(self, *, tokens: int | None = None) -> None:
        """Release the slot. `tokens`: length of the trajectory with its prompt, if it finished."""
        self._queue.release(self, tokens=tokens)

    def assign(self, engine: str) -> None:
        """Let the trajectory run in an engine."""
        if not self._future.done():
            self._future.set_result(engine)

    def unassign(self) -> None:
        """Cancel the request: the engine is lost, or the policy moves the trajectory away."""
        self._future = asyncio.get_running_loop().create_future()
        task, self.requesting = self.requesting, None
        if task is not None:
            task.cancel()

    def move(self, engine: str) -> None:
        """Let the turn that starts now run in another engine."""
        if self._future.done() and not self._future.cancelled() and self._future.result() != engine:
            self._future = asyncio.get_running_loop().create_future()
            self._future.set_result(engine)

    def fail(self, error: Exception) -> None:
        """Raise `error` in a wait for an engine."""
        if not self._future.done():
            self._future.set_exception(error)
            self._future.exception()  # avoid a warning if nothing awaits this slot


class AdmissionQueue:
    """The scheduler for asyncio: creates slots, and assigns engines to them on every change."""

    def __init__(self, *, policy: PolicyName, max_in_flight: int) -> None:
        self._scheduler: Scheduler[EngineSlot] = Scheduler(policy=policy, max_in_flight=max_in_flight)
        self.pacer = Pacer()
        """Spreads the requests of slots that get an engine together: each costs a millisecond to encode."""
        self._has_new = False
        """Whether slots were queued in this iteration of the event loop."""

    @property
    def engines(self) -> list[str]:
        """Engines that accept trajectories now."""
        return self._scheduler.engines

    def request_slot(self, *, tokens: int, prompt_tokens: int = 0, group: Hashable = None) -> EngineSlot:
        """Queue a trajectory that needs at most `tokens` tokens of KV cache, prompt included; `group`: its prompt."""
        slot = EngineSlot(self)
        self.submit(slot, tokens=tokens, prompt_tokens=prompt_tokens, group=group)
        return slot

    def submit(self, slot: EngineSlot, *, tokens: int, prompt_tokens: int, group: Hashable) -> None:
        """Queue a slot; otherwise as `request_slot`. The policy chooses among all slots that come together."""
        self._scheduler.submit(slot, tokens=tokens, prompt_tokens=prompt_tokens, group=group)
        if not self._has_new:
            self._has_new = True
            asyncio.get_running_loop().call_soon(self._assign_slots)

    async def start_turn(self, slot: EngineSlot, context: int) -> None:
        """Report the start of a turn; its engine can change if the policy moves trajectories."""
        engine = self._scheduler.next_turn(slot, context=context)
        if engine is not None:
            slot.move(engine)

    def observe(self, engine: str, load: EngineLoad) -> None:
        """Report live figures of an engine. Trajectories that leave it continue in another engine, or wait for one."""
        for slot in self._scheduler.observe(engine, load):
            slot.is_displaced = True
            slot.unassign()
        for slot, target in self._scheduler.relieve(engine):
            slot.is_displaced = True
            slot.unassign()
            slot.assign(target)
        self._assign_slots()

    def release(self, slot: EngineSlot, *, tokens: int | None = None) -> None:
        """Release a slot; the next trajectory starts immediately. `tokens`: as in `EngineSlot.release`."""
        self._scheduler.finish(slot, tokens=tokens)
        self._assign_slots()

    def add_engine(self, engine: str, *, capacity: int, block: int) -> None:
        """Add an engine that is ready."""
        self._scheduler.add_engine(engine, capacity=capacity, block=block)
        self._assign_slots()

    def hold_engine(self, engine: str) -> None:
        """Let the slots of an engine keep it, and assign no new slot to it, until it is added again."""
        self._scheduler.hold_engine(engine)

    def remove_engine(self, engine: str) -> None:
        """Remove a lost engine: its requests are cancelled, and its slots wait for another engine."""
        for slot in self._scheduler.remove_engine(engine):
            slot.unassign()
        self._assign_slots()

    def fail_waiting(self, error: Exception) -> None:
        """Raise `error` in every waiting slot."""
        for slot in self._scheduler.waiting:
            slot.fail(error)

    def _assign_slots(self) -> None:
        self._has_new = False
        for slot, engine in self._scheduler.assign():
            slot.assign(engine)
