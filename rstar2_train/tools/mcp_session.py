"""One session with an MCP server: its tools and its calls, with a deadline and a limit of the answer.

    toolset (signatures, when a job starts), rollout.remote_tools (one session per rollout and server)
        --> McpSession --> mcp SDK --> HTTP, or mcp_stdio (a child process)

The server is an untrusted peer. A server that hangs, dies, floods or violates the protocol is an infrastructure
failure, `ServerLost`. An error that the server returns for a call is an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from rstar2_train.api.tasks import MCPServerSpec

CONNECT_SECONDS = 30.0
"""Time until a server has listed its tools. The start of a Python server takes seconds on a loaded machine."""
MAX_MESSAGE_BYTES = 1 << 20
"""Largest message, or body of an HTTP response, that a server may send."""
CLOSE_SECONDS = 5.0
_INVALID_PARAMS = -32602
"""Code of the JSON-RPC error of servers that report wrong arguments not as a result."""


class ServerLost(Exception):
    """A server of tools or an environment failed: an infrastructure failure, never the model's."""


@dataclass(frozen=True, slots=True)
class McpAnswer:
    """The result of a call."""

    text: str
    is_error: bool
    """Whether the server reports a tool error."""


class McpSession:
    """A session with one server. Use as `async with`; entering it raises ServerLost."""

    def __init__(self, spec: MCPServerSpec) -> None:
        self._spec = spec
        self.tools: list[Any] = []
        """The server's tools, as `mcp.types.Tool`."""

    async def __aenter__(self) -> Self:
        self._ready = asyncio.get_running_loop().create_future()
        # A task of its own: the SDK reports a lost HTTP server as a cancellation of the task that holds the client.
        self._task = asyncio.create_task(self._hold())
        await asyncio.wait({self._ready, self._task}, timeout=CONNECT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not self._ready.done():
            failed = self._task.done()
            await self._close()
            raise self._lost("cannot be used" if failed else f"did not list its tools within {CONNECT_SECONDS:g} s")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def call(self, name: str, arguments: dict[str, Any], *, seconds: float) -> McpAnswer:
        """Return the answer to one call. Raises ServerLost, also when `seconds` have passed."""
        from mcp import MCPError

        request = self._client.call_tool(name, arguments, read_timeout_seconds=seconds + 1)
        call = asyncio.create_task(request)
        try:
            await asyncio.wait({call, self._task}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not call.done() and self._task.done():
                raise self._lost(f"closed the connection during call {name}")
            if not call.done():
                raise self._lost(f"did not answer call {name} within {seconds:g} s")
            return _answer(call.result())
        except asyncio.CancelledError:
            if not call.cancelled():
                raise  # this rollout itself is cancelled
            await asyncio.wait({self._task}, timeout=1)
            raise self._lost(f"closed the connection during call {name}") from None
        except MCPError as error:
            if error.error.code == _INVALID_PARAMS:
                return McpAnswer(error.error.message, is_error=True)
            raise self._lost(f"failed during call {name}: {error}") from error
        except (ValueError, OSError, RuntimeError) as error:  # an answer that violates the protocol's schema
            raise self._lost(f"gave a faulty answer to {name}: {type(error).__name__}: {error}") from error
        finally:
            call.cancel()

    async def _hold(self) -> None:
        """Hold the connection until the session is closed, or until the server is lost."""
        from mcp import Client

        async with contextlib.AsyncExitStack() as stack:
            transport = await stack.enter_async_context(self._transport())
            # The older protocol has sessions over HTTP; the newest has none.
            self._client = await stack.enter_async_context(
                Client(contextlib.nullcontext(transport), mode="legacy", cache=None)
            )
            self.tools = (await self._client.list_tools()).tools
            self._ready.set_result(None)
            await asyncio.Event().wait()

    @contextlib.asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        if self._spec.url is None:
            from rstar2_train.tools.mcp_stdio import bounded_stdio

            async with bounded_stdio(self._spec.command, max_bytes=MAX_MESSAGE_BYTES) as streams:
                yield streams
            return
        from mcp.client.streamable_http import streamable_http_client

        from rstar2_train.tools.bounded_http import bounded_client

        token = os.environ.get(self._spec.token_variable)
        headers = {"authorization": f"Bearer {token}"} if token else {}
        async with (
            bounded_client(headers, max_bytes=MAX_MESSAGE_BYTES) as http,
            streamable_http_client(self._spec.url, http_client=http) as streams,
        ):
            yield streams

    async def _close(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task}, timeout=CLOSE_SECONDS)
        if self._task.done() and not self._task.cancelled():
            self._task.exception()  # read: an earlier call has reported it

    def _lost(self, event: str) -> ServerLost:
        """Return the error of a lost server, with the cause that its connection reports."""
        cause = ""
        if self._task.done() and not self._task.cancelled():
            error = self._task.exception()
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            cause = f" ({type(error).__name__}: {error})"[:300] if error is not None else ""
        return ServerLost(f"MCP server {self._spec.name} {event}{cause}")


def list_tools(servers: Sequence[MCPServerSpec]) -> dict[str, list[Any]]:
    """Return the tools of each server by its name, as `mcp.types.Tool`. Blocks. Raises ServerLost."""
    from rstar2_train.utils.run_in_new_loop import run_in_new_loop

    async def list_all() -> dict[str, list[Any]]:
        tools = {}
        for server in servers:
            async with McpSession(server) as session:
                tools[server.name] = session.tools
        return tools

    return run_in_new_loop(list_all())


def _answer(result: Any) -> McpAnswer:
    """Return the text of a result; a part that is not text is named."""
    parts = [part.text if part.type == "text" else f"({part.type} omitted)" for part in result.content]
    return McpAnswer("\n".join(parts), is_error=bool(result.is_error))
