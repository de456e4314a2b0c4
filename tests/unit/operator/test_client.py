"""The requests to the API server: their form on the wire, errors, and proxies."""

from __future__ import annotations

import asyncio
import email.utils
import json
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from aiohttp import web
from kubernetes.aio import client as aio
from kubernetes.aio.client.exceptions import ApiException

from rstar2_operator.client import KubeClient, NotJson, connection, is_transient, retry_after

OBJECT = {"kind": "ConfigMap", "metadata": {"name": "a", "namespace": "lab"}, "data": {"text": "ü <&>"}}


class Server:
    """An HTTP server that records requests, and answers with their body or with an error."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.status = 200
        self.ahead = 0.0
        """Seconds by which its clock is ahead."""
        self.address = ""
        self.watch = (b'{"type":"ADDED","obj', b'ect":{"metadata":{}}}\n\n{"type":"ERROR","object":{"n":2}}\n')
        """Parts of the answer to a watch."""
        self.page = b""
        """Answer of a proxy in place of the API server; empty: none."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.text()
        self.requests.append((request.method, request.path_qs, dict(request.headers), json.loads(body or "null")))
        if "watch" in request.query:
            stream = web.StreamResponse()
            await stream.prepare(request)
            for part in self.watch:
                await stream.write(part)
                await asyncio.sleep(0.01)
            return stream
        if self.page:
            headers = {"Date": "yesterday", "Retry-After": "7"}
            return web.Response(body=self.page, status=self.status, content_type="text/html", headers=headers)
        answer = {"reason": "Conflict", "message": "no"} if self.status >= 400 else json.loads(body or "{}")
        date = email.utils.formatdate(time.time() + self.ahead, usegmt=True)
        return web.json_response(answer, status=self.status, headers={"Date": date})


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """Serve on loopback."""
    result, app = Server(), web.Application()
    app.router.add_route("*", "/{path:.*}", result.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    result.address = f"http://{host}:{port}"
    yield result
    await runner.cleanup()


@pytest.fixture
async def client(server: Server) -> AsyncIterator[KubeClient]:
    """Return a client of the server."""
    async with connection(aio.Configuration(host=server.address, api_key={"BearerToken": "Bearer secret"})) as api:
        yield KubeClient(api)


async def test_client_apply_sends_the_object(server: Server, client: KubeClient) -> None:
    """Server-side apply is a PATCH of the object with field manager, token and media type; the answer is returned."""
    assert await client.apply(OBJECT, subresource="status") == OBJECT
    ((method, path, headers, body),) = server.requests
    assert (method, body) == ("PATCH", OBJECT)
    assert path == "/api/v1/namespaces/lab/configmaps/a/status?fieldManager=rstar2-operator&force=true"
    assert headers["Authorization"] == "Bearer secret" and headers["Content-Type"] == "application/apply-patch+yaml"
    assert headers["Accept-Encoding"] == "identity"


async def test_client_watch_yields_changes_of_a_selector(server: Server, client: KubeClient) -> None:
    """A selector has characters that a URL must quote; the parts of a change may arrive separately."""
    selectors = {"labelSelector": "a.b/c=d,e!=f"}
    changes = [change async for change in client.watch("Pod", "", selectors=selectors, version="7")]
    assert changes == [("ADDED", {"metadata": {}}), ("ERROR", {"n": 2})]
    assert parse_qs(urlsplit(server.requests[0][1]).query)["labelSelector"] == [selectors["labelSelector"]]


CHANGE = b'{"type":"ADDED","object":{"metadata":{}}}\n'


@pytest.mark.parametrize(
    "line",
    [
        b"<html>504</html>\n",
        b'{"type":"ADDED","object":{"me\n',
        b'{"type":"ADDED","obj',
        b"[]\n",
        b'{"a":1}\n',
        b"\xff\n",
    ],
)
async def test_client_watch_with_a_foreign_line_fails(server: Server, client: KubeClient, line: bytes) -> None:
    """A proxy may end a watch with a page of its own, or within a line: the changes before it count."""
    server.watch, changes = (CHANGE, line), list[Any]()
    with pytest.raises(NotJson):
        async for change in client.watch("Pod", "", selectors={}, version="7"):
            changes.append(change)
    assert changes == [("ADDED", {"metadata": {}})]


@pytest.mark.parametrize("page", [b"<html>Log in</html>", b"null", b'{"error": "log in"}'])
async def test_client_page_of_a_proxy_is_a_transient_error(server: Server, client: KubeClient, page: bytes) -> None:
    """A proxy may answer in place of the API server, with any status, and a clock of its own."""
    server.page = page
    with pytest.raises(NotJson) as error:
        await client.list_metadata("Pod", "", selector="")
    assert is_transient(error.value)
    for server.status in (410, 429, 500, 504):
        with pytest.raises(ApiException) as rejected:
            await client.create(OBJECT)
        assert (rejected.value.status, retry_after(rejected.value)) == (server.status, 7.0)
        assert is_transient(rejected.value) == (server.status != 410)
    assert abs(client.clock() - time.time()) < 3


async def test_client_error_has_status_and_text(server: Server, client: KubeClient) -> None:
    """A rejection raises the API server's status and words."""
    server.status = 409
    with pytest.raises(ApiException) as error:
        await client.create(OBJECT)
    assert error.value.status == 409 and json.loads(error.value.body)["message"] == "no"


async def test_client_clock_is_that_of_the_api_server(server: Server, client: KubeClient) -> None:
    """On a node whose clock is hours wrong, no deadline ends too early or too late; a slow response changes nothing."""
    for ahead, expected in ((10_800, 10_800), (10_790, 10_800), (-7_200, -7_200), (20, 0), (0, 0)):
        server.ahead, start = ahead, time.time()
        await client.read("ConfigMap", "lab", "a")
        assert abs(client.clock() - time.time() - expected) < 3 + time.time() - start


async def test_client_request_starts_no_thread(
    server: Server, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """aiohttp would read proxies and .netrc in threads for each request, which wait for a busy event loop."""
    loop, started = asyncio.get_running_loop(), list[object]()
    run = loop.run_in_executor

    def record(executor: Any, function: Any, *arguments: Any) -> Any:
        started.append(function)
        return run(executor, function, *arguments)

    monkeypatch.setattr(loop, "run_in_executor", record)
    await client.apply(OBJECT)
    assert started == []


@pytest.mark.parametrize(
    ("environment", "proxy"),
    [
        ({"https_proxy": "http://proxy:3128"}, "http://proxy:3128"),
        ({"https_proxy": "http://proxy:3128", "no_proxy": "10.0.0.0,api.example.org"}, None),
        ({}, None),
    ],
)
async def test_connection_proxy_is_that_of_the_environment(
    environment: dict[str, str], proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTPS_PROXY is used, unless NO_PROXY has the API server."""
    for name in ("https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    async with connection(aio.Configuration(host="https://api.example.org:6443")) as api:
        assert api.rest_client.proxy == proxy
