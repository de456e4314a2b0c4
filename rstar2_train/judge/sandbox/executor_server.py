"""The server in an executor pod (`python -m rstar2_train.judge executor`). It serves one worker at a time.

The pod's gVisor isolates it from the node. The program inside (executor/program.py) runs in a jail, where it cannot
access the pod or this server. The server forwards bytes between the worker's connection and the pipes of the lanes
without parsing them. When a connection ends, it kills everything that ran for it before it serves another worker.
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
    jail_arguments,
    sandbox_arguments,
    start_program,
)
from rstar2_train.judge.sandbox.rootfs import PYTHON, SetupError, choose_lanes, prepare_library, prepare_root
from rstar2_train.utils.listening import bind
from rstar2_train.utils.loop_watch import watch_loop

log = logging.getLogger("rstar2.judge.executor")

HANDSHAKE_SECONDS = 10.0
MAX_UNAUTHENTICATED = 32
"""Connections at a time that have not authenticated yet."""
MEMORY_SECONDS = 0.2
MEMORY_CHANGE = 1 << 20
"""Change of the pod's memory that is reported to the worker, in bytes."""
SERVER_PROCESSES = 24
"""Processes and threads of this server. It has the same user as the calls, so their process limit counts them."""
FORBIDDEN_FILES = ("/etc/resolv.conf", "/dev/null", "/dev/fd", "/usr")
"""Paths that every pod has and a jail must not have."""
SENTRY = Path("/proc/sentry-meminfo")
"""A file that exists only in gVisor."""
EXIT_FAILED_CHECK = 70


@dataclass(frozen=True, slots=True)
class ExecutorSettings:
    """Options of `python -m rstar2_train.judge executor`."""

    host: str
    port: int
    worker_key_file: Path
    isolation: Isolation = "gvisor"
    lanes: tuple[str, ...] | None = None


