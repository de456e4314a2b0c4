"""The stdio transport of an MCP server with a limit of the size of a message.

Used by mcp_session.py. The SDK's own transport has no limit: a flood would stall the event loop. The server is a child
in a process group of its own, with no variable of this process except PATH. It is killed when the session ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter

from rstar2_train.tools.message_limit import MessageLimit


class BadMessage(Exception):
    """The server wrote a message that is too long or is not JSON-RPC, or it closed its output."""


@contextlib.asynccontextmanager
async def bounded_stdio(command: Sequence[str], *, max_bytes: int) -> AsyncIterator[tuple[Any, Any]]:
    """Start a server and yield the streams that the SDK's client reads and writes.

    `max_bytes`: largest message. Leaves with BadMessage (in an ExceptionGroup) for a server that violates the protocol,
    and raises OSError for a command that cannot be started.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=max_bytes,
        env={"PATH": os.environ.get("PATH", os.defpath), "HOME": "/tmp"},
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout
    incoming, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write_stream, outgoing = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        while True:
            try:
                line = await stdout.readuntil(b"\n")
                MessageLimit().count(line)
                message = jsonrpc_message_adapter.validate_json(line)
            except asyncio.IncompleteReadError as error:
                raise BadMessage("the server closed its output") from error
            except (asyncio.LimitOverrunError, ValueError) as error:
                raise BadMessage(f"message above a limit, or not JSON-RPC: {error}"[:300]) from error
            await incoming.send(SessionMessage(message))

    async def write() -> None:
        async for message in outgoing:
            stdin.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
            with contextlib.suppress(ConnectionError):  # the reader reports the end of the server
                await stdin.drain()

    try:
        async with anyio.create_task_group() as group, incoming, outgoing:
            group.start_soon(read)
            group.start_soon(write)
            yield read_stream, write_stream
            group.cancel_scope.cancel()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
