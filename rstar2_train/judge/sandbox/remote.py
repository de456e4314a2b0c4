"""A sandbox in an executor pod: one TCP connection to its server (`executor_server`), which serves one worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rstar2_train.judge.sandbox import wire
from rstar2_train.judge.sandbox.base import ForbiddenTargets, Lane, Sandbox, SandboxBusy, SandboxError
from rstar2_train.utils.dns import split_address

log = logging.getLogger("rstar2.judge.sandbox")

CONNECT_SECONDS = 5.0
HANDSHAKE_SECONDS = 10.0


class RemoteSandbox(Sandbox):
    """The sandbox of the executor at HOST:PORT."""

    def __init__(self, address: str, lanes: Sequence[str], *, key: Ed25519PrivateKey, isolated: bool) -> None:
        """`key`: the workers' private key. `isolated`: see Sandbox."""
        super().__init__(lanes, id=address, isolated=isolated)
        self._key = key
        self._channels: dict[str, int] = {}
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._memory: int | None = None
        self._end_reason = "the connection was closed"

    async def start(self) -> None:
        """Connect, authenticate and wait for the first lane. Raises SandboxError, or SandboxBusy."""
        host, port = split_address(self.id)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                self._reader, self._writer = await asyncio.open_connection(host, port)
            messages = self._frames()
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                self._authenticate(wire.message((await anext(messages))[1]))
                state = wire.message((await anext(messages))[1]).get("state")
        except (OSError, TimeoutError, StopAsyncIteration, wire.WireError) as error:
            raise SandboxError(f"Cannot use the executor at {self.id}: {type(error).__name__}: {error}") from error
        if state == "busy":
            raise SandboxBusy(f"The executor at {self.id} serves another worker.")
        self._tasks = [asyncio.create_task(self._receive(messages)), asyncio.create_task(self._ping())]
        await self._wait_first_lane()

    def _authenticate(self, hello: dict[str, Any]) -> None:
        """Answer the executor's first message. Raises SandboxError if it lacks a lane."""
        assert self._writer is not None
        offered = list(hello.get("lanes", ()))
        missing = set(self.lanes) - set(offered)
        if missing:
            raise SandboxError(
                f"The executor at {self.id} has no lane {', '.join(sorted(missing))}; it has {', '.join(offered)}."
            )
        self._channels = {name: offered.index(name) for name in self.lanes}
        _, port = split_address(self.id)
        addresses = tuple(split_address(address) for address in (self.id, f"127.0.0.1:{port}"))
        self.forbidden = ForbiddenTargets(tuple(hello.get("files", ())), addresses)
        signature = wire.sign(self._key, bytes.fromhex(str(hello.get("nonce", ""))))
        self._writer.write(wire.control(signature=signature.hex()))

    async def _frames(self) -> AsyncIterator[tuple[int, bytes]]:
        assert self._reader is not None
        decoder = wire.FrameDecoder()
        while data := await wire.receive(self._reader):
            for frame in decoder.feed(data):
                yield frame

    async def _receive(self, messages: AsyncIterator[tuple[int, bytes]]) -> None:
        """Pass received frames to the lanes until the connection ends."""
        lanes = {channel: self.lanes[name] for name, channel in self._channels.items()}
        try:
            async for channel, body in messages:
                if channel == wire.CONTROL:
                    held = wire.message(body).get("memory")
                    self._memory = int(held) if held is not None else self._memory
                elif channel in lanes:
                    lanes[channel].receive(body)
        except (OSError, ValueError, wire.WireError) as error:  # TimeoutError is an OSError
            self._end_reason = f"the connection failed: {type(error).__name__}: {error}"
        self.mark_dead()

    async def _ping(self) -> None:
        assert self._writer is not None
        while True:
            await asyncio.sleep(wire.PING_SECONDS)
            self._writer.write(wire.control())

    def send(self, lane: Lane, data: bytes) -> None:
        """Write to a lane. The pool limits the calls in flight, and so the size of the send buffer."""
        assert self._writer is not None
        for frame in wire.frames(self._channels[lane.name], data):
            self._writer.write(frame)

    def disconnect(self) -> None:
        """Close the connection; the executor then kills everything that it runs for this worker."""
        if self._writer is not None:
            self._writer.close()

    def diagnostics(self) -> str:
        """Return the reason why the connection ended."""
        return f"{self.id}: {self._end_reason}"

    def memory_bytes(self) -> int | None:
        """Return the memory held by the pod, as last reported by its server; None before the first report."""
        return self._memory

    async def stop(self, *, failed_check: bool = False) -> None:
        """Release the executor, which starts a new program. After a failed check it exits and its pod restarts."""
        if failed_check and self._writer is not None and not self._writer.is_closing():
            self._writer.write(wire.control(end=True))
        self.mark_dead()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
