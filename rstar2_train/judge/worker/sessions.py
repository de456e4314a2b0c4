"""The sessions of one worker: reserved, live and ended.

A session is a process that stays alive between its cells. It occupies a slot of one sandbox and ends with that sandbox.
`pool` schedules the cells; this table records where each session lives and which cells wait for it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from rstar2_train.judge.sandbox.base import MAX_SESSIONS, Lane, Sandbox
from rstar2_train.judge.types import CallResult, QueuedCall
from rstar2_train.judge.worker.running_call import RunningCall


@dataclass(slots=True, eq=False)
class LiveSession:
    """A process in a slot of a sandbox's lane."""

    sandbox: Sandbox
    lane: Lane
    slot: int
    memory_bytes: int
    """Memory limit of one process of the session."""
    last_used: float = field(default_factory=time.monotonic)
    """End of the last cell (monotonic seconds)."""
    running: bool = True
    """Whether a cell is running."""
    cells: deque[RunningCall] = field(default_factory=deque)
    """Cells that wait, oldest first."""


class SessionTable:
    """All sessions of a worker, by id."""

    def __init__(self) -> None:
        self._live: dict[str, LiveSession] = {}
        self._reserved: set[str] = set()
        self._ended: set[str] = set()

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._live))

    def get(self, id: str) -> LiveSession | None:
        """Return the live session with this id, if any."""
        return self._live.get(id)

    def items(self) -> list[tuple[str, LiveSession]]:
        """Return ids and live sessions; the table may change while a caller iterates over them."""
        return list(self._live.items())

    def in_sandbox(self, sandbox: Sandbox) -> list[LiveSession]:
        """Return the live sessions of a sandbox."""
        return [session for session in self._live.values() if session.sandbox is sandbox]

    def reserve(self, id: str, *, sandboxes: int) -> bool:
        """Reserve a slot for a new session; return False if all slots of this number of sandboxes are taken."""
        if len(self._live) + len(self._reserved) >= MAX_SESSIONS * sandboxes:
            return False
        self._reserved.add(id)
        return True

    def release(self, id: str) -> None:
        """Cancel a reservation."""
        self._reserved.discard(id)

    def free_slot(self, sandbox: Sandbox) -> int | None:
        """Return the lowest free slot of a sandbox, or None if it has none."""
        free = set(range(MAX_SESSIONS)) - {session.slot for session in self.in_sandbox(sandbox)}
        return min(free, default=None)

    def open(self, call: QueuedCall, sandbox: Sandbox, lane: Lane, slot: int) -> None:
        """Turn the reservation of a session into a live session; `call` is its first cell."""
        self.release(call.session)
        self._live[call.session] = LiveSession(sandbox, lane, slot, memory_bytes=call.limits.memory_mib << 20)

    def end(self, id: str) -> None:
        """Remove a session and answer its waiting cells with `session_lost`."""
        session = self._live.pop(id)
        self._ended.add(id)
        while session.cells:
            running = session.cells.popleft()
            running.answer(session_lost(running.call))

    def end_in_sandbox(self, sandbox: Sandbox) -> None:
        """End all sessions of a sandbox that ended."""
        for id, session in self.items():
            if session.sandbox is sandbox:
                self.end(id)

    def idle_since(self, before: float) -> list[str]:
        """Return the sessions that have no cell and whose last one ended before this time (monotonic seconds)."""
        return [
            id
            for id, session in self._live.items()
            if session.last_used < before and not session.cells and not session.running
        ]

    def take_ended(self) -> set[str]:
        """Return the sessions that ended since the last call of this method."""
        ended, self._ended = self._ended, set()
        return ended


def session_lost(call: QueuedCall) -> CallResult:
    """Return the result of a cell whose session has ended."""
    return CallResult("session_lost", stderr=f"the session {call.session} has ended: open another one\n")
