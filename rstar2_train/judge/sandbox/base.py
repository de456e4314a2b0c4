"""The interface between the pool and a sandbox: lanes that run calls, and the end of the sandbox.

Two classes implement it. `local.LocalSandbox` starts a `runsc` container on this machine and uses pipes;
`remote.RemoteSandbox` connects to an executor pod over TCP. Both run the same program inside (executor/): one zygote
per lane, which reads requests and writes responses in the same order. Retries are decided in `worker.pool`, not here.
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

from rstar2_train.api.judge_limits import MAX_OUTPUT_BYTES
from rstar2_train.judge.process_exit import OutputReader, ProcessExit
from rstar2_train.judge.returned_files import stream_bytes
from rstar2_train.judge.types import QueuedCall, Verb

REQUEST = struct.Struct("<QIIIIIIIII4x")
RESPONSE = struct.Struct("<QiIIIIII4x")
REASONS = ("exited", "timeout", "output_limit", "setup_failed", "no_session")
VERBS: dict[Verb, int] = {"call": 0, "open": 1, "cell": 2, "close": 3, "code_judge": 4, "script": 5}
MAX_SESSIONS = 16
"""Sessions per sandbox. MAX_SESSIONS in forkserver.c is the same number per lane."""
START_SECONDS = 120.0
"""Timeout of the start of a sandbox (imports in gVisor take seconds on a busy machine)."""


class SandboxError(Exception):
    """The sandbox ended or did not start. The message contains its last output."""

    def __init__(self, message: str, *, running: bool = False, run_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.running = running
        """Whether the sandbox ran this call, and not one before it."""
        self.run_seconds = run_seconds
        """How long it ran the call."""


class SandboxBusy(SandboxError):
    """The executor serves another worker."""


class IsolationCheckFailed(SandboxError):
    """The sandbox failed the isolation check and must never be used again."""


@dataclass(frozen=True, slots=True)
class ForbiddenTargets:
    """Files and listeners that must be unreachable from inside a sandbox."""

    files: tuple[str, ...]
    addresses: tuple[tuple[str, int], ...]


class Lane:
    """One zygote. Responses arrive in the order of the requests."""

    def __init__(self, name: str, sandbox: Sandbox) -> None:
        self.name = name
        self.ready = False
        """Whether its zygote is warmed up."""
        self.admitted = False
        """Whether it has passed the isolation check and may take calls (set by the supervisor)."""
        self.in_flight: deque[asyncio.Future[ProcessExit]] = deque()
        """Calls without a response, oldest first."""
        self.time_limits: deque[float] = deque()
        """Wall-clock limits of the calls in `in_flight`, in seconds."""
        self._running_since = 0.0
        """When the oldest call in flight became the oldest (monotonic seconds)."""
        self._sandbox = sandbox
        self._buffer = bytearray()
        self._outputs: OutputReader | None = None
        """Of the response at the start of the buffer."""

    def submit(self, call: QueuedCall, *, slot: int = 0) -> asyncio.Future[ProcessExit]:
        """Write a call, or a cell for the session in `slot`. The pool sends one cell per session at a time.

        The future raises SandboxError if the sandbox ends before the response.
        """
        code, stdin = call.code.encode(), call.stdin.encode()
        wall_ms = max(1, round(call.limits.wall_seconds * 1000))
        limits = (wall_ms, call.limits.memory_mib, call.limits.output_bytes, call.limits.processes)
        files = stream_bytes(call.file_bytes)
        head = REQUEST.pack(1, len(code), len(stdin), *limits, VERBS[call.verb], slot, files)
        future: asyncio.Future[ProcessExit] = asyncio.get_running_loop().create_future()
        if not self.in_flight:
            self._running_since = time.monotonic()
        self.in_flight.append(future)
        self.time_limits.append(call.limits.wall_seconds)
        self._sandbox.last_used = time.monotonic()
        try:
            self._sandbox.send(self, head + code + stdin)
        except (RuntimeError, OSError):  # a closed pipe or connection: uvloop reports it only at the next write
            self._sandbox.mark_dead()
        return future

    def receive(self, data: bytes) -> None:
        """Split the stream into responses. An invalid response means that the sandbox is compromised: it is stopped."""
        self._buffer += data
        while len(self._buffer) >= RESPONSE.size:
            id_, wait_status, reason, run_us, out, err, lives, files = RESPONSE.unpack_from(self._buffer)
            ended = os.WIFEXITED(wait_status) or os.WIFSIGNALED(wait_status)
            valid = ended and reason < len(REASONS) and max(out, err, files) <= MAX_OUTPUT_BYTES
            if not valid or (id_ != 0 and not self.in_flight):
                self._sandbox.mark_dead()
                return
            last = RESPONSE.size + out + err
            end = last + files
            if self._outputs is None:
                self._outputs = OutputReader(RESPONSE.size, out, err)
            self._outputs.read(self._buffer)
            if len(self._buffer) < end:
                return
            process_exit = ProcessExit(
                REASONS[reason],
                wait_status,
                run_us / 1e6,
                *self._outputs.texts(),
                bool(lives),
                bytes(self._buffer[last:end]),
            )
            del self._buffer[:end]
            self._outputs = None
            if id_ == 0:  # the zygote is warmed up
                self.ready = True
                self._sandbox.changed.set()
                continue
            future = self.in_flight.popleft()
            self.time_limits.popleft()
            self._running_since = self._sandbox.last_used = time.monotonic()
            if not future.done():
                future.set_result(process_exit)

    def close(self, message: str) -> None:
        """Fail all calls in flight with SandboxError. The oldest one is the call that was running."""
        self.ready = self.admitted = False
        for index, future in enumerate(self.in_flight):
            if not future.done():
                seconds = time.monotonic() - self._running_since if index == 0 else 0.0
                future.set_exception(SandboxError(message, running=index == 0, run_seconds=seconds))
        self.in_flight.clear()
        self.time_limits.clear()


class Sandbox(ABC):
    """A sandbox. `start` it, `submit` to its lanes, `stop` it; `dead` is set when it ends for any reason."""

    def __init__(self, lanes: Iterable[str], *, id: str, isolated: bool) -> None:
        """`isolated`: whether gVisor is around it, so that the isolation check must test it."""
        self.id = id
        self.isolated = isolated
        self.lanes = {name: Lane(name, self) for name in lanes}
        self.dead = asyncio.Event()
        self.changed = asyncio.Event()
        """Set when a lane becomes ready or the sandbox ends."""
        self.started = time.monotonic()
        self.last_used = self.started
        """Time of the last request or response (monotonic seconds)."""
        self.forbidden: ForbiddenTargets | None = None
        """Targets that are specific to this sandbox; None: those of the worker's machine."""

    @abstractmethod
    async def start(self) -> None:
        """Start the sandbox and wait for its first lane. Raises SandboxError."""

    @abstractmethod
    def send(self, lane: Lane, data: bytes) -> None:
        """Write to a lane."""

    @abstractmethod
    def disconnect(self) -> None:
        """Close the pipes or the connection of a dead sandbox."""

    @abstractmethod
    def diagnostics(self) -> str:
        """Return its last output, or the reason of the disconnection, for error messages."""

    @abstractmethod
    def memory_bytes(self) -> int | None:
        """Return the memory held by everything inside, in bytes; None if unknown."""

    def pause(self) -> None:  # noqa: B027  (a sandbox that is not on this machine does nothing)
        """Stop the idle processes of the sandbox from using CPU. The next request resumes them."""

    @abstractmethod
    async def stop(self, *, failed_check: bool = False) -> None:
        """Stop it and remove its files. `failed_check`: it failed the isolation check, so its pod must restart too."""

    @property
    def in_flight(self) -> int:
        """Calls that are written and not answered."""
        return sum(len(lane.in_flight) for lane in self.lanes.values())

    def mark_dead(self) -> None:
        """Fail all calls in the sandbox. Called by the first part that notices its end, or that ends it."""
        if not self.dead.is_set():
            self.dead.set()
            self.disconnect()
            for lane in self.lanes.values():
                lane.close(f"The sandbox ended during the call. {self.diagnostics()}")
            self.changed.set()

    async def final_diagnostics(self) -> str:
        """Return `diagnostics` after the last output has arrived."""
        return self.diagnostics()

    async def _wait_first_lane(self) -> None:
        """Wait until a lane is ready. Raises SandboxError."""
        try:
            async with asyncio.timeout(START_SECONDS):
                while not any(lane.ready for lane in self.lanes.values()):
                    if self.dead.is_set():
                        raise SandboxError(f"The sandbox did not start: {await self.final_diagnostics()}")
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            output = await self.final_diagnostics()
            raise SandboxError(f"The sandbox did not start within {START_SECONDS:.0f} s: {output}") from None