@dataclass(slots=True)
class _Jail:
    """The program and the pipes of its lanes, by channel."""

    process: asyncio.subprocess.Process
    readers: dict[int, asyncio.StreamReader]
    writers: dict[int, asyncio.WriteTransport]

    async def kill(self) -> None:
        """Kill the program and all its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for writer in self.writers.values():
            writer.close()
        await self.process.wait()


class ExecutorServer:
    """One jail and the worker that uses it. `prepare` it, then `run` it."""

    def __init__(self, settings: ExecutorSettings) -> None:
        self.settings = settings
        self.failed_check = asyncio.Event()
        """Set when a worker reports that the jail failed the isolation check."""
        self._key: Ed25519PublicKey = wire.read_public_key(settings.worker_key_file)
        self._lanes = choose_lanes(settings.lanes)
        self._isolated = settings.isolation == "gvisor"
        self._root: Path | None = None
        self._library: Path | None = None
        self._owner = ""
        """Address of the worker that uses the jail; empty if none does."""
        self._unauthenticated = 0
        self._next: asyncio.Task[_Jail] | None = None

    def prepare(self) -> None:
        """Check that programs can be isolated here. Raises SetupError."""
        if not self._isolated:
            self._library = prepare_library()
            return
        if not SENTRY.exists():
            raise SetupError(
                "This executor is not inside gVisor, so the model's code would run unprotected. Set "
                "spec.executor.runtimeClassName to a RuntimeClass whose handler is runsc, or spec.executor.isolation "
                "to None."
            )
        self._root = prepare_root()
        command = jail_arguments(self._root, [PYTHON, *PYTHON_FLAGS, "-c", "pass"])
        trial = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
        if trial.returncode != 0:
            raise SetupError(f"No jail can be created in this pod: {trial.stderr.strip()[-500:]}")

    async def run(self) -> asyncio.Server:
        """Start to listen, while the lanes of the first jail warm up."""
        self._next = asyncio.create_task(self._start_jail())
        listener = bind(self.settings.host, self.settings.port)
        return await asyncio.start_server(self._serve_connection, sock=listener)

    async def close(self) -> None:
        """Kill the jail."""
        if self._next is not None:
            await (await self._next).kill()

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = str(writer.get_extra_info("peername"))
        decoder = wire.FrameDecoder()
        try:
            if self._unauthenticated < MAX_UNAUTHENTICATED and await self._admit(reader, writer, decoder, peer):
                await self._serve_worker(reader, writer, decoder)
        except (OSError, ValueError, wire.WireError) as error:  # TimeoutError is an OSError
            log.warning("Connection of %s failed: %s: %s", peer, type(error).__name__, error)
        finally:
            writer.close()

    async def _admit(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, decoder: wire.FrameDecoder, peer: str
    ) -> bool:
        """Authenticate a peer. Return whether it is a worker and the jail was free, so that it now owns the jail."""
        nonce = os.urandom(wire.NONCE_BYTES)
        forbidden = [str(Path(__file__)), str(self.settings.worker_key_file), *FORBIDDEN_FILES]
        self._unauthenticated += 1
        try:
            writer.write(wire.control(nonce=nonce.hex(), lanes=list(self._lanes), files=forbidden))
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                data = await reader.read(wire.MAX_FRAME)
                if not data:  # a readiness probe
                    return False
                answer = next(decoder.feed(data), (wire.CONTROL, b"{}"))[1]
        finally:
            self._unauthenticated -= 1
        signature = bytes.fromhex(str(wire.message(answer).get("signature", "")))
        if not wire.is_worker(self._key, nonce, signature):
            log.warning("Rejected %s: invalid worker signature.", peer)
            return False
        writer.write(wire.control(state="busy" if self._owner else "yours"))
        if self._owner:
            await writer.drain()
            return False
        self._owner = peer
        return True

    async def _serve_worker(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, decoder: wire.FrameDecoder
    ) -> None:
        """Forward bytes both ways until either side ends; then kill the jail and start a new one."""
        assert self._next is not None
        try:
            jail = await self._next
        except BaseException:
            self._next, self._owner = asyncio.create_task(self._start_jail()), ""
            raise
        log.info("Serving worker %s.", self._owner)
        tasks = [
            asyncio.create_task(self._forward_requests(reader, jail, decoder)),
            asyncio.create_task(self._report_memory(writer)),
            *(
                asyncio.create_task(self._forward_responses(channel, pipe, writer))
                for channel, pipe in jail.readers.items()
            ),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await jail.kill()
            log.info("Worker %s disconnected.", self._owner)
            self._next = None if self.failed_check.is_set() else asyncio.create_task(self._start_jail())
            self._owner = ""

    async def _forward_requests(self, reader: asyncio.StreamReader, jail: _Jail, decoder: wire.FrameDecoder) -> None:
        """Forward from the worker to the lanes."""
        while data := await wire.receive(reader):
            for channel, body in decoder.feed(data):
                if channel == wire.CONTROL:
                    if wire.message(body).get("end"):
                        log.error("Sandbox failed the worker's isolation check; exiting.")
                        self.failed_check.set()
                        return
                elif channel in jail.writers:
                    jail.writers[channel].write(body)

    async def _forward_responses(self, channel: int, pipe: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward from a lane to the worker. The end of a lane is the end of the whole program."""
        while data := await pipe.read(wire.MAX_FRAME):
            for frame in wire.frames(channel, data):
                writer.write(frame)
            await writer.drain()

    async def _report_memory(self, writer: asyncio.StreamWriter) -> None:
        """Send the memory of the pod when it changes, and a ping when nothing was sent for PING_SECONDS."""
        reported, silent_seconds = 0, 0.0
        while True:
            held = memory_bytes() if self._isolated else 0
            if abs(held - reported) >= MEMORY_CHANGE:
                reported, silent_seconds = held, 0.0
                writer.write(wire.control(memory=held))
            elif silent_seconds >= wire.PING_SECONDS:
                silent_seconds = 0.0
                writer.write(wire.control())
            silent_seconds += MEMORY_SECONDS
            await asyncio.sleep(MEMORY_SECONDS)

    async def _start_jail(self) -> _Jail:
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
        program = sandbox_arguments(ends, other_processes=2 * len(ends) + SERVER_PROCESSES)
        return jail_arguments(self._root, program)


def memory_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return the memory held by everything in this gVisor sandbox, in bytes; its /proc/meminfo counts exactly that."""
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    total, free = (int(fields[name].split()[0]) for name in ("MemTotal", "MemFree"))
    return (total - free) * 1024


async def serve(settings: ExecutorSettings) -> int:
    """Serve workers until SIGTERM (exit status 0) or a failed isolation check (70). Raises SetupError."""
    server = ExecutorServer(settings)
    server.prepare()
    listener = await server.run()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    port = listener.sockets[0].getsockname()[1]
    print(f'{{"event": "ready", "role": "judge-executor", "port": {port}}}', flush=True)
    ends = [asyncio.create_task(stop.wait()), asyncio.create_task(server.failed_check.wait())]
    with watch_loop():
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    listener.close()
    await server.close()
    return EXIT_FAILED_CHECK if server.failed_check.is_set() else 0
