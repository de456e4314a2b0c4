"""The process of an agent's program on this machine: it gets its row on standard input, endpoint and key as variables.

`pods.py` runs programs in pods instead; `Program` is the common form.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Protocol

from rstar2_train.tools.mcp_session import ServerLost
from rstar2_train.utils.supervisor import describe_exit

_PR_SET_PDEATHSIG = 1
STDERR_BYTES = 2000
"""Last bytes of standard error that the message of a lost rollout has."""

_LAUNCHER = f"""
import ctypes, os, sys
ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {int(signal.SIGKILL)})
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Program that becomes the agent's, and dies with this process. A `preexec_fn` is unsafe next to the threads of Ray."""


class Program(Protocol):
    """A running program."""

    @property
    def exited(self) -> bool:
        """Whether the program itself has exited."""

    @property
    def stderr(self) -> bytes:
        """End of its standard error."""

    def end(self) -> str | None:
        """Return how the program has ended, such as `exited with code 1`; None while it runs."""

    async def wait(self) -> None:
        """Wait until the program has ended."""


@dataclass
class LocalProgram:
    """A process of this machine."""

    process: asyncio.subprocess.Process
    tail: bytearray = field(default_factory=bytearray)

    @property
    def exited(self) -> bool:
        """Whether the process has exited."""
        return self.process.returncode is not None

    @property
    def stderr(self) -> bytes:
        """End of its standard error."""
        return bytes(self.tail[-STDERR_BYTES:])

    def end(self) -> str | None:
        """Return how the process has ended; None while it runs."""
        return None if self.process.returncode is None else describe_exit(self.process.returncode)

    async def wait(self) -> None:
        """Wait until the process has exited."""
        await self.process.wait()


@contextlib.asynccontextmanager
async def start_process(
    command: Sequence[str], variables: Mapping[str, str], row: Mapping[str, Any]
) -> AsyncIterator[LocalProgram]:
    """Run a program in a process group of its own, which is killed at the end. Raises ServerLost.

    It has no variable of this process but PATH: the others hold the tokens of the engines.
    """
    if shutil.which(command[0]) is None:
        raise ServerLost(f"agent program: spec.agent.command: no such program: {command[0]}")
    # No pipe of asyncio's: its `wait` returns only when a process that the program left behind closes them too.
    with tempfile.TemporaryFile() as stdin, _pipe() as (stderr, write_end):
        stdin.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        stdin.seek(0)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-ISc", _LAUNCHER, str(os.getpid())),
            *command,
            stdin=stdin,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=write_end,
            env={"PATH": os.environ.get("PATH", os.defpath), "HOME": "/tmp", **variables},
            start_new_session=True,
        )
        write_end.close()
        program = LocalProgram(process)
        reading = asyncio.create_task(_keep_tail(stderr, program.tail))
        try:
            yield program
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Yield the read end and the write end of a pipe."""
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb", 0) as reader, os.fdopen(write_end, "wb", 0) as writer:
        yield reader, writer


async def _keep_tail(pipe: IO[bytes], tail: bytearray) -> None:
    """Keep the end of the program's output until it is closed."""
    stream = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(stream)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
    try:
        while data := await stream.read(1 << 16):
            tail += data
            del tail[:-STDERR_BYTES]
    finally:
        transport.close()
