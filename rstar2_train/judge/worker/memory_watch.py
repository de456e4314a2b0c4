"""Watches the memory of sandboxes: stops one whose call takes too much, and retires one that leaks.

RLIMIT_AS limits each process of a call. This watch limits all processes of a call together, and it replaces a sandbox
in which ended calls left memory behind. `pool` reports when lanes open and calls start, and reads the verdicts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from rstar2_train.judge.sandbox.base import Sandbox
from rstar2_train.judge.worker.sessions import SessionTable

log = logging.getLogger("rstar2.judge.pool")

WATCH_SECONDS = 0.2
CALL_FACTOR = 2
"""Memory of all processes of a call, as a multiple of the limit of one process."""
SESSIONS_FACTOR = 4
"""Memory of all sessions of a sandbox, as a multiple of the largest limit of one process among them."""
LEAK_BYTES = 256 << 20
"""A sandbox that holds this much more than when it was new, without a call that uses it, is replaced."""
LANE_BYTES = 128 << 20
"""Allowance for a lane that is starting: its imports (65 MiB for SymPy). Memory above it belongs to the call."""

PREPARED_BYTES = 48 << 20
"""Allowance per lane: its prepared process has a copy of the heap (5 to 46 MiB; NumPy has the largest one), and the
copy appears or disappears at any time."""


@dataclass(slots=True)
class MemoryAccount:
    """The state of the watch for one sandbox. All values in bytes."""

    fresh_bytes: int = 0
    """Memory held when its last lane opened."""
    idle_bytes: int = 0
    """Memory held when the present call, or the oldest live session, started."""
    allowed_bytes: int = 0
    """Memory limit of one process of the calls in the sandbox."""
    retiring: bool = False
    """It leaks: it takes no further call and is replaced as soon as it is idle."""
    over_limit: bool = False
    """It was stopped because its call took too much memory."""


class MemoryWatch:
    """The memory accounts of a worker's sandboxes."""

    def __init__(self, sessions: SessionTable) -> None:
        self._sessions = sessions
        self._accounts: WeakKeyDictionary[Sandbox, MemoryAccount] = WeakKeyDictionary()

    def account(self, sandbox: Sandbox) -> MemoryAccount:
        """Return the account of a sandbox."""
        account = self._accounts.get(sandbox)
        if account is None:
            account = self._accounts[sandbox] = MemoryAccount()
        return account

    async def run(self, sandboxes: Sequence[Sandbox]) -> None:
        """Check the sandboxes in this list, which may change, until cancelled."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            for sandbox in list(sandboxes):
                self.check(sandbox)

    def lane_opened(self, sandbox: Sandbox) -> None:
        """Take the memory that a sandbox holds now as that of a fresh one."""
        account = self.account(sandbox)
        held = sandbox.memory_bytes() or 0
        if sandbox.in_flight or self._sessions.in_sandbox(sandbox):  # calls may hold the larger part of it
            held = min(held, account.idle_bytes + LANE_BYTES)
        account.fresh_bytes = account.idle_bytes = held

    def call_written(self, sandbox: Sandbox, memory_bytes: int, *, is_next: bool) -> None:
        """Record the memory limit of a call. `is_next`: no other call of its lane is in flight."""
        account = self.account(sandbox)
        if is_next:
            self.call_started(sandbox)
            account.allowed_bytes = memory_bytes
        else:
            account.allowed_bytes = max(memory_bytes, account.allowed_bytes)

    def call_started(self, sandbox: Sandbox) -> None:
        """Count the memory of the call that starts now from what the sandbox holds now."""
        if not self._sessions.in_sandbox(sandbox):
            account = self.account(sandbox)
            account.idle_bytes = sandbox.memory_bytes() or account.idle_bytes

    def check(self, sandbox: Sandbox) -> None:
        """Stop the sandbox if its calls hold too much memory, or if it leaks and is idle."""
        held = sandbox.memory_bytes()
        if held is None:
            return
        account, sessions = self.account(sandbox), self._sessions.in_sandbox(sandbox)
        starting = sum(not lane.admitted for lane in sandbox.lanes.values())
        allowed = CALL_FACTOR * account.allowed_bytes if sandbox.in_flight else 0
        allowed += SESSIONS_FACTOR * max((session.memory_bytes for session in sessions), default=0)
        allowed += LANE_BYTES * starting + PREPARED_BYTES * len(sandbox.lanes)
        idle = not sandbox.in_flight and not sessions
        # gVisor frees the memory of ended processes over some time: the present calls do not hold it.
        account.idle_bytes = held if idle else min(held, account.idle_bytes)
        if held > account.idle_bytes + allowed:
            account.over_limit = True
            used = held - account.idle_bytes
            log.warning(
                "Ending sandbox %s: its calls and sessions hold %d MiB, allowed are %d MiB.",
                sandbox.id, used >> 20, allowed >> 20,
            )  # fmt: skip
            sandbox.mark_dead()
            return
        account.retiring = account.retiring or held > account.fresh_bytes + LEAK_BYTES + allowed
        if account.retiring and idle:
            log.warning("Replacing sandbox %s: it holds %d MiB that no call uses.", sandbox.id, held >> 20)
            sandbox.mark_dead()
