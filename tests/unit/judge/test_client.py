"""The client against a stub API: batches, retries, errors and lost connections."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.client import client as client_module
from rstar2_train.judge.client.client import MAX_INTERNAL, JudgeClient, LineReader
from rstar2_train.judge.types import MAX_BATCH, CallResult, JudgeUnavailable
from rstar2_train.utils.event_loop import loop_factory
from rstar2_train.utils.loop_watch import VARIABLE, watch_loop
from tests.support.loop_watch import loop_watch_file, reports_of

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
RESULT: dict[str, Any] = CallResult("ok").to_dict()


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "FIRST_DELAY", 0.01)


@asynccontextmanager
async def judge(handler: Handler, path: str = "/v1/batch") -> AsyncIterator[str]:
    """Run a stub API with one route; yield its URL."""
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", path, handler)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


def line(index: int, **fields: Any) -> bytes:
    """Return the line of a result."""
    return json.dumps({"index": index, **RESULT, **fields}).encode() + b"\n"


async def echo(request: web.Request) -> web.StreamResponse:
    """Answer each call with its code as its output."""
    calls = (await request.json())["calls"]
    return web.Response(body=b"".join(line(n, stdout=call["code"]) for n, call in enumerate(calls)))


async def test_client_joins_concurrent_calls() -> None:
    """Calls of one turn of the event loop travel in batches of at most MAX_BATCH."""
    sizes: list[int] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        sizes.append(len((await request.json())["calls"]))
        return await echo(request)

    async with judge(handler) as url, JudgeClient(url) as client:
        results = await asyncio.gather(*(client.run(str(n)) for n in range(2 * MAX_BATCH + 1)))
    assert [result.stdout for result in results] == [str(n) for n in range(2 * MAX_BATCH + 1)]
    assert sorted(sizes) == [1, MAX_BATCH, MAX_BATCH]


async def test_client_large_calls_use_several_requests() -> None:
    """The API limits the body of a request."""
    sizes: list[int] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        sizes.append(len((await request.json())["calls"]))
        return await echo(request)

    async with judge(handler) as url, JudgeClient(url) as client:
        await asyncio.gather(*(client.run("1", "x" * size) for size in (3 << 20, 4 << 20, 2 << 20, 1, 2)))
    assert sorted(sizes) == [2, 3]


async def test_client_sends_token_limits_and_accept() -> None:
    """A request has the token, the limits and the accepted type."""
    seen: list[tuple[str, str, Any]] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        seen.append((request.headers["Authorization"], request.headers["Accept"], body["calls"][0]["limits"]))
        return await echo(request)

    async with judge(handler) as url, JudgeClient(f"{url}/", "t0ken") as client:
        await client.run("1", limits=JudgeLimits(wall_seconds=2))
    assert seen == [("Bearer t0ken", "application/x-ndjson", JudgeLimits(wall_seconds=2).model_dump(by_alias=True))]


async def test_client_large_code_and_output_pass() -> None:
    """Code and output of a megabyte."""
    code = "\u00e9" * 500_000
    async with judge(echo) as url, JudgeClient(url) as client:
        results = await asyncio.gather(*(client.run(code) for _ in range(3)))
    assert all(result.stdout == code for result in results)


async def test_client_busy_judge_is_retried_after_the_delay() -> None:
    """A response 503 delays the batch for Retry-After seconds."""
    count = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal count
        count += 1
        if count <= 2:
            return web.json_response({"detail": "full"}, status=503, headers={"Retry-After": "0"})
        return await echo(request)

    async with judge(handler) as url, JudgeClient(url, patience_seconds=30) as client:
        assert (await client.run("1")).stdout == "1"
    assert count == 3


@pytest.mark.parametrize("status", [400, 401, 413, 422])
async def test_client_final_status_is_not_retried(status: int) -> None:
    """A rejected request fails its calls with the text of the response."""
    count = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal count
        count += 1
        return web.json_response({"detail": "never"}, status=status)

    async with judge(handler) as url, JudgeClient(url) as client:
        with pytest.raises(JudgeUnavailable, match=rf"HTTP {status}.*never"):
            await client.run("1")
    assert count == 1


async def test_client_internal_results_end_in_unavailable() -> None:
    """A call is sent again after `internal`, up to MAX_INTERNAL results."""
    count = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal count
        count += 1
        return web.Response(body=line(0, status="internal", stderr="why\n"))

    async with judge(handler) as url, JudgeClient(url) as client:
        with pytest.raises(JudgeUnavailable, match=f"`internal` {MAX_INTERNAL} times: why"):
            await client.run("1")
    assert count == MAX_INTERNAL


async def test_client_cut_stream_resends_only_the_rest() -> None:
    """A connection that ends between two results: only the call without a result is sent again."""
    batches: list[list[str]] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        batches.append([call["code"] for call in (await request.json())["calls"]])
        if len(batches) > 1:
            return await echo(request)
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(line(1, stdout="b") + b"\n")
        assert request.transport is not None
        request.transport.close()
        return response

    async with judge(handler) as url, JudgeClient(url) as client:
        results = await asyncio.gather(client.run("a"), client.run("b"))
    assert [result.stdout for result in results] == ["a", "b"]
    assert batches == [["a", "b"], ["a"]]


async def test_client_cancelled_call_is_not_resent() -> None:
    """A retry contains only calls that a caller waits for."""
    batches: list[list[str]] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        batches.append([call["code"] for call in (await request.json())["calls"]])
        if len(batches) > 1:
            return await echo(request)
        first.cancel()
        return web.json_response({}, status=503, headers={"Retry-After": "0"})

    async with judge(handler) as url, JudgeClient(url) as client:
        first, second = asyncio.ensure_future(client.run("a")), asyncio.ensure_future(client.run("b"))
        assert (await second).stdout == "b"
        assert first.cancelled()
    assert batches == [["a", "b"], ["b"]]


async def test_client_close_cancels_requests() -> None:
    """No request outlives the client."""

    async def handler(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return await echo(request)

    async with judge(handler) as url:
        async with JudgeClient(url) as client:
            call = asyncio.ensure_future(client.run("1"))
            await asyncio.sleep(0.1)
        assert not client._requests
        call.cancel()


async def test_client_status_error_is_unavailable() -> None:
    """A response that is not JSON raises JudgeUnavailable."""

    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(text="not JSON")

    async with judge(handler, "/v1/status") as url, JudgeClient(url) as client:
        with pytest.raises(JudgeUnavailable, match="does not report its status: JSONDecodeError"):
            await client.status()


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_line_reader_joins_chunks(size: int) -> None:
    """The stream may be cut at any byte."""
    text = b"one\n\ntwo\n" + b"x" * 10 + b"\nlast\n"
    reader = LineReader()
    chunks = [text[start : start + size] for start in range(0, len(text), size)]
    assert [line for chunk in chunks for line in reader.feed(chunk)] == text.splitlines()


async def test_client_last_line_needs_no_end() -> None:
    """The end of the reply is the end of its last line."""

    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(body=line(0, stdout="whole").rstrip())

    async with judge(handler) as url, JudgeClient(url) as client:
        assert (await client.run("1")).stdout == "whole"


async def test_client_redirect_is_final() -> None:
    """The client follows no redirect, and reports the status without another try."""

    async def handler(request: web.Request) -> web.StreamResponse:
        raise web.HTTPPermanentRedirect("/v2/batch")

    async with judge(handler) as url, JudgeClient(url) as client:
        with pytest.raises(JudgeUnavailable, match="HTTP 308"):
            await client.run("1")


async def test_client_status_of_an_invalid_url_is_unavailable() -> None:
    """A URL of another scheme is reported, not raised as ValueError."""
    async with JudgeClient("ftp://judge") as client:
        with pytest.raises(JudgeUnavailable, match="not an HTTP URL"):
            await client.status()


@contextmanager
def judge_in_a_thread(*bodies: bytes) -> Iterator[str]:
    """Answer one request after another with these bodies; yield the URL. Its work is none of the client's loop.

    A call has its result before its connection is free again, so the next request may come by another connection.
    """
    replies = iter(bodies)

    def serve(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while stream.readline():
                length = 0
                while line := stream.readline().strip():
                    name, _, value = line.partition(b":")
                    length = int(value) if name == b"Content-Length" else length
                while length:
                    length -= len(stream.read(min(length, 1 << 20)))
                body = next(replies)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(4) as pool:

        def accept() -> None:
            with suppress(OSError):  # the end
                while True:
                    pool.submit(serve, listening.accept()[0])

        accepting = pool.submit(accept)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        accepting.result()


def test_client_large_calls_and_results_hold_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results of 8 MiB, as a line and of a cell, and a stdin of 4 MiB, whose characters have six in JSON."""
    output, source = "\1" * (8 << 20), "\1" * (1 << 20)
    lines = line(0, stdout=output, stderr=output) + line(1)
    cell = json.dumps(RESULT | {"stdout": output, "session_lives": False}).encode()

    async def talk(url: str) -> None:
        async with JudgeClient(url) as client:
            with watch_loop():
                calls = await asyncio.gather(client.run("1", "\1" * (4 << 20)), client.run(source))
                async with client.session() as session:
                    results = [*calls, await session.run(source)]
        assert [len(result.stdout) for result in results] == [len(output), 0, len(output)]
        assert results[0].stderr == output == results[2].stdout

    monkeypatch.setenv(VARIABLE, str(loop_watch_file()))
    with (
        judge_in_a_thread(*[lines, json.dumps({"session": "s"}).encode(), cell] * 2) as url,
        asyncio.Runner(loop_factory=loop_factory()) as runner,
    ):
        reports = runner.run(reports_of(partial(talk, url)))
    assert not reports, reports
