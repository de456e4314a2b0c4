"""One sandbox: a `runsc` container with the executor in it, started, fed and thrown away by the worker.

A sandbox has a lane for each zygote (bare, numpy, sympy): a pair of pipes straight to forkserver.c, on which calls are
written and outcomes read, in order. Nothing here decides to retry: that is `pool`. With isolation `none` the same
program runs on the host, without namespaces.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import json
import logging
import os
import shutil
import signal
import struct
import sys
import time
import uuid
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from rstar2_train.judge.bundle import NAME_PREFIX, SandboxSettings, bundle_config, environment
from rstar2_train.judge.models import MAX_CODE_BYTES, MAX_OUTPUT_BYTES, MAX_STDIN_BYTES, Task
from rstar2_train.judge.outcome import Outcome
from rstar2_train.judge.rootfs import LIBRARY, PACKAGES_FOLDER, PROGRAM, PYTHON

log = logging.getLogger("rstar2.judge.sandbox")

REQUEST = struct.Struct("<QIIIIII")
RESPONSE = struct.Struct("<QiIIIII")
PIPE_BYTES = 1 << 20
PYTHON_FLAGS = ("-P", "-S", "-s")
"""Nothing is imported that program.py does not ask for."""
NO_PROCESS_LIMIT = 1 << 20
"""Without a sandbox the user's other processes would be counted too."""
REASONS = ("exited", "timeout", "output_limit", "setup_failed")
START_SECONDS = 120.0
"""A sandbox that is not ready by then is thrown away (imports in gVisor take seconds on a busy machine)."""
PR_SET_PDEATHSIG = 1


class SandboxError(Exception):
    """The sandbox died, or never started. The message carries the end of what it printed."""

    def __init__(self, message: str, *, running: bool = False) -> None:
        super().__init__(message)
        self.running = running
        """Whether the call was the one being run, not one waiting behind it."""


def _die_with_parent() -> None:
    """In the new process, before it becomes runsc: a killed worker must not leave sandboxes behind."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _memory_files(pid: int) -> Iterator[Path]:
    """The memfd that holds a sandbox's memory, looked for in all descendants of `runsc run`."""
    with contextlib.suppress(OSError):  # processes and descriptors come and go while we look
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text().split():
                yield from (link for link in Path(f"/proc/{child}/fd").glob("*") if _is_memory(link))
                yield from _memory_files(int(child))


def _is_memory(link: Path) -> bool:
    try:
        return link.readlink().name.startswith("memfd:runsc-memory")
    except OSError:
        return False


