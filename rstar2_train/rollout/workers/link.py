"""Messages over a connected socket: the length of each, then its pickle.

Only for the two ends of a socket pair that the orchestrator created: a pickle of any other sender could run code.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from typing import Any, Self

_SIZE = struct.Struct("<I")
_BUFFER_BYTES = 1 << 22


class WorkerLink:
    """One end. `send` never waits: what the other side has not read yet stays in memory."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, end: socket.socket) -> Self:
        """Return the link of a connected socket, which it closes."""
        return cls(*await asyncio.open_connection(sock=end, limit=_BUFFER_BYTES))

    def send(self, message: Any) -> None:
        """Send a message; without effect after the other side has closed its end."""
        if self._writer.is_closing():
            return
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        self._writer.write(_SIZE.pack(len(data)) + data)

    async def receive(self) -> Any:
        """Return the next message; None after the other side has closed its end."""
        try:
            (size,) = _SIZE.unpack(await self._reader.readexactly(_SIZE.size))
            return pickle.loads(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    def close(self) -> None:
        """Close the end; the other side receives None."""
        self._writer.close()
