"""A sandbox on the worker's own machine: a `runsc` container with the executor in it, over pipes.

With isolation `none` the same program runs on the host, without namespaces.
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
from rstar2_train.judge.sandbox.oci_bundle import NAME_PREFIX, SandboxSettings, bundle_config, environment
from rstar2_train.judge.sandbox.process import Ends, bare_arguments, inside_arguments, start_program

log = logging.getLogger("rstar2.judge.sandbox")


class LocalSandbox(Sandbox):
    """A sandbox that this process starts and owns."""

    def __init__(self, settings: SandboxSettings, *, core: int) -> None:
        """`core`: the CPU that it runs on.

        A call's process and gVisor's half of its system calls take turns: on one core that is a switch, between two of
        them an interrupt (`print`: 89 against 57 calls a second).
        """
        name = f"{NAME_PREFIX}{uuid.uuid4().hex[:12]}"
        super().__init__(settings.lanes, id=name, walled=settings.isolation == "gvisor")
        self.settings = settings
        self.core = core
        self._folder = settings.state / self.id
        self._process: asyncio.subprocess.Process | None = None
        self._readers: list[asyncio.ReadTransport] = []
        self._writers: dict[str, asyncio.WriteTransport] = {}
        self._said: deque[bytes] = deque(maxlen=40)
        self._listener: asyncio.Task[None] | None = None
        self._memory: Path | None = None

    async def start(self) -> None:
        """Starts it and waits for its first lane. Raises SandboxError."""
        self._folder.mkdir(parents=True)
        self._process, ends = await start_program(
            self.lanes,
            self._command,
            cwd=self._folder,
            env=environment() if self.settings.isolation == "none" else None,
            output=asyncio.subprocess.PIPE,
            core=self.core,
        )
        for name, (read_fd, write_fd) in ends.items():
            await self._open(self.lanes[name], read_fd, write_fd)
        self._listener = asyncio.create_task(self._listen())
        await self._first_lane()
        if self.walled:
            self._memory = next(_memory_files(self._process.pid), None)
            if self._memory is None:
                log.warning("%s: its memory cannot be watched; only each process is limited", self.id)

    async def _open(self, lane: Lane, read_fd: int, write_fd: int) -> None:
        loop = asyncio.get_running_loop()
        reader, _ = await loop.connect_read_pipe(lambda: _Pipe(lane, self), os.fdopen(read_fd, "rb", 0))
        writer, _ = await loop.connect_write_pipe(asyncio.Protocol, os.fdopen(write_fd, "wb", 0))
        self._readers.append(reader)
        self._writers[lane.name] = writer

    def _command(self, ends: Ends) -> list[str]:
        settings = self.settings
        if settings.isolation == "none":
            assert settings.library is not None
            return bare_arguments(ends, settings.library)
        assert settings.root is not None and settings.runsc is not None
        guests = {name: (10 + 2 * index, 11 + 2 * index) for index, name in enumerate(ends)}
        arguments = inside_arguments(guests, others=2 * len(ends))
        (self._folder / "config.json").write_text(json.dumps(bundle_config(settings.root, arguments)))
        command = [settings.runsc, "--root", str(settings.state / "runsc"), "--network=none", "--overlay2=none"]
        command += [f"--platform={settings.platform}", "--ignore-cgroups"]
        if os.geteuid() != 0:
            command.append("--rootless")
        command += ["run", "--bundle", str(self._folder)]
        for name, pair in ends.items():
            command += [f"--pass-fd={host}:{guest}" for host, guest in zip(pair, guests[name], strict=True)]
        return [*command, self.id]

    async def _listen(self) -> None:
        """Keeps the end of what runsc and the executor print, for error messages."""
        assert self._process is not None and self._process.stdout is not None
        while data := await self._process.stdout.read(4096):
            self._said.append(data)
        await self._process.wait()
        self.died()

    def send(self, lane: Lane, data: bytes) -> None:
        """Writes to a lane's pipe."""
        self._writers[lane.name].write(data)

    def hang_up(self) -> None:
        """Closes the pipes."""
        for transport in (*self._readers, *self._writers.values()):
            transport.close()

    async def last_words(self) -> str:
        """What it said, when it has had time to say it."""
        if self._listener is not None:
            await asyncio.wait([self._listener], timeout=2)
        return self.said()

    def said(self) -> str:
        """The end of what runsc and the executor printed."""
        return b"".join(self._said).decode(errors="replace").strip()[-2000:] or "it said nothing"

    @property
    def pid(self) -> int | None:
        """Process id of `runsc run` (its children are the sandbox and its file server)."""
        return self._process.pid if self._process else None

    def memory_bytes(self) -> int | None:
        """Memory that everything inside holds now, as the host counts it; None where it cannot be told.

        gVisor keeps the memory of all its processes in one memfd: the size of that is exact, shared pages once. What
        it needs itself, such as for sockets and directories, is its own anonymous memory, and is counted too.
        """
        try:
            return self._memory.stat().st_blocks * 512 + _anonymous(self._memory.parents[1]) if self._memory else None
        except (OSError, ValueError):  # it has just ended
            return None

    async def stop(self, *, condemned: bool = False) -> None:
        """Kills it and removes what it left on disk; nothing that was condemned is ever used again."""
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


class _Pipe(asyncio.Protocol):
    """The reading end of a lane's pipe."""

    def __init__(self, lane: Lane, sandbox: LocalSandbox) -> None:
        self._lane = lane
        self._sandbox = sandbox

    def data_received(self, data: bytes) -> None:
        """Something came."""
        self._lane.received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """The zygote ended, and so the whole sandbox is of no use."""
        self._sandbox.died()


def _anonymous(process: Path) -> int:
    """Bytes of a process that are nobody else's and no file's; `process`: its folder in /proc."""
    _, resident, shared, *_ = (process / "statm").read_text().split()
    return (int(resident) - int(shared)) * resource.getpagesize()


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
