"""HTTP/1.1 connections for the requests of rollouts: turns and tool calls. Replies are passed on as they arrive.

Such a request has no redirects, cookies, proxies or compression, whose handling costs aiohttp a third of the CPU of a
sampled turn. The connections stay open. The parser is httptools, that of uvicorn.

    client of an engine or a judge --send--> HttpConnections --exchange--> _Connection --bytes--> server
                                   <------------ data as they arrive -----------'
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Self, cast
from urllib.parse import urlsplit

import httptools

from rstar2_train.utils.event_loop import LATE_SECONDS

CONNECT_SECONDS = 30.0
IDLE_SECONDS = 15.0
"""Seconds after which an unused connection is not used again: well below the time that the servers of a job keep it."""
DEAD_SECONDS = 60.0
KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(DEAD_SECONDS * 1000)),
)
"""Socket options that detect the failure of a node within DEAD_SECONDS, also while a request is being written."""
MOST_TEXT_BYTES = 1 << 16
"""Bytes that are kept of a reply with an error."""
MOST_COPIED_BYTES = 1 << 16
"""Size of a body that is copied behind its head, so that both travel in one packet."""
OK = 200


@dataclass(frozen=True, slots=True)
class Route:
    """One route of one server, and the request up to the length of its body."""

    host: str
    port: int
    is_tls: bool
    head: bytes

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        token: str,
        method: str = "POST",
        content_type: str = "application/octet-stream",
        accept: str = "*/*",
    ) -> Self:
        """Return the route of a URL; `token`: bearer token, empty: none. Raises ValueError for an invalid URL."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url} is not an HTTP URL")
        is_tls = parts.scheme == "https"
        authorization = f"Authorization: Bearer {token}\r\n" if token else ""
        head = (
            f"{method} {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc}\r\n{authorization}"
            f"Accept: {accept}\r\nContent-Type: {content_type}\r\nContent-Length: "
        )
        return cls(parts.hostname, parts.port or (443 if is_tls else 80), is_tls, head.encode())


@dataclass(frozen=True, slots=True)
class Reply:
    """The status of a reply, and its text unless the status is 200."""

    status: int
    text: str = ""
    retry_after: float | None = None
    """Seconds of its header Retry-After."""


class NotConnected(ConnectionError):
    """There is no connection to the server: the request was not sent."""


