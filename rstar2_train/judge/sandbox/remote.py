"""A sandbox in a pod of its own: one connection to its server (`executor_server`), which this worker alone then has."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rstar2_train.judge.sandbox import wire
from rstar2_train.judge.sandbox.base import Bait, Lane, Sandbox, SandboxBusy, SandboxError
from rstar2_train.utils.dns import split_address

log = logging.getLogger("rstar2.judge.sandbox")

CONNECT_SECONDS = 5.0
HANDSHAKE_SECONDS = 10.0


class RemoteSandbox(Sandbox):
    """A sandbox at HOST:PORT."""

    def __init__(self, address: str, lanes: Sequence[str], *, key: Ed25519PrivateKey, walled: bool) -> None:
        super().__init__(lanes, id=address, walled=walled)
        self._key = key
        self._channels: dict[str, int] = {}
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._memory: int | None = None
        self._why = "the connection ended"

    async def start(self) -> None:
        """Connects, proves to be a worker and waits for the first lane. Raises SandboxError, SandboxBusy."""
        host, port = split_address(self.id)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                self._reader, self._writer = await asyncio.open_connection(host, port)
            messages = self._frames()
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                self._meet(wire.message((await anext(messages))[1]))
                state = wire.message((await anext(messages))[1]).get("state")
        except (OSError, TimeoutError, StopAsyncIteration, wire.WireError) as error:
            raise SandboxError(f"no executor at {self.id}: {type(error).__name__}: {error}") from error
        if state == "busy":
            raise SandboxBusy(f"the executor at {self.id} serves another worker")
        self._tasks = [asyncio.create_task(self._listen(messages)), asyncio.create_task(self._ping())]
        await self._first_lane()

    def _meet(self, hello: dict[str, Any]) -> None:
        """Answers the executor's first words. Raises SandboxError for one that cannot do what is wanted."""
        assert self._writer is not None
        offered = list(hello.get("lanes", ()))
        missing = set(self.lanes) - set(offered)
        if missing:
            raise SandboxError(f"the executor at {self.id} has no lane {', '.join(sorted(missing))}; it has {offered}")
        self._channels = {name: offered.index(name) for name in self.lanes}
        here = (self.id, *(f"127.0.0.1:{port}" for _, port in [split_address(self.id)]))
        self.bait = Bait(tuple(hello.get("files", ())), tuple(split_address(address) for address in here))
        signature = wire.sign(self._key, bytes.fromhex(str(hello.get("nonce", ""))))
        self._writer.write(wire.control(signature=signature.hex()))

    async def _frames(self) -> AsyncIterator[tuple[int, bytes]]:
        assert self._reader is not None
        unframe = wire.FrameDecoder()
        while data := await wire.receive(self._reader):
            for frame in unframe.feed(data):
                yield frame

    async def _listen(self, messages: AsyncIterator[tuple[int, bytes]]) -> None:
        """Hands what comes to the lanes, until the end."""
        lanes = {channel: self.lanes[name] for name, channel in self._channels.items()}
        try:
            async for channel, body in messages:
                if channel == wire.CONTROL:
                    held = wire.message(body).get("memory")
                    self._memory = int(held) if held is not None else self._memory
                elif channel in lanes:
                    lanes[channel].received(body)
        except (OSError, ValueError, wire.WireError) as error:  # TimeoutError is an OSError
            self._why = f"the connection ended: {type(error).__name__}: {error}"
        self.died()

    async def _ping(self) -> None:
        assert self._writer is not None
        while True:
            await asyncio.sleep(wire.PING_SECONDS)
            self._writer.write(wire.control())

    def send(self, lane: Lane, data: bytes) -> None:
        """Writes to a lane. What is not sent yet is bounded by the calls that the pool lets in."""
        assert self._writer is not None
        for frame in wire.frames(self._channels[lane.name], data):
            self._writer.write(frame)

    def hang_up(self) -> None:
        """Ends the connection, and with it all that runs in the executor for us."""
        if self._writer is not None:
            self._writer.close()

    def said(self) -> str:
        """Why the connection ended."""
        return f"{self.id}: {self._why}"

    def memory_bytes(self) -> int | None:
        """Memory that everything in the pod holds, as its server last told; None before it did."""
        return self._memory

    async def stop(self, *, condemned: bool = False) -> None:
        """Lets go of the executor, which starts afresh; a condemned one is asked to end: its pod is started anew."""
        if condemned and self._writer is not None and not self._writer.is_closing():
            self._writer.write(wire.control(end=True))
        self.died()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
