"""A sandbox on the worker's own machine: a `runsc` container that runs the executor, connected by pipes.

With isolation `none` the same program runs directly on the machine, without namespaces.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import resource
import shutil
import signal
import uuid
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from rstar2_train.judge.sandbox.base import Lane, Sandbox
from rstar2_train.judge.sandbox.oci_bundle import FIRST_USER, NAME_PREFIX, SandboxSettings, bundle_config, environment
from rstar2_train.judge.sandbox.process import Ends, bare_arguments, sandbox_arguments, start_program

log = logging.getLogger("rstar2.judge.sandbox")


class LocalSandbox(Sandbox):
    """A sandbox that this process starts and stops."""

    def __init__(self, settings: SandboxSettings, *, core: int) -> None:
        """`core`: the CPU on which it runs.

        A call's process and gVisor's handling of its system calls alternate. On one core that is a context switch, on
        two cores an interrupt (`print`: 89 instead of 57 calls per second).
        """
        name = f"{NAME_PREFIX}{uuid.uuid4().hex[:12]}"
        super().__init__(settings.lanes, id=name, isolated=settings.isolation == "gvisor")
        self.settings = settings
        self.core = core
        self._folder = settings.state / self.id
        self._process: asyncio.subprocess.Process | None = None
        self._readers: list[asyncio.ReadTransport] = []
        self._writers: dict[str, asyncio.WriteTransport] = {}
        self._output: deque[bytes] = deque(maxlen=40)
        self._output_reader: asyncio.Task[None] | None = None
        self._memory: Path | None = None
        """The memfd of the sandbox's memory, in the folder of gVisor's process in /proc."""
        self._paused = False

    async def start(self) -> None:
        """Start the sandbox and wait for its first lane. Raises SandboxError."""
        self._folder.mkdir(parents=True)
        self._process, ends = await start_program(
            self.lanes,
            self._command,
            cwd=self._folder,
            env=environment(own_root=False) if self.settings.isolation == "none" else None,
            output=asyncio.subprocess.PIPE,
            core=self.core,
        )
        for name, (read_fd, write_fd) in ends.items():
            await self._open(self.lanes[name], read_fd, write_fd)
        self._output_reader = asyncio.create_task(self._read_output())
        await self._wait_first_lane()
        if self.isolated:
            self._memory = next(_memory_files(self._process.pid), None)
            if self._memory is None:
                log.warning("Sandbox %s: cannot watch its memory; only the limit per process applies.", self.id)

    async def _open(self, lane: Lane, read_fd: int, write_fd: int) -> None:
        loop = asyncio.get_running_loop()
        reader, _ = await loop.connect_read_pipe(lambda: _ResponsePipe(lane, self), os.fdopen(read_fd, "rb", 0))
        writer, _ = await loop.connect_write_pipe(asyncio.Protocol, os.fdopen(write_fd, "wb", 0))
        self._readers.append(reader)
        self._writers[lane.name] = writer

    def _command(self, ends: Ends) -> list[str]:
        settings = self.settings
        if settings.isolation == "none":
            assert settings.library is not None
            return bare_arguments(ends, settings.library)
        assert settings.root is not None and settings.runsc is not None
        guest_ends = {name: (10 + 2 * index, 11 + 2 * index) for index, name in enumerate(ends)}
        arguments = sandbox_arguments(guest_ends, first_user=FIRST_USER)
        (self._folder / "config.json").write_text(json.dumps(bundle_config(settings.root, arguments)))
        command = [settings.runsc, "--root", str(settings.state / "runsc"), "--network=none", "--overlay2=none"]
        command += [f"--platform={settings.platform}", "--ignore-cgroups"]
        if os.geteuid() != 0:
            command.append("--rootless")
        command += ["run", "--bundle", str(self._folder)]
        for name, pair in ends.items():
            command += [f"--pass-fd={host}:{guest}" for host, guest in zip(pair, guest_ends[name], strict=True)]
        return [*command, self.id]

    async def _read_output(self) -> None:
        """Keep the last output of runsc and the executor, for error messages."""
        assert self._process is not None and self._process.stdout is not None
        while data := await self._process.stdout.read(4096):
            self._output.append(data)
        await self._process.wait()
        self.mark_dead()

    def send(self, lane: Lane, data: bytes) -> None:
        """Write to a lane's pipe."""
        if self._paused:
            self._paused = False
            self._signal_gvisor(signal.SIGCONT)
        self._writers[lane.name].write(data)

    def disconnect(self) -> None:
        """Close the pipes."""
        for transport in (*self._readers, *self._writers.values()):
            transport.close()

    async def final_diagnostics(self) -> str:
        """Return `diagnostics` after the last output has arrived."""
        if self._output_reader is not None:
            await asyncio.wait([self._output_reader], timeout=2)
        return self.diagnostics()

    def diagnostics(self) -> str:
        """Return the last output of runsc and the executor."""
        return b"".join(self._output).decode(errors="replace").strip()[-2000:] or "It printed nothing."

    @property
    def pid(self) -> int | None:
        """Process id of `runsc run`, the parent of the sandbox and its file server."""
        return self._process.pid if self._process else None

    def memory_bytes(self) -> int | None:
        """Return the memory held by everything inside, in bytes, as the host counts it; None if unknown.

        gVisor keeps the memory of all its processes in one memfd, whose size is exact: shared pages count once. gVisor
        itself, such as for sockets and directories, uses anonymous memory of its own process, which is added.
        """
        try:
            if self._memory is None or self._paused:
                return None
            return self._memory.stat().st_blocks * 512 + _anonymous_bytes(self._memory.parents[1])
        except (OSError, ValueError):  # the process has just ended
            return None

    def pause(self) -> None:
        """Stop gVisor's process: even without any task it wakes up every 0.4 ms (systrap, metrics.go)."""
        if not self._paused and self._memory is not None:
            self._paused = True
            self._signal_gvisor(signal.SIGSTOP)

    def _signal_gvisor(self, number: signal.Signals) -> None:
        assert self._memory is not None
        with contextlib.suppress(ProcessLookupError):  # the sandbox has just ended
            os.kill(int(self._memory.parents[1].name), number)

    async def stop(self, *, failed_check: bool = False) -> None:
        """Kill the sandbox and remove its files. A failed check needs nothing more: no sandbox is used twice."""
        self.mark_dead()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        if self._output_reader is not None:
            await asyncio.wait([self._output_reader], timeout=5)
        shutil.rmtree(self._folder, ignore_errors=True)
        for path in (self.settings.state / "runsc").glob(f"{self.id}*"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


class _ResponsePipe(asyncio.Protocol):
    """The read end of a lane's responses."""

    def __init__(self, lane: Lane, sandbox: LocalSandbox) -> None:
        self._lane = lane
        self._sandbox = sandbox

    def data_received(self, data: bytes) -> None:
        """Pass the data to the lane."""
        self._lane.receive(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the whole sandbox: this zygote has ended."""
        self._sandbox.mark_dead()


def _anonymous_bytes(process: Path) -> int:
    """Return the anonymous memory of a process, in bytes. `process`: its folder in /proc."""
    _, resident, shared, *_ = (process / "statm").read_text().split()
    return (int(resident) - int(shared)) * resource.getpagesize()


def _memory_files(pid: int) -> Iterator[Path]:
    """Yield the memfd of a sandbox's memory. Searches all descendants of `runsc run`."""
    with contextlib.suppress(OSError):  # processes and descriptors may disappear during the search
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text().split():
                yield from (link for link in Path(f"/proc/{child}/fd").glob("*") if _is_sandbox_memory(link))
                yield from _memory_files(int(child))


def _is_sandbox_memory(link: Path) -> bool:
    try:
        return link.readlink().name.startswith("memfd:runsc-memory")
    except OSError:
        return False
