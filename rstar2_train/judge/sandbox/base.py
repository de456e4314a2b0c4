"""A sandbox as the pool sees it: lanes that take calls, and an end. What is behind it is one of two things.

`sandbox_local` starts a `runsc` container on this machine and talks over pipes; `sandbox_remote` talks over TCP to an
executor's pod. Inside runs the same program (executor/), one zygote a lane: on a lane calls are written and outcomes
read, in order. Nothing here decides to retry: that is `pool`.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from rstar2_train.judge.outcome import ProcessExit
from rstar2_train.judge.types import MAX_OUTPUT_BYTES, QueuedCall, Verb

REQUEST = struct.Struct("<QIIIIIIII")
RESPONSE = struct.Struct("<QiIIIII")
REASONS = ("exited", "timeout", "output_limit", "setup_failed", "no_session")
VERBS: dict[Verb, int] = {"call": 0, "open": 1, "cell": 2, "close": 3}
SESSIONS = 16
"""In a sandbox (MAX_SESSIONS of forkserver.c, which counts them for each lane)."""
START_SECONDS = 120.0
"""A sandbox that is not ready by then is thrown away (imports in gVisor take seconds on a busy machine)."""


class SandboxError(Exception):
    """The sandbox died, or never started. The message carries the end of what it printed."""

    def __init__(self, message: str, *, running: bool = False) -> None:
        super().__init__(message)
        self.running = running
        """Whether the call was the one being run, not one waiting behind it."""


class SandboxBusy(SandboxError):
    """An executor that serves another worker now."""


class IsolationCheckFailed(SandboxError):
    """It did not pass the canary: it must not be used again by anybody."""


@dataclass(frozen=True, slots=True)
class Bait:
    """What must not be seen from inside a sandbox."""

    files: tuple[str, ...]
    addresses: tuple[tuple[str, int], ...]
    """Of somebody who listens."""


class Lane:
    """One zygote: outcomes come back in the order in which calls were written."""

    def __init__(self, name: str, sandbox: Sandbox) -> None:
        self.name = name
        self.ready = False
        """Its zygote is warmed up."""
        self.passed = False
        """It has passed the canary and may take calls (set by the pool)."""
        self.waiting: deque[asyncio.Future[ProcessExit]] = deque()
        self.seconds: deque[float] = deque()
        """Time limits of the calls in `waiting`."""
        self._sandbox = sandbox
        self._buffer = bytearray()

    def submit(self, task: QueuedCall, *, place: int = 0) -> asyncio.Future[ProcessExit]:
        """Writes a call, or a cell for the session at `place` (the pool sees to it that it has one at a time).

        The future fails with SandboxError when the sandbox dies first.
        """
        code, stdin = task.code.encode(), task.stdin.encode()
        wall = max(1, round(task.wall_seconds * 1000))
        limits = (wall, task.memory_mib, task.output_bytes, task.processes)
        head = REQUEST.pack(1, len(code), len(stdin), *limits, VERBS[task.verb], place)
        future: asyncio.Future[ProcessExit] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        self.seconds.append(task.wall_seconds)
        try:
            self._sandbox.send(self, head + code + stdin)
        except (RuntimeError, OSError):  # the way to it was found closed (uvloop says so only here)
            self._sandbox.died()
        return future

    def received(self, data: bytes) -> None:
        """Cuts the stream into outcomes. One that cannot be is the sandbox's end: something in it is not ours."""
        self._buffer += data
        while len(self._buffer) >= RESPONSE.size:
            id_, wait_status, reason, run_us, out, err, lives = RESPONSE.unpack_from(self._buffer)
            ended = os.WIFEXITED(wait_status) or os.WIFSIGNALED(wait_status)
            known = ended and reason < len(REASONS) and max(out, err) <= MAX_OUTPUT_BYTES
            if not known or (id_ != 0 and not self.waiting):
                self._sandbox.died()
                return
            end = RESPONSE.size + out + err
            if len(self._buffer) < end:
                return
            middle = RESPONSE.size + out
            outcome = ProcessExit(
                REASONS[reason],
                wait_status,
                run_us / 1e6,
                bytes(self._buffer[RESPONSE.size : middle]),
                bytes(self._buffer[middle:end]),
                bool(lives),
            )
            del self._buffer[:end]
            if id_ == 0:
                self.ready = True
                self._sandbox.changed.set()
                continue
            future = self.waiting.popleft()
            self.seconds.popleft()
            if not future.done():
                future.set_result(outcome)

    def close(self, message: str) -> None:
        """Fails what is still waiting, the call that was running first."""
        self.ready = self.passed = False
        for index, future in enumerate(self.waiting):
            if not future.done():
                future.set_exception(SandboxError(message, running=index == 0))
        self.waiting.clear()
        self.seconds.clear()