class ReplyBroken(ConnectionError):
    """A reply of status 200 started and did not reach its end: the server had accepted the request."""


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
        self._retry_after: float | None = None
        self._seconds, self._since_data = 0.0, False
        self._counted_from = 0.0
        """Start of `_seconds`: that of the request, its last data, what `_progress` returns, or the end of a pause."""
        self._progress: Callable[[], float] | None = None
        self._timer: asyncio.TimerHandle | None = None
        """Fires at the end of `_seconds` or earlier. It stays set for later requests: a new one costs more."""
        self._timer_at = 0.0
        self._pass_on: Callable[[bytes], None] | None = None
        self._reply: asyncio.Future[Reply] | None = None
        self._is_complete = False

    @property
    def is_usable(self) -> bool:
        """Whether it can serve a request. A connection whose end was read closes in the next turn of the loop."""
        return self.is_open and self._transport is not None and not self._transport.is_closing()

    async def exchange(
        self,
        request: Sequence[bytes | bytearray],
        pass_on: Callable[[bytes], None],
        *,
        seconds: float,
        since_data: bool,
        progress: Callable[[], float] | None,
    ) -> Reply:
        """Send a request, in parts, and wait for the end of its reply; otherwise as `HttpConnections.send`.

        Closes the connection unless it can serve the next request.
        """
        assert self._transport is not None
        self._reply, self._pass_on = asyncio.get_running_loop().create_future(), pass_on
        self._is_complete = self.has_reply = False
        self._retry_after = None
        self._text.clear()
        self._seconds, self._since_data, self._progress = seconds, since_data, progress
        self._counted_from = time.monotonic()
        self._set_timer()
        try:
            if not self.is_open:
                raise ConnectionResetError("the server closed the connection")
            for part in request:
                self._transport.write(part)
            return await self._reply
        finally:
            self._reply = self._pass_on = None
            if not self._is_complete:
                self.close()

    def close(self) -> None:
        """Close the connection immediately: an engine aborts the request."""
        self.is_open = False
        self._stop_timer()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        opened = self._transport.get_extra_info("socket")
        for level, option, value in KEEPALIVE:
            opened.setsockopt(level, option, value)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        self.has_reply = True
        if self._since_data:
            self._counted_from = time.monotonic()
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
                text = self._text.decode(errors="replace")
                self._reply.set_result(Reply(self._parser.get_status_code(), text, self._retry_after))

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._stop_timer()
        if isinstance(error, OSError) and self._has_accepted:
            self._fail(ReplyBroken(str(error)))
        elif isinstance(error, OSError):
            self._fail(error)
        elif self._has_accepted:
            self._fail(ReplyBroken("the server closed the connection before the end of its reply"))
        else:
            self._fail(ConnectionResetError("the server closed the connection before its reply"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note the header Retry-After; called by the parser."""
        if name.lower() == b"retry-after" and value.isdigit():
            self._retry_after = float(value)

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

    def _set_timer(self) -> None:
        end = self._counted_from + self._seconds
        if self._timer is None or end < self._timer_at:
            self._stop_timer()
            self._timer_at = end
            self._timer = asyncio.get_running_loop().call_later(end - time.monotonic(), self._on_timer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        if self._reply is None:  # the next request sets it
            return
        if self._progress is not None:
            self._counted_from = max(self._counted_from, self._progress())
        if time.monotonic() - self._timer_at > LATE_SECONDS:  # the time of a pause is no silence of the server
            self._counted_from = time.monotonic()
        if time.monotonic() < self._counted_from + self._seconds:
            self._set_timer()
        elif self._since_data and self._has_accepted:
            self._fail(ReplyBroken(f"no data for {self._seconds:g} s"))
        else:
            self._fail(TimeoutError(f"no {'data' if self._since_data else 'whole reply'} for {self._seconds:g} s"))

    @property
    def _has_accepted(self) -> bool:
        """Whether the server has accepted the request."""
        return self.has_reply and self._parser.get_status_code() == OK

    def _fail(self, error: Exception) -> None:
        if self._reply is None or self._reply.done():
            return
        self._is_complete = False
        self._reply.set_exception(error)


class HttpConnections:
    """The connections of one process to all servers. Belongs to the event loop in which it is used."""

    def __init__(self, *, connect_seconds: float = CONNECT_SECONDS) -> None:
        self._connect_seconds = connect_seconds
        self._idle: defaultdict[tuple[str, int, bool], list[_Connection]] = defaultdict(list)

    def close(self) -> None:
        """Close the unused connections; a connection in use closes with its request."""
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    async def send(
        self,
        route: Route,
        body: bytes | bytearray,
        pass_on: Callable[[bytes], None],
        *,
        seconds: float,
        since_data: bool = False,
        progress: Callable[[], float] | None = None,
        repeat: bool = True,
    ) -> Reply:
        """Send `body`; call `pass_on` with the data of a reply of status 200 as they arrive; return at its end.

        `seconds`: limit of the time of the request, or with `since_data` of the time without data; it starts again
        after a pause of this process. `progress`: the time (`time.monotonic`) at which the server last made progress
        with any request: the limit counts from it. `repeat`: send the request again if a kept connection closes before
        the first byte of the reply, as when the server closed it while the request was in flight; without it, the ends
        of idle connections are read first.

        Raises NotConnected before the request is sent, TimeoutError, ReplyBroken, another OSError when the connection
        fails, and any error of `pass_on`. An error or a cancellation closes the connection.
        """
        head = b"%b%d\r\n\r\n" % (route.head, len(body))
        request = [head + body] if len(body) <= MOST_COPIED_BYTES else [head, body]
        idle = self._idle[route.host, route.port, route.is_tls]
        if not repeat:  # the first turn of the loop reads the ends, the second one closes the transports
            for _ in range(2):
                await asyncio.sleep(0)
        while True:
            kept = _newest(idle)
            connect_seconds = self._connect_seconds if since_data else min(seconds, self._connect_seconds)
            connection = kept or await _open(route, seconds=connect_seconds)
            try:
                reply = await connection.exchange(
                    request, pass_on, seconds=seconds, since_data=since_data, progress=progress
                )
            except ConnectionError:
                if kept is None or kept.has_reply or not repeat:
                    raise
                continue
            if connection.is_usable:
                connection.idle_since = time.monotonic()
                idle.append(connection)
            else:
                connection.close()
            return reply

    async def fetch(
        self,
        route: Route,
        body: bytes | bytearray = b"",
        *,
        seconds: float,
        since_data: bool = False,
        repeat: bool = True,
    ) -> tuple[Reply, bytearray]:
        """Send `body`; return the reply, and its data if its status is 200. Otherwise as `send`."""
        data = bytearray()
        reply = await self.send(route, body, data.extend, seconds=seconds, since_data=since_data, repeat=repeat)
        return reply, data


def _newest(idle: list[_Connection]) -> _Connection | None:
    """Remove and return the connection that was used last; None if none is open. Closes those unused for too long."""
    while idle:
        connection = idle.pop()
        if connection.is_usable:
            if time.monotonic() - connection.idle_since < IDLE_SECONDS:
                return connection
            connection.close()
    return None


async def _open(route: Route, *, seconds: float) -> _Connection:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds):
            _, connection = await loop.create_connection(
                _Connection, route.host, route.port, ssl=_tls() if route.is_tls else None
            )
    except TimeoutError as error:
        raise NotConnected(f"no connection within {seconds:g} s") from error
    except OSError as error:
        raise NotConnected(str(error)) from error
    return connection


@cache
def _tls() -> ssl.SSLContext:
    """Return the settings of TLS; reading the certificates of the machine takes long."""
    return ssl.create_default_context()