class Lane(asyncio.Protocol):
    """The pipes of one zygote: outcomes come back in the order in which calls were written."""

    def __init__(self, name: str, sandbox: Sandbox) -> None:
        self.name = name
        self.ready = False
        """Its zygote is warmed up."""
        self.passed = False
        """It has passed the canary and may take calls (set by the pool)."""
        self.waiting: deque[asyncio.Future[Outcome]] = deque()
        self._sandbox = sandbox
        self._buffer = bytearray()
        self._writer: asyncio.WriteTransport | None = None
        self._reader: asyncio.ReadTransport | None = None

    async def open(self, read_fd: int, write_fd: int) -> None:
        """Takes over the worker's ends of the pipes."""
        loop = asyncio.get_running_loop()
        self._reader, _ = await loop.connect_read_pipe(lambda: self, os.fdopen(read_fd, "rb", 0))
        self._writer, _ = await loop.connect_write_pipe(asyncio.Protocol, os.fdopen(write_fd, "wb", 0))

    def submit(self, task: Task) -> asyncio.Future[Outcome]:
        """Writes a call; the future fails with SandboxError when the sandbox dies first."""
        assert self._writer is not None
        code, stdin = task.code.encode(), task.stdin.encode()
        wall = max(1, round(task.wall_seconds * 1000))
        head = REQUEST.pack(1, len(code), len(stdin), wall, task.memory_mib, task.output_bytes, task.processes)
        self._writer.write(head + code + stdin)
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        return future

    def data_received(self, data: bytes) -> None:
        """Cuts the stream into outcomes."""
        self._buffer += data
        while len(self._buffer) >= RESPONSE.size:
            id_, wait_status, reason, run_us, out, err, _ = RESPONSE.unpack_from(self._buffer)
            end = RESPONSE.size + out + err
            if len(self._buffer) < end:
                return
            middle = RESPONSE.size + out
            outcome = Outcome(
                REASONS[reason],
                wait_status,
                run_us / 1e6,
                bytes(self._buffer[RESPONSE.size : middle]),
                bytes(self._buffer[middle:end]),
            )
            del self._buffer[:end]
            if id_ == 0:
                self.ready = True
                self._sandbox.lane_ready(self)
                continue
            future = self.waiting.popleft()
            if not future.done():
                future.set_result(outcome)

    def connection_lost(self, exc: Exception | None) -> None:
        """The zygote ended, and so the whole sandbox is of no use."""
        self._sandbox.died()

    def close(self, message: str) -> None:
        """Fails what is still waiting, the call that was running first."""
        self.ready = self.passed = False
        for transport in (self._reader, self._writer):
            if transport is not None:
                transport.close()
        for index, future in enumerate(self.waiting):
            if not future.done():
                future.set_exception(SandboxError(message, running=index == 0))
        self.waiting.clear()