class Sandbox(ABC):
    """A running sandbox. `start` it, `submit` to its lanes, `stop` it; `dead` is set when it ends for any reason."""

    def __init__(self, lanes: Iterable[str], *, id: str, walled: bool) -> None:
        """`walled`: whether there is a wall around it for the canary to test."""
        self.id = id
        self.walled = walled
        self.lanes = {name: Lane(name, self) for name in lanes}
        self.dead = asyncio.Event()
        self.changed = asyncio.Event()
        """Set whenever a lane becomes ready or the sandbox dies."""
        self.started = time.monotonic()
        self.bait: Bait | None = None
        """What only this sandbox can be tempted with; None: the worker's own."""
        self.fresh_bytes = 0
        """Memory it held when it was opened, all its lanes warmed up (kept by the pool)."""
        self.idle_bytes = 0
        """Memory it held when the present call began, or the oldest session that lives (kept by the pool)."""
        self.worn = False
        """What ended calls have left makes it too large: it takes no further one and goes (set by the pool)."""
        self.allowed_bytes = 0
        """Memory that one process of the calls in it may take (kept by the pool)."""
        self.over_memory = False
        """It was thrown away because the call in it took too much memory (set by the pool)."""

    @abstractmethod
    async def start(self) -> None:
        """Starts it and waits for its first lane. Raises SandboxError."""

    @abstractmethod
    def send(self, lane: Lane, data: bytes) -> None:
        """Writes to a lane."""

    @abstractmethod
    def hang_up(self) -> None:
        """Closes the ways to its lanes: it is dead."""

    @abstractmethod
    def said(self) -> str:
        """The end of what it said, for error messages."""

    @abstractmethod
    def memory_bytes(self) -> int | None:
        """Memory that everything inside holds now; None where it cannot be told."""

    @abstractmethod
    async def stop(self, *, condemned: bool = False) -> None:
        """Ends it and removes what it left. `condemned`: nobody else may use what it ran in either."""

    @property
    def waiting(self) -> int:
        """Calls written and not yet answered."""
        return sum(len(lane.waiting) for lane in self.lanes.values())

    def died(self) -> None:
        """Called by whoever notices first: fails all calls in it."""
        if not self.dead.is_set():
            self.dead.set()
            self.hang_up()
            for lane in self.lanes.values():
                lane.close(f"the sandbox ended during the call. {self.said()}")
            self.changed.set()

    async def last_words(self) -> str:
        """What it said, when it has had time to say it."""
        return self.said()

    async def _first_lane(self) -> None:
        """Waits for the first lane. Raises SandboxError."""
        try:
            async with asyncio.timeout(START_SECONDS):
                while not any(lane.ready for lane in self.lanes.values()):
                    if self.dead.is_set():
                        raise SandboxError(f"the sandbox did not start: {await self.last_words()}")
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            words = await self.last_words()
            raise SandboxError(f"the sandbox did not start in {START_SECONDS:.0f} s: {words}") from None
