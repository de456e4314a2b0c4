"""A connection to the API server with faults: watch events that come late, and times without a connection."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Self

import aiohttp
from aiohttp import web

from rstar2_train.utils.ports import free_ports
from tests.support.kube_apiserver import TOKEN, KubeApiserver

START_SECONDS = 120.0


class ApiProxy:
    """Context manager of a reverse proxy on loopback, in a thread of its own."""

    def __init__(self, api: KubeApiserver, *, watch_delay: float = 0.0, token: str = TOKEN) -> None:
        """`watch_delay`: seconds by which every part of a watch is late; other requests are not.

        `token`: of the account of all requests; default: with all rights.
        """
        self._token = token
        self._api = api
        self._watch_delay = watch_delay
        self._port = free_ports(1)[0]
        self._ready = threading.Event()
        self._connected = True
        self._open: set[asyncio.Task[object]] = set()
        self.kubeconfig: Path = api.folder / f"proxy-{self._port}"
        config = json.loads(api.kubeconfig.read_text())
        config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{self._port}"}
        self.kubeconfig.write_text(json.dumps(config))

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(START_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def disconnect(self) -> None:
        """End all requests, and refuse new ones until `connect`."""

        def end() -> None:
            self._connected = False
            for task in self._open:
                task.cancel()

        self._loop.call_soon_threadsafe(end)

    def connect(self) -> None:
        """Forward requests again."""
        self._loop.call_soon_threadsafe(setattr, self, "_connected", True)  # after an earlier `disconnect`

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._forward)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as self._session:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", self._port).start()
            self._ready.set()
            await self._stop.wait()
            await runner.cleanup()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            if not self._connected:
                raise ConnectionResetError
            return await self._pass_on(request)
        except (asyncio.CancelledError, ConnectionResetError, aiohttp.ClientError):
            if request.transport is not None:
                request.transport.abort()
            raise
        finally:
            self._open.discard(task)

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        headers = {
            name: value
            for name, value in request.headers.items()
            if name not in ("Host", "Authorization", "Content-Length")
        }
        headers["Authorization"] = f"Bearer {self._token}"
        delay = self._watch_delay if "watch" in request.query else 0.0
        async with self._session.request(
            request.method,
            self._api.address + request.raw_path,
            data=await request.read() or None,
            headers=headers,
            ssl=False,
        ) as answer:
            hop = ("Transfer-Encoding", "Content-Length", "Connection")
            kept = {name: value for name, value in answer.headers.items() if name not in hop}
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            async for part in answer.content.iter_any():
                await asyncio.sleep(delay)
                await response.write(part)
            await response.write_eof()
            return response
