"""The server in an executor's pod: `python -m rstar2_train.judge executor`. Lends its sandbox to one worker at a time.

gVisor around the pod is the wall; the program inside (executor/program.py) is put into a cell, where it sees nothing of
the pod, not even this server. Between the worker's connection and the lanes' pipes bytes are passed on, unread. When
a connection ends, everything that ran for it is killed before another worker is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from rstar2_train.judge.sandbox import wire
from rstar2_train.judge.sandbox.oci_bundle import Isolation, environment
from rstar2_train.judge.sandbox.process import (
    PYTHON_FLAGS,
    Ends,
    bare_arguments,
    cell_arguments,
    inside_arguments,
    start_program,
)
from rstar2_train.judge.sandbox.rootfs import PYTHON, SetupError, choose_lanes, prepare_library, prepare_root

log = logging.getLogger("rstar2.judge.executor")

HANDSHAKE_SECONDS = 10.0
MOST_GUESTS = 32
"""Connections at a time that have not proved to be a worker's."""
MEMORY_SECONDS = 0.2
MEMORY_CHANGE = 1 << 20
"""A change of the pod's memory that the worker is told of, in bytes."""
OTHERS = 24
"""Processes and threads of this server, which has the same user as the calls: their limit counts it too."""
BAIT = ("/etc/resolv.conf", "/dev/null", "/dev/shm", "/usr")
"""Of any pod, and not of a cell."""
SENTRY = Path("/proc/sentry-meminfo")
"""Only gVisor has it."""


@dataclass(frozen=True, slots=True)
class ExecutorSettings:
    """What `python -m rstar2_train.judge executor` was told."""

    host: str
    port: int
    worker_key_file: Path
    isolation: Isolation = "gvisor"
    lanes: tuple[str, ...] | None = None


