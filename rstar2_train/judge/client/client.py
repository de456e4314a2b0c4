"""Client of the judge API: many concurrent `run` calls become few HTTP requests; a lost request is sent again.

Used by the rollout workers. Calls made in the same turn of the event loop travel together (at most 64 a request);
their results come back one by one as they are ready. A call is repeated only when it was not answered.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import httpx

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.client.session import JudgeSession
from rstar2_train.judge.types import MAX_BATCH, SILENT_SECONDS, CallResult, JudgeUnavailable, check_request

MAX_REQUESTS = 32
"""Requests in flight; further calls wait and travel together."""
MAX_CELLS = 1024
"""Cells of sessions in flight."""
FIRST_DELAY = 0.25
LONGEST_DELAY = 8.0
KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(SILENT_SECONDS * 1000)),
]
"""An answer to a cell has no signs of life, for its status is not known before its end: these see that a node died."""
INTERNAL_TRIES = 4
"""How often a call whose result is `internal` is run again before the judge counts as unavailable."""


class _CallRejected(Exception):
    """The judge will not take a request, now or ever."""

    def __init__(self, message: str, *, final: bool, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.final = final
        self.retry_after = retry_after


class _ConnectionLost(Exception):
    """The connection was lost when the judge had accepted the calls: it was there until now."""


@dataclass(slots=True, eq=False)
class _ClientCall:
    body: dict[str, Any]
    future: asyncio.Future[CallResult]
    internal: int = 0


class JudgeClient:
    """Runs snippets. One a process is enough; close it with `aclose`, or use it as an async context manager.

    `patience_seconds` is how long a judge may be away before `run` raises JudgeUnavailable; waiting in the judge's
    queue, or for it to be less busy, does not count. A connection on which not even a sign of life came for
    `silent_seconds` is given up as lost.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        patience_seconds: float = 120.0,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        headers = {"Accept": "application/x-ndjson"} | ({"Authorization": f"Bearer {token}"} if token else {})
        limits = httpx.Limits(max_connections=MAX_REQUESTS + MAX_CELLS, max_keepalive_connections=MAX_REQUESTS)
        self._http = httpx.AsyncClient(
            base_url=url,
            headers=headers,
            timeout=httpx.Timeout(silent_seconds, connect=10.0, pool=None),
            transport=httpx.AsyncHTTPTransport(limits=limits, socket_options=KEEPALIVE, trust_env=False),
            trust_env=False,
        )
        self._patience = patience_seconds
        self._waiting: list[_ClientCall] = []
        self._requests: set[asyncio.Task[None]] = set()
        self._scheduled = False

    async def __aenter__(self) -> JudgeClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Drops what is in flight and closes the connections."""
        for request in list(self._requests):
            request.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)
        await self._http.aclose()

    async def run(self, code: str, stdin: str = "", *, limits: JudgeLimits | None = None) -> CallResult:
        """Runs one snippet. Raises JudgeUnavailable when there is no answer; never returns status `internal`."""
        problem = check_request(code, stdin)
        if problem:
            return CallResult("invalid", stderr=problem + "\n")
        body: dict[str, Any] = {"code": code, "stdin": stdin}
        if limits is not None:
            body["limits"] = limits.model_dump(mode="json", by_alias=True)
        future: asyncio.Future[CallResult] = asyncio.get_running_loop().create_future()
        self._enqueue([_ClientCall(body, future)])
        return await future

    def session(self) -> JudgeSession:
        """A session: cells that share one Python process. Use as an async context manager."""
        return JudgeSession(self._http, patience_seconds=self._patience)

    async def status(self) -> dict[str, Any]:
        """The API's /v1/status. Raises JudgeUnavailable when it does not answer."""
        try:
            answer = await self._http.get("/v1/status", timeout=10.0)
            status: dict[str, Any] = answer.json()
        except (httpx.HTTPError, json.JSONDecodeError) as error:
            raise JudgeUnavailable(f"no status from {self._http.base_url}: {error or type(error).__name__}") from error
        return status

    def _enqueue(self, calls: list[_ClientCall]) -> None:
        self._waiting += calls
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """Sends what is waiting, as far as requests are allowed."""
        self._scheduled = False
        while self._waiting and len(self._requests) < MAX_REQUESTS:
            batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
            request = asyncio.get_running_loop().create_task(self._send(batch))
            self._requests.add(request)
            request.add_done_callback(self._sent)

    def _sent(self, request: asyncio.Task[None]) -> None:
        self._requests.discard(request)
        self._dispatch()

    async def _send(self, batch: list[_ClientCall]) -> None:
        """One request, repeated for the calls in it that got no answer."""
        delay = FIRST_DELAY
        heard = time.monotonic()
        while batch := [call for call in batch if not call.future.done()]:
            wait = delay * random.uniform(0.5, 1.0)
            try:
                await self._post(batch)
                reason, heard = "the judge answered `internal`", time.monotonic()
            except _CallRejected as error:
                reason = str(error)
                if error.retry_after is not None:  # it lives, and is busy
                    heard = time.monotonic()
                if error.final:
                    self._fail(batch, reason)
                    return
                wait = max(wait, error.retry_after or 0.0)
            except (httpx.HTTPError, json.JSONDecodeError) as error:
                reason = f"{type(error).__name__} {error}".strip()
            except _ConnectionLost as error:
                reason, heard = str(error), time.monotonic()
            except Exception as error:
                self._fail(batch, f"{type(error).__name__} {error}")
                raise
            if time.monotonic() + wait > heard + self._patience:
                self._fail(batch, reason)
                return
            await asyncio.sleep(wait)
            delay = min(LONGEST_DELAY, delay * 2)

    def _fail(self, batch: list[_ClientCall], reason: str) -> None:
        for call in batch:
            if not call.future.done():
                call.future.set_exception(JudgeUnavailable(f"{self._http.base_url}: {reason}"))

    async def _post(self, batch: list[_ClientCall]) -> None:
        """Posts a batch and hands out the results as they come. Raises _Broken when it had been accepted."""
        async with self._http.stream("POST", "/v1/batch", json={"calls": [call.body for call in batch]}) as answer:
            if answer.status_code != 200:
                text = (await answer.aread()).decode(errors="replace")[:500]
                after = answer.headers.get("Retry-After", "")
                raise _CallRejected(
                    f"HTTP {answer.status_code}: {text}",
                    final=answer.status_code in (400, 401, 403, 404, 413, 422),
                    retry_after=float(after) if after.isdigit() else None,
                )
            try:
                async for line in answer.aiter_lines():
                    if line:  # an empty one is a sign of life
                        fields = json.loads(line)
                        self._take(batch[fields.pop("index")], CallResult(**fields))
            except httpx.HTTPError as error:
                raise _ConnectionLost(f"{type(error).__name__} {error}".strip()) from error

    @staticmethod
    def _take(call: _ClientCall, result: CallResult) -> None:
        """Hands out one result; `internal` is none."""
        if result.status != "internal":
            if not call.future.done():
                call.future.set_result(result)
            return
        call.internal += 1
        if call.internal >= INTERNAL_TRIES and not call.future.done():
            why = f"{call.internal} times no result: {result.stderr.strip()}"
            call.future.set_exception(JudgeUnavailable(why))