class Sandbox:
    """A running sandbox. `start` it, `submit` to its lanes, `stop` it; `dead` is set when it ends for any reason."""

    def __init__(self, settings: SandboxSettings) -> None:
        self.settings = settings
        self.id = f"{NAME_PREFIX}{uuid.uuid4().hex[:12]}"
        self.lanes = {name: Lane(name, self) for name in settings.lanes}
        self.dead = asyncio.Event()
        self.changed = asyncio.Event()
        """Set whenever a lane becomes ready or the sandbox dies."""
        self.started = time.monotonic()
        self._folder = settings.state / self.id
        self._process: asyncio.subprocess.Process | None = None
        self._said: deque[bytes] = deque(maxlen=40)
        self._listener: asyncio.Task[None] | None = None
        self._memory: Path | None = None
        self.idle_bytes = 0
        """Memory it held when no call ran (kept by the pool)."""
        self.allowed_bytes = 0
        """Memory that one process of the calls in it may take (kept by the pool)."""
        self.over_memory = False
        """It was thrown away because the call in it took too much memory (set by the pool)."""

    async def start(self) -> None:
        """Starts it and waits for its first lane. Raises SandboxError."""
        self._folder.mkdir(parents=True)
        ends: dict[str, tuple[int, int]] = {}
        passed: list[int] = []
        numbers: dict[str, list[int]] = {}
        for index, name in enumerate(self.lanes):
            request_read, request_write = os.pipe()
            response_read, response_write = os.pipe()
            fcntl.fcntl(request_write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            ends[name] = (response_read, request_write)
            passed += [request_read, response_write]
            guest = [10 + 2 * index, 11 + 2 * index]
            numbers[name] = guest if self.settings.isolation == "gvisor" else [request_read, response_write]
        command = self._command(numbers, passed)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=passed,
                cwd=self._folder,
                env=environment() if self.settings.isolation == "none" else None,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        finally:
            for fd in passed:
                os.close(fd)
        for name, lane in self.lanes.items():
            await lane.open(*ends[name])
        self._listener = asyncio.create_task(self._listen())
        try:
            async with asyncio.timeout(START_SECONDS):
                while not any(lane.ready for lane in self.lanes.values()):
                    if self.dead.is_set():
                        raise SandboxError(f"the sandbox did not start: {await self._last_words()}")
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            raise SandboxError(
                f"the sandbox did not start in {START_SECONDS:.0f} s: {await self._last_words()}"
            ) from None

        if self.settings.isolation == "gvisor":
            self._memory = next(_memory_files(self._process.pid), None)
            if self._memory is None:
                log.warning("%s: its memory cannot be watched; only each process is limited", self.id)

    def _command(self, ends: dict[str, list[int]], passed: list[int]) -> list[str]:
        settings = self.settings
        numbers = [MAX_CODE_BYTES + MAX_STDIN_BYTES, MAX_OUTPUT_BYTES]
        lanes = [f"{name}:{pair[0]}:{pair[1]}" for name, pair in ends.items()]
        if settings.isolation == "none":
            assert settings.library is not None
            program = str(Path(__file__).parent / "executor" / "program.py")
            paths = os.pathsep.join(path for path in sys.path if path.endswith("-packages"))
            serve = ",".join(map(str, [0, *numbers, NO_PROCESS_LIMIT]))
            return [sys.executable, *PYTHON_FLAGS, program, str(settings.library.parent), paths, serve, *lanes]
        assert settings.root is not None and settings.runsc is not None
        serve = ",".join(map(str, [1, *numbers, 2 * len(lanes)]))
        arguments = [PYTHON, *PYTHON_FLAGS, PROGRAM, str(Path(LIBRARY).parent), PACKAGES_FOLDER, serve, *lanes]
        (self._folder / "config.json").write_text(json.dumps(bundle_config(settings.root, arguments)))
        guests = [number for pair in ends.values() for number in pair]
        command = [settings.runsc, "--root", str(settings.state / "runsc"), "--network=none", "--overlay2=none"]
        command += [f"--platform={settings.platform}", "--ignore-cgroups"]
        if os.geteuid() != 0:
            command.append("--rootless")
        command += ["run", "--bundle", str(self._folder)]
        command += [f"--pass-fd={host}:{guest}" for host, guest in zip(passed, guests, strict=True)]
        return [*command, self.id]

    async def _listen(self) -> None:
        """Keeps the end of what runsc and the executor print, for error messages."""
        assert self._process is not None and self._process.stdout is not None
        while data := await self._process.stdout.read(4096):
            self._said.append(data)
        await self._process.wait()
        self.died()

    async def _last_words(self) -> str:
        if self._listener is not None:
            await asyncio.wait([self._listener], timeout=2)
        return self.said()

    def said(self) -> str:
        """The end of what runsc and the executor printed."""
        return b"".join(self._said).decode(errors="replace").strip()[-2000:] or "it said nothing"

    def lane_ready(self, lane: Lane) -> None:
        """Called by a lane when its zygote is warmed up."""
        self.changed.set()

    def died(self) -> None:
        """Called by whoever notices first: fails all calls in it."""
        if not self.dead.is_set():
            self.dead.set()
            for lane in self.lanes.values():
                lane.close(f"the sandbox ended during the call. {self.said()}")
            self.changed.set()

    @property
    def pid(self) -> int | None:
        """Process id of `runsc run` (its children are the sandbox and its file server)."""
        return self._process.pid if self._process else None

    @property
    def waiting(self) -> int:
        """Calls written and not yet answered."""
        return sum(len(lane.waiting) for lane in self.lanes.values())

    def memory_bytes(self) -> int | None:
        """Memory that everything inside holds now, as the host counts it; None where it cannot be told.

        gVisor keeps the memory of all its processes in one memfd: the size of that is exact, shared pages once.
        """
        try:
            return self._memory.stat().st_blocks * 512 if self._memory else None
        except OSError:  # it has just ended
            return None

    async def stop(self) -> None:
        """Kills it and removes what it left on disk."""
        self.died()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        if self._listener is not None:
            await asyncio.wait([self._listener], timeout=5)
        shutil.rmtree(self._folder, ignore_errors=True)
        for left in (self.settings.state / "runsc").glob(f"{self.id}*"):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