@dataclass(slots=True)
class _Jail:
    """The program, with its lanes' pipes."""

    process: asyncio.subprocess.Process
    readers: dict[int, asyncio.StreamReader]
    writers: dict[int, asyncio.WriteTransport]

    async def end(self) -> None:
        """Kill it and all that runs in it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for writer in self.writers.values():
            writer.close()
        await self.process.wait()


class ExecutorServer:
    """One sandbox, and who has it now. `prepare`, then `run`."""

    def __init__(self, settings: ExecutorSettings) -> None:
        self.settings = settings
        self.condemned = asyncio.Event()
        """Set when a worker found the sandbox not to be tight."""
        self._key: Ed25519PublicKey = wire.read_public_key(settings.worker_key_file)
        self._lanes = choose_lanes(settings.lanes)
        self._walled = settings.isolation == "gvisor"
        self._root: Path | None = None
        self._library: Path | None = None
        self._owner = ""
        self._guests = 0
        self._next: asyncio.Task[_Jail] | None = None

    def prepare(self) -> None:
        """Check that what runs here can be walled in. Raises SetupError."""
        if not self._walled:
            self._library = prepare_library()
            return
        if not SENTRY.exists():
            raise SetupError(
                "this executor is not inside gVisor, and so nothing would hold back the model's code: give its pod a "
                "RuntimeClass whose handler is runsc (spec.executor.runtimeClassName), or write out isolation: None"
            )
        self._root = prepare_root()
        command = cell_arguments(self._root, [PYTHON, *PYTHON_FLAGS, "-c", "pass"])
        tried = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
        if tried.returncode != 0:
            raise SetupError(f"no cell can be made here: {tried.stderr.strip()[-500:]}")

    async def run(self) -> asyncio.Server:
        """Begin to listen, with the lanes warming up."""
        self._next = asyncio.create_task(self._start_cell())
        return await asyncio.start_server(self._guest, self.settings.host, self.settings.port)

    async def close(self) -> None:
        """End what runs."""
        if self._next is not None:
            await (await self._next).end()

    async def _guest(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from its first byte to its last."""
        peer = str(writer.get_extra_info("peername"))
        unframe = wire.FrameDecoder()
        try:
            if self._guests < MOST_GUESTS and await self._admit(reader, writer, unframe, peer):
                await self._lend(reader, writer, unframe)
        except (OSError, ValueError, wire.WireError) as error:  # TimeoutError is an OSError
            log.warning("%s: the connection ended: %s: %s", peer, type(error).__name__, error)
        finally:
            writer.close()

    async def _admit(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, unframe: wire.FrameDecoder, peer: str
    ) -> bool:
        """Whether this is a worker, and the sandbox is free: then it is the worker's."""
        nonce = os.urandom(wire.NONCE_BYTES)
        bait = [str(Path(__file__)), str(self.settings.worker_key_file), *BAIT]
        self._guests += 1
        try:
            writer.write(wire.control(nonce=nonce.hex(), lanes=list(self._lanes), files=bait))
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                data = await reader.read(wire.MAX_FRAME)
                if not data:  # a probe
                    return False
                answer = next(unframe.feed(data), (wire.CONTROL, b"{}"))[1]
        finally:
            self._guests -= 1
        signature = bytes.fromhex(str(wire.message(answer).get("signature", "")))
        if not wire.is_worker(self._key, nonce, signature):
            log.warning("%s is no worker of ours: its signature is wrong", peer)
            return False
        writer.write(wire.control(state="busy" if self._owner else "yours"))
        if self._owner:
            await writer.drain()
            return False
        self._owner = peer
        return True

    async def _lend(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, unframe: wire.FrameDecoder
    ) -> None:
        """Pass bytes to and fro until either side ends; then kill what ran, and begin anew."""
        assert self._next is not None
        try:
            cell = await self._next
        except BaseException:
            self._next, self._owner = asyncio.create_task(self._start_cell()), ""
            raise
        log.info("serving %s", self._owner)
        work = [
            asyncio.create_task(self._inward(reader, cell, unframe)),
            asyncio.create_task(self._tell(writer)),
            *(asyncio.create_task(self._outward(channel, pipe, writer)) for channel, pipe in cell.readers.items()),
        ]
        try:
            done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            await cell.end()
            log.info("done with %s", self._owner)
            self._next = None if self.condemned.is_set() else asyncio.create_task(self._start_cell())
            self._owner = ""

    async def _inward(self, reader: asyncio.StreamReader, cell: _Jail, unframe: wire.FrameDecoder) -> None:
        """From the worker to the lanes."""
        while data := await wire.receive(reader):
            for channel, body in unframe.feed(data):
                if channel == wire.CONTROL:
                    if wire.message(body).get("end"):
                        log.error("the worker found this sandbox not to be tight: the pod ends")
                        self.condemned.set()
                        return
                elif channel in cell.writers:
                    cell.writers[channel].write(body)

    async def _outward(self, channel: int, pipe: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """From a lane to the worker. Its end is the end of the whole program."""
        while data := await pipe.read(wire.MAX_FRAME):
            for frame in wire.frames(channel, data):
                writer.write(frame)
            await writer.drain()

    async def _tell(self, writer: asyncio.StreamWriter) -> None:
        """That we are here, and how much memory the pod holds."""
        told, silent = 0, 0.0
        while True:
            held = memory_bytes() if self._walled else 0
            if abs(held - told) >= MEMORY_CHANGE:
                told, silent = held, 0.0
                writer.write(wire.control(memory=held))
            elif silent >= wire.PING_SECONDS:
                silent = 0.0
                writer.write(wire.control())
            silent += MEMORY_SECONDS
            await asyncio.sleep(MEMORY_SECONDS)

    async def _start_cell(self) -> _Jail:
        process, ends = await start_program(self._lanes, self._command, env=environment())
        loop = asyncio.get_running_loop()
        readers: dict[int, asyncio.StreamReader] = {}
        writers: dict[int, asyncio.WriteTransport] = {}
        for channel, name in enumerate(self._lanes):
            read_fd, write_fd = ends[name]
            readers[channel] = asyncio.StreamReader()
            protocol = asyncio.StreamReaderProtocol(readers[channel])
            await loop.connect_read_pipe(lambda protocol=protocol: protocol, os.fdopen(read_fd, "rb", 0))  # type: ignore[misc]
            writers[channel], _ = await loop.connect_write_pipe(asyncio.Protocol, os.fdopen(write_fd, "wb", 0))
        return _Jail(process, readers, writers)

    def _command(self, ends: Ends) -> list[str]:
        if self._root is None:
            assert self._library is not None
            return bare_arguments(ends, self._library)
        return cell_arguments(self._root, inside_arguments(ends, others=2 * len(ends) + OTHERS))


def memory_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Memory that everything in this gVisor sandbox holds, in bytes: gVisor counts just that."""
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    total, free = (int(fields[name].split()[0]) for name in ("MemTotal", "MemFree"))
    return (total - free) * 1024


async def serve(settings: ExecutorSettings) -> int:
    """Serve workers until SIGTERM, or until one of them found the sandbox not to be tight (then 70). SetupError."""
    server = ExecutorServer(settings)
    server.prepare()
    listening = await server.run()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    port = listening.sockets[0].getsockname()[1]
    print(f'{{"event": "ready", "role": "judge-executor", "port": {port}}}', flush=True)
    ends = [asyncio.create_task(stop.wait()), asyncio.create_task(server.condemned.wait())]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    listening.close()
    await server.close()
    return 70 if server.condemned.is_set() else 0
