"""HTTP/1.1 connections for sampled turns: a POST whose reply is passed on as it arrives. They stay open.

aiohttp makes all other calls. A turn has no redirects, cookies, proxies or compression, whose handling costs aiohttp a
third of the CPU of a request. The parser is httptools, that of uvicorn.

    client.generate --post--> TurnConnections --exchange--> _Connection --bytes--> engine
                    <-------------- data as they arrive ---------'
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, cast
from urllib.parse import urlsplit

import httptools

CONNECT_SECONDS = 30.0
IDLE_SECONDS = 15.0
"""Seconds after which an unused connection is not used again: well below the time that the engines of a job keep it."""
MOST_TEXT_BYTES = 1 << 16
"""Bytes that are kept of a reply with an error."""
OK = 200


@dataclass(frozen=True, slots=True)
class Route:
    """One route of one server, and the request up to the length of its body."""

    host: str
    port: int
    is_tls: bool
    head: bytes

    @classmethod
    def of(cls, url: str, *, token: str) -> Self:
        """Return the route of a URL; `token`: bearer token. Raises ValueError for an invalid URL."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url} is not an HTTP URL")
        is_tls = parts.scheme == "https"
        head = (
            f"POST {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {token}\r\n"
            "Accept: */*\r\nContent-Type: application/octet-stream\r\nContent-Length: "
        )
        return cls(parts.hostname, parts.port or (443 if is_tls else 80), is_tls, head.encode())


@dataclass(frozen=True, slots=True)
class Reply:
    """The status of a reply, and its text unless the status is 200."""

    status: int
    text: str = ""


class _Connection(asyncio.Protocol):
    """One connection: one exchange after another."""

    def __init__(self) -> None:
        self.is_open = False
        self.has_reply = False
        """Whether a byte of the present reply has arrived."""
        self.idle_since = 0.0
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._received: list[bytes] = []
        self._text = bytearray()
        self._pass_on: Callable[[bytes], None] | None = None
        self._reply: asyncio.Future[Reply] | None = None
        self._is_complete = False

    async def exchange(self, request: bytes, pass_on: Callable[[bytes], None], *, seconds: float) -> Reply:
        """Send a request and wait for the end of its reply; otherwise as `TurnConnections.post`.

        Closes the connection unless it can serve the next request.
        """
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        self._reply, self._pass_on = loop.create_future(), pass_on
        self._is_complete = self.has_reply = False
        self._text.clear()
        timer = loop.call_later(seconds, self._fail, TimeoutError())
        try:
            if not self.is_open:
                raise ConnectionResetError("the server closed the connection")
            self._transport.write(request)
            return await self._reply
        finally:
            timer.cancel()
            self._reply = self._pass_on = None
            if not self._is_complete:
                self.close()

    def close(self) -> None:
        """Close the connection immediately: the engine aborts the request."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        self.has_reply = True
        if self._reply is None or self._reply.done():  # bytes that no request asked for
            self.close()
            return
        try:
            self._parser.feed_data(data)
            if self._received:
                self._take(b"".join(self._received) if len(self._received) > 1 else self._received[0])
                self._received.clear()
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"the reply is not HTTP/1.1: {error}"))
        except Exception as error:  # of the receiver: `exchange` raises it
            self._fail(error)
        else:
            if self._is_complete:
                self._reply.set_result(Reply(self._parser.get_status_code(), self._text.decode(errors="replace")))

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if isinstance(error, OSError):
            self._fail(error)
        else:
            self._fail(ConnectionResetError("the server closed the connection before the end of its reply"))

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body; called by the parser."""
        self._received.append(body)

    def on_message_complete(self) -> None:
        """Note the end of the reply; called by the parser."""
        if self._is_complete:
            raise ValueError("a second reply to one request")
        self._is_complete = True
        self.is_open = self.is_open and self._parser.should_keep_alive()

    def _take(self, data: bytes) -> None:
        if self._parser.get_status_code() == OK:
            assert self._pass_on is not None
            self._pass_on(data)
        elif len(self._text) < MOST_TEXT_BYTES:
            self._text += data

    def _fail(self, error: Exception) -> None:
        if self._reply is not None and not self._reply.done():
            self._is_complete = False
            self._reply.set_exception(error)


class TurnConnections:
    """The connections of one process to all servers. Belongs to the event loop in which it is used."""

    def __init__(self) -> None:
        self._idle: defaultdict[tuple[str, int, bool], list[_Connection]] = defaultdict(list)

    def close(self) -> None:
        """Close the unused connections; a connection in use closes with its request."""
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    async def post(self, route: Route, body: bytes, pass_on: Callable[[bytes], None], *, seconds: float) -> Reply:
        """Send `body`; call `pass_on` with the data of a reply of status 200 as they arrive; return at its end.

        A request whose kept connection closes before the first byte of the reply is sent again: the server closed the
        connection while the request was in flight. Raises TimeoutError after `seconds`, OSError when the connection
        fails, and any error of `pass_on`. An error or a cancellation closes the connection.
        """
        request = b"%b%d\r\n\r\n%b" % (route.head, len(body), body)
        idle = self._idle[route.host, route.port, route.is_tls]
        while True:
            kept = _newest(idle)
            connection = kept or await _open(route, seconds=min(seconds, CONNECT_SECONDS))
            try:
                reply = await connection.exchange(request, pass_on, seconds=seconds)
            except ConnectionError:
                if kept is None or kept.has_reply:
                    raise
                continue
            if connection.is_open:
                connection.idle_since = time.monotonic()
                idle.append(connection)
            else:
                connection.close()
            return reply


def _newest(idle: list[_Connection]) -> _Connection | None:
    """Remove and return the connection that was used last; None if none is open. Closes those unused for too long."""
    while idle:
        connection = idle.pop()
        if connection.is_open:
            if time.monotonic() - connection.idle_since < IDLE_SECONDS:
                return connection
            connection.close()
    return None


async def _open(route: Route, *, seconds: float) -> _Connection:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(seconds):
        _, connection = await loop.create_connection(
            _Connection, route.host, route.port, ssl=True if route.is_tls else None
        )
    return connection
