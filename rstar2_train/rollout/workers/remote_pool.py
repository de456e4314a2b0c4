"""The engine pool as a rollout worker sees it: the orchestrator decides, the requests go to the engines.

`RemotePool` takes the place of `EnginePool` in a rollout's context, and `RemoteQueue` that of its admission queue. Each
slot of a worker has a counterpart in the orchestrator (`worker_process.HostedSlot`).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from rstar2_train.inference.admission import EngineSlot
from rstar2_train.inference.engine_errors import EngineUnavailable
from rstar2_train.inference.engine_protocols import Connect, PooledClient
from rstar2_train.inference.engine_session import EngineSession
from rstar2_train.rollout.workers.messages import (
    EngineFailed,
    KnownVersions,
    SlotAssigned,
    SlotFailed,
    SlotMoved,
    SlotReleased,
    SlotRequested,
    SlotUnassigned,
    ToOrchestrator,
    TurnStarted,
    TurnStarting,
    VersionKnown,
    VersionPushed,
)
from rstar2_train.utils.pacer import Pacer

Send = Callable[[ToOrchestrator], None]


class RemoteQueue:
    """The admission queue of a worker: it passes on what its slots report, and what the orchestrator decides."""

    def __init__(self, send: Send) -> None:
        self.pacer = Pacer()
        """Spreads the requests of this process."""
        self._send = send
        self._numbers = itertools.count()
        self._slots: dict[int, EngineSlot] = {}
        self._number_of: dict[EngineSlot, int] = {}
        self._turns: dict[int, asyncio.Future[None]] = {}
        """Turns whose engine the orchestrator has not decided yet, by slot."""

    def request_slot(self, *, tokens: int, prompt_tokens: int = 0, group: Hashable = None) -> EngineSlot:
        """Queue a trajectory, as `AdmissionQueue.request_slot`."""
        slot, number = EngineSlot(self), next(self._numbers)
        self._slots[number], self._number_of[slot] = slot, number
        self._send(SlotRequested(number, tokens, prompt_tokens, group))
        return slot

    async def start_turn(self, slot: EngineSlot, context: int) -> None:
        """Report the start of a turn; return when its engine is decided."""
        number = self._number_of[slot]
        self._turns[number] = started = asyncio.get_running_loop().create_future()
        self._send(TurnStarting(number, context))
        await started

    def release(self, slot: EngineSlot, *, tokens: int | None = None) -> None:
        """Release a slot, as `AdmissionQueue.release`."""
        number = self._number_of.pop(slot)
        del self._slots[number]
        self._turns.pop(number, None)
        self._send(SlotReleased(number, tokens))

    def handle(self, message: TurnStarted | SlotAssigned | SlotUnassigned | SlotMoved | SlotFailed) -> None:
        """Apply a decision of the orchestrator; without effect on a slot that is released meanwhile."""
        slot = self._slots.get(message.slot)
        if slot is None:
            return
        match message:
            case SlotAssigned():
                slot.assign(message.engine)
            case SlotUnassigned():
                slot.is_displaced = slot.is_displaced or message.is_displaced
                slot.unassign()
            case SlotMoved():
                slot.move(message.engine)
            case SlotFailed():
                slot.fail(EngineUnavailable(message.error))
            case TurnStarted():
                started = self._turns.pop(message.slot, None)
                if started is not None and not started.done():
                    started.set_result(None)


class RemotePool:
    """The engines of a job in a worker."""

    max_model_len = None
    """Unknown here: the orchestrator has checked the lengths."""

    def __init__(self, send: Send, *, token: str, session: EngineSession, connect: Connect) -> None:
        """`token`: bearer token of the engines; `connect`: creates an engine's client."""
        self.admission = RemoteQueue(send)
        self.version: str | None = None
        self._numbers: Mapping[str, int] = {}
        self._send = send
        self._connect: Callable[[str], PooledClient] = lambda url: connect(url, token=token, session=session)
        self._clients: dict[str, PooledClient] = {}

    def push_number(self, version: str) -> int | None:
        """Return the number of the last push of a version, from 1; None for a version that was never pushed."""
        return self._numbers.get(version)

    def client(self, url: str) -> PooledClient:
        """Return the client of an engine."""
        if url not in self._clients:
            self._clients[url] = self._connect(url)
        return self._clients[url]

    def mark_failed(self, url: str, error: Exception) -> None:
        """Report a failed request: the orchestrator takes the engine out of use."""
        self._send(EngineFailed(url, str(error)))

    def handle(self, message: Any) -> bool:
        """Apply a message of the orchestrator; return whether it is one for the pool."""
        match message:
            case KnownVersions():
                self.version, self._numbers = message
            case VersionPushed(version, number):
                self.version, self._numbers = version, {**self._numbers, version: number}
                self._send(VersionKnown(number))
            case TurnStarted() | SlotAssigned() | SlotUnassigned() | SlotMoved() | SlotFailed():
                self.admission.handle(message)
            case _:
                return False
        return True
