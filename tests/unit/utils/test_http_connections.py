"""The connections of rollouts, against a server that writes given bytes: every way in which a reply can fail."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from rstar2_train.utils.event_loop import LATE_SECONDS
from rstar2_train.utils.http_connections import (
    HttpConnections,
    NotConnected,
    Reply,
    ReplyBroken,
    Route,
)
from tests.support.clock import Clock

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
WHOLE = HEAD + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
BODY = b"body"


class Server:
    """Answers each request of a connection with the next of the given steps: bytes, or a function of the connection."""

    def __init__(self, *steps: bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]) -> None:
        self.requests: list[tuple[int, bytes]] = []
        """Number of the connection and head of each request, in order."""
        self.closed = asyncio.Event()
        """Set when a client has closed a connection."""
        self._steps = list(steps)
        self._connections = 0
        self.route: Route

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Server"]:
        """Serve on a free port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        self.route = Route.from_url(f"http://127.0.0.1:{port}/path", token="secret")
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        number = self._connections
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                assert await reader.readexactly(len(BODY)) == BODY
                self.requests.append((number, head))
                step = self._steps.pop(0)
                if isinstance(step, bytes):
                    writer.write(step)
                else:
                    await step(writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.closed.set()
        finally:
            writer.close()

    @property
    def connections(self) -> list[int]:
        """Number of the connection of each request."""
        return [number for number, _ in self.requests]


@asynccontextmanager
async def connected(*steps: bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator["Client"]:
    """Serve the steps, and yield a client of the server."""
    async with Server(*steps).serving() as server, asyncio.timeout(60):
        client = Client(server)
        try:
            yield client
        finally:
            client.connections.close()


class Client:
    """Sends requests and records what arrives."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.connections = HttpConnections()
        self.data = b""

    async def post(self, *, seconds: float = 30, since_data: bool = False, repeat: bool = True) -> Reply:
        """Send one request."""
        return await self.connections.send(
            self.server.route, BODY, self._add, seconds=seconds, since_data=since_data, repeat=repeat
        )

    @property
    def open_connections(self) -> int:
        """Number of unused connections that are open."""
        return sum(connection.is_open for idle in self.connections._idle.values() for connection in idle)

    def _add(self, data: bytes) -> None:
        self.data += data


async def close(writer: asyncio.StreamWriter) -> None:
    """Close the connection."""
    writer.close()


async def break_off(writer: asyncio.StreamWriter) -> None:
    """Close the connection in the middle of a reply."""
    writer.write(HEAD + b"3\r\nabc\r\n")
    writer.close()


async def hang(writer: asyncio.StreamWriter) -> None:
    """Answer nothing until the client closes the connection."""
    await asyncio.wait_for(writer.wait_closed(), 60)


async def test_post_sends_the_request_and_reuses_the_connection() -> None:
    """The head has the token and the length; chunks arrive without their framing; one connection serves all."""
    length = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nxyz"
    async with connected(WHOLE, length, WHOLE) as client:
        assert await client.post() == Reply(200)
        assert client.data == b"abcde"
        await client.post()
        await client.post()
        assert client.data == b"abcdexyzabcde"
        assert client.server.connections == [1, 1, 1]
        head = client.server.requests[0][1].decode().split("\r\n")
        assert head[0] == "POST /path HTTP/1.1"
        assert {"Authorization: Bearer secret", "Content-Length: 4", f"Host: {head[1][6:]}"} <= set(head)


@pytest.mark.parametrize("size", [1, 7, len(WHOLE) - 1])
async def test_post_reply_in_any_pieces_is_read(size: int) -> None:
    """Heads and chunks may be split anywhere."""

    async def write(writer: asyncio.StreamWriter) -> None:
        for start in range(0, len(WHOLE), size):
            writer.write(WHOLE[start : start + size])
            await writer.drain()
            await asyncio.sleep(0.001)

    async with connected(write, WHOLE) as client:
        await client.post()
        await client.post()
        assert client.data == b"abcde" * 2
        assert client.server.connections == [1, 1]


async def test_post_concurrent_requests_have_own_connections() -> None:
    """Two requests at the same time use two connections, which serve the next two."""
    async with connected(WHOLE, WHOLE, WHOLE, WHOLE) as client:
        await asyncio.gather(client.post(), client.post())
        assert sorted(client.server.connections) == [1, 2]
        await asyncio.gather(client.post(), client.post())
        assert sorted(client.server.connections) == [1, 1, 2, 2]


async def test_post_error_status_returns_its_text() -> None:
    """The body of an error is not passed on; the connection stays open."""
    error = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nfull"
    async with connected(error, WHOLE) as client:
        assert await client.post() == Reply(503, "full")
        assert client.data == b""
        assert await client.post() == Reply(200)
        assert client.server.connections == [1, 1]


async def test_post_kept_connection_that_closes_is_replaced() -> None:
    """A server may close a kept connection while the next request is in flight: the request is sent again."""
    async with connected(WHOLE, close, WHOLE) as client:
        await client.post()
        assert await client.post() == Reply(200)
        assert client.data == b"abcde" * 2
        assert client.server.connections == [1, 1, 2]


async def test_post_idle_connection_that_closed_is_not_used() -> None:
    """A connection that the server closed between two requests costs no request."""

    async def answer_and_close(writer: asyncio.StreamWriter) -> None:
        writer.write(WHOLE)
        writer.close()

    async with connected(answer_and_close, WHOLE) as client:
        await client.post()
        while client.open_connections:
            await asyncio.sleep(0.01)
        await client.post()
        assert client.server.connections == [1, 2]


async def test_post_new_connection_that_closes_fails() -> None:
    """A request on a new connection is not repeated: the server has failed."""
    async with connected(close, WHOLE) as client:
        with pytest.raises(ConnectionError):
            await client.post()
        assert client.server.connections == [1]


async def test_post_reply_that_breaks_off_fails() -> None:
    """A connection that is lost in the middle of a reply fails the request, also on a kept connection."""
    for steps in ([break_off], [WHOLE, break_off]):
        async with connected(*steps) as client:
            for _ in steps[1:]:
                await client.post()
            client.data = b""
            with pytest.raises(ReplyBroken, match="before the end"):
                await client.post()
            assert client.data == b"abc"
            assert client.server.connections == [1] * len(steps)


async def test_post_timeout_closes_the_connection() -> None:
    """After the deadline the request fails, and the server sees the end of the connection."""
    async with connected(WHOLE, HEAD + b"3\r\nabc\r\n", WHOLE) as client:
        await client.post()  # else the limit may end before the connection is open
        with pytest.raises(TimeoutError):
            await client.post(seconds=0.3)
        await client.server.closed.wait()
        await client.post()
        assert client.server.connections == [1, 1, 2]


async def test_post_cancellation_closes_the_connection() -> None:
    """The engine aborts a request whose connection closes; the next request has another connection."""
    async with connected(hang, WHOLE) as client:
        request = asyncio.create_task(client.post())
        while not client.server.requests:
            await asyncio.sleep(0.01)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await client.post()
        assert client.server.connections == [1, 2]


async def test_post_error_of_the_receiver_is_raised() -> None:
    """An invalid part fails its request with the receiver's own error, and the connection closes."""

    def refuse(data: bytes) -> None:
        raise KeyError(data)

    async with connected(WHOLE, WHOLE) as client:
        with pytest.raises(KeyError, match="abc"):
            await client.connections.send(client.server.route, BODY, refuse, seconds=30)
        await client.server.closed.wait()
        await client.post()
        assert client.server.connections == [1, 2]


@pytest.mark.parametrize("reply", [b"no HTTP at all\r\n\r\n", HEAD + b"zz\r\n", WHOLE + WHOLE])
async def test_post_reply_of_another_protocol_fails(reply: bytes) -> None:
    """Bytes that are not one HTTP reply fail the request, and the connection closes."""
    async with connected(reply) as client:
        with pytest.raises(ConnectionError, match="not HTTP"):
            await client.post()
        await client.server.closed.wait()


async def test_post_reply_with_close_is_the_last_of_its_connection() -> None:
    """`Connection: close` is obeyed."""
    last = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc"
    async with connected(last, WHOLE) as client:
        assert await client.post() == Reply(200)
        await client.post()
        assert client.server.connections == [1, 2]


async def test_post_bytes_without_request_close_the_connection() -> None:
    """A kept connection on which bytes arrive without a request is not used again."""
    finished = asyncio.Event()

    async def answer_twice(writer: asyncio.StreamWriter) -> None:
        writer.write(WHOLE)
        await finished.wait()
        writer.write(WHOLE)

    async with connected(answer_twice, WHOLE) as client:
        await client.post()
        finished.set()
        await client.server.closed.wait()
        await client.post()
        assert client.data == b"abcde" * 2
        assert client.server.connections == [1, 2]


async def test_post_request_that_must_not_repeat_fails() -> None:
    """With `repeat=False` a request is sent once, also on a kept connection that closes."""
    async with connected(WHOLE, close, WHOLE) as client:
        await client.post()
        with pytest.raises(ConnectionError, match="before its reply"):
            await client.post(repeat=False)
        assert client.server.connections == [1, 1]


async def test_post_time_without_data_is_counted_from_the_last_data() -> None:
    """With `since_data` a reply may take longer than the limit, as long as data arrive."""

    async def write(writer: asyncio.StreamWriter) -> None:
        for at in range(len(WHOLE)):
            writer.write(WHOLE[at : at + 1])
            await asyncio.sleep(0.05)

    async with connected(write) as client:
        assert await client.post(seconds=2, since_data=True) == Reply(200)
        assert client.data == b"abcde"


async def test_post_limit_counts_from_the_progress_of_the_server() -> None:
    """A server that is busy with other requests is slow, not lost; it is lost when its progress ends."""
    now = time.monotonic

    async def answer_late(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.6)
        writer.write(WHOLE)

    async with connected(WHOLE, answer_late, hang) as client:
        send = client.connections.send
        await client.post()  # else the limit may end before the connection is open
        assert await send(client.server.route, BODY, client._add, seconds=0.2, progress=now) == Reply(200)
        until = now() + 0.4
        with pytest.raises(TimeoutError):
            await send(client.server.route, BODY, client._add, seconds=0.2, progress=lambda: min(now(), until))
        assert now() > until


async def test_post_pause_of_the_process_is_no_silence(clock: Clock) -> None:
    """The server pauses together with this process, as on a paused machine; its answer comes soon afterwards."""

    async def answer_after_pause(writer: asyncio.StreamWriter) -> None:
        clock.now += 2 * LATE_SECONDS + 0.2
        for _ in range(5):  # turns of the loop, in which the timers of this time fire
            await asyncio.sleep(0)
        writer.write(WHOLE)

    for since_data in (True, False):
        async with connected(WHOLE, answer_after_pause) as client:
            await client.post()
            assert await client.post(seconds=0.2, since_data=since_data) == Reply(200)


async def test_post_silence_fails(clock: Clock) -> None:
    """Silence before the reply is a timeout; after the server accepted the request its reply is broken."""
    for step, error in ((hang, TimeoutError), (HEAD, ReplyBroken)):
        async with connected(WHOLE, step) as client:
            await client.post()
            ((connection,),) = client.connections._idle.values()
            request = asyncio.create_task(client.post(seconds=0.2, since_data=True))
            while len(client.server.requests) < 2 or connection.has_reply != (step is HEAD):
                await asyncio.sleep(0)
            clock.now += 0.3
            with pytest.raises(error, match=r"no data for 0\.2 s"):
                await request


async def test_post_retry_after_belongs_to_its_reply() -> None:
    """The header of one reply is not that of the next."""
    busy = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 7\r\nContent-Length: 4\r\n\r\nfull"
    async with connected(busy, WHOLE) as client:
        assert await client.post() == Reply(503, "full", 7.0)
        assert await client.post() == Reply(200)


async def test_connections_use_tcp_keepalive() -> None:
    """A reply may be silent for as long as a turn or a cell takes: only TCP detects the failure of the node."""
    async with connected(WHOLE) as client:
        await client.post()
        ((kept,),) = client.connections._idle.values()
        assert kept._transport is not None
        connection = kept._transport.get_extra_info("socket")
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000


async def test_fetch_returns_the_data() -> None:
    """The data of a reply of status 200; those of an error are its text."""
    error = b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone"
    async with connected(WHOLE, error) as client:
        assert await client.connections.fetch(client.server.route, BODY, seconds=30) == (Reply(200), b"abcde")
        assert await client.connections.fetch(client.server.route, BODY, seconds=30) == (Reply(404, "none"), b"")


async def test_post_without_server_fails() -> None:
    """A refused connection is an OSError, which the client reports as an unavailable engine."""
    async with connected() as client:
        route = client.server.route
    with pytest.raises(NotConnected, match=r"refused|Connect call failed"):
        await HttpConnections().send(route, BODY, lambda _: None, seconds=5)


def test_route_has_the_address_of_its_url() -> None:
    """Ports, IPv6 addresses and TLS; a URL of another scheme is an error."""
    assert (Route.from_url("http://[::1]:8000/a", token="").host, Route.from_url("http://h/a", token="").port) == (
        "::1",
        80,
    )
    route = Route.from_url("https://h/a", token="")
    assert (route.port, route.is_tls) == (443, True)
    assert b"Authorization" not in route.head
    assert Route.from_url("http://h/a", token="", method="DELETE").head.startswith(b"DELETE /a HTTP/1.1\r\nHost: h\r\n")
    for url in ("script", "ftp://h/a", "http:///a"):
        with pytest.raises(ValueError, match="is not an HTTP URL"):
            Route.from_url(url, token="")
