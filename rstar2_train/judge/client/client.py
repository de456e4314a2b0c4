"""Client of the judge API: joins concurrent `run` calls into few HTTP requests, and resends a request that was lost.

    rollout, rewards, serving ──run──▶ JudgeClient ──POST /v1/batch──▶ judge API
                              ◀─CallResult─      ◀─NDJSON, a line per result─

Calls of the same turn of the event loop travel together (at most 64 per request); their results arrive one by one. A
call is sent again only if it has no result.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.client.api_routes import ApiRoutes
from rstar2_train.judge.client.session import JudgeSession
from rstar2_train.judge.types import MAX_BATCH, SILENT_SECONDS, CallResult, JudgeUnavailable, check_request
from rstar2_train.utils.http_connections import OK, HttpConnections, ReplyBroken
from rstar2_train.utils.json_steps import SMALL_BYTES, dump_json, load_json

MAX_REQUESTS = 32
"""Requests in flight; further calls wait and travel together."""
MAX_CHARACTERS = 8 << 20
"""Characters of code and stdin above which a request takes no further call: the API limits its body."""
MAX_CELLS = 1024
"""Cells of sessions in flight."""
CONNECT_SECONDS = 10.0
STATUS_SECONDS = 10.0
FIRST_DELAY = 0.25
MAX_DELAY = 8.0
MAX_INTERNAL = 4
"""Results `internal` of one call after which the judge counts as unavailable."""
FINAL_STATUSES = (301, 302, 307, 308, 400, 401, 403, 404, 413, 422)
"""HTTP statuses for which a retry cannot succeed."""


class _RequestRejected(Exception):
    """The judge answered a request with an HTTP error. `final`: a retry cannot succeed."""

    def __init__(self, message: str, *, final: bool, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.final = final
        self.retry_after = retry_after


@dataclass(slots=True, eq=False)
class _ClientCall:
    body: dict[str, Any]
    future: asyncio.Future[CallResult]
    internal_results: int = 0


class JudgeClient:
    """Runs snippets. One client per process is enough. Use it as an async context manager.

    `patience_seconds`: time without a sign of life after which `run` raises JudgeUnavailable; time in the judge's queue
    and after a 503 does not count. `silent_seconds`: time without data after which a request counts as lost.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        patience_seconds: float = 120.0,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        self._url = url.rstrip("/")
        self._routes = ApiRoutes(self._url, token or "")
        self._patience = patience_seconds
        self._silent = silent_seconds
        self._connections: HttpConnections | None = None
        self._cells = asyncio.Semaphore(MAX_CELLS)
        self._waiting: list[_ClientCall] = []
        self._requests: set[asyncio.Task[None]] = set()
        self._scheduled = False

    async def __aenter__(self) -> JudgeClient:
        self._connections = HttpConnections(connect_seconds=CONNECT_SECONDS)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Cancel all requests and close the connections."""
        for request in list(self._requests):
            request.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)
        self._http.close()

    @property
    def _http(self) -> HttpConnections:
        if self._connections is None:
            raise RuntimeError("JudgeClient must be used as an async context manager")
        return self._connections

    async def run(
        self, code: str, stdin: str = "", *, limits: JudgeLimits | None = None, script: bool = False
    ) -> CallResult:
        """Run one snippet. Raises JudgeUnavailable if there is no result; never returns status `internal`.

        `script`: run it as `python FILE` does. Else the value of a last expression is printed, as in a notebook.
        """
        problem = check_request(code, stdin)
        if problem:
            return CallResult("invalid", stderr=problem + "\n")
        body: dict[str, Any] = {"code": code, "stdin": stdin}
        if script:
            body["script"] = True
        if limits is not None:
            body["limits"] = limits.model_dump(mode="json", by_alias=True)
        future: asyncio.Future[CallResult] = asyncio.get_running_loop().create_future()
        self._waiting.append(_ClientCall(body, future))
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._dispatch)
        return await future

    def session(self) -> JudgeSession:
        """Return a new session: cells that share one Python process. Use it as an async context manager."""
        return JudgeSession(self._http, self._routes, cells=self._cells, patience_seconds=self._patience)

    async def status(self) -> dict[str, Any]:
        """Return the API's /v1/status. Raises JudgeUnavailable if it does not answer."""
        try:
            reply, data = await self._http.fetch(self._routes.status, seconds=STATUS_SECONDS)
            status: dict[str, Any] = json.loads(data or reply.text)
        except (OSError, ValueError) as error:  # no JSON, or an invalid URL
            reason = f"{type(error).__name__} {error}".strip()
            raise JudgeUnavailable(f"{self._url} does not report its status: {reason}") from error
        return status

    def _dispatch(self) -> None:
        """Send the waiting calls, in at most MAX_REQUESTS requests."""
        self._scheduled = False
        while self._waiting and len(self._requests) < MAX_REQUESTS:
            count = _count_of_next(self._waiting)
            batch, self._waiting = self._waiting[:count], self._waiting[count:]
            request = asyncio.get_running_loop().create_task(self._send(batch))
            self._requests.add(request)
            request.add_done_callback(self._sent)

    def _sent(self, request: asyncio.Task[None]) -> None:
        self._requests.discard(request)
        self._dispatch()

    async def _send(self, batch: list[_ClientCall]) -> None:
        """Send one request; resend the calls without a result until all have one or patience ends."""
        delay = FIRST_DELAY
        last_sign = time.monotonic()
        while batch := [call for call in batch if not call.future.done()]:
            wait = delay * random.uniform(0.5, 1.0)
            try:
                await self._post(batch)
                reason, last_sign = "the judge answered `internal`", time.monotonic()
            except _RequestRejected as error:
                reason = str(error)
                if error.retry_after is not None:  # it is alive, and busy
                    last_sign = time.monotonic()
                if error.final:
                    self._fail(batch, reason)
                    return
                wait = max(wait, error.retry_after or 0.0)
            except ReplyBroken as error:  # it had accepted the calls, so it was alive until now
                reason, last_sign = f"{type(error).__name__} {error}".strip(), time.monotonic()
            except (OSError, json.JSONDecodeError) as error:  # TimeoutError is an OSError
                reason = f"{type(error).__name__} {error}".strip()
            except Exception as error:
                self._fail(batch, f"{type(error).__name__} {error}")
                raise
            if time.monotonic() + wait > last_sign + self._patience:
                self._fail(batch, reason)
                return
            await asyncio.sleep(wait)
            delay = min(MAX_DELAY, delay * 2)

    def _fail(self, batch: list[_ClientCall], reason: str) -> None:
        for call in batch:
            if not call.future.done():
                call.future.set_exception(JudgeUnavailable(f"{self._url}: {reason}"))

    async def _post(self, batch: list[_ClientCall]) -> None:
        """Post a batch and set the results as they arrive.

        Raises _RequestRejected for an HTTP error, ReplyBroken after the judge accepted the batch, and another OSError
        before.
        """
        lines = LineReader()
        parses: list[asyncio.Task[None]] = []

        def take_fields(fields: dict[str, Any]) -> None:
            self._take(batch[fields.pop("index")], CallResult.from_dict(fields))

        async def parse(line: bytes | bytearray) -> None:
            take_fields(await load_json(line))

        def take(data: bytes) -> None:
            for line in lines.feed(data):
                if len(line) > SMALL_BYTES:
                    parses.append(asyncio.create_task(parse(line)))
                elif line:  # an empty line is a keep-alive
                    take_fields(json.loads(line))

        calls = [call.body for call in batch]
        body = await dump_json({"calls": calls}, characters=sum(map(_characters, calls)))
        try:
            reply = await self._http.send(self._routes.batch, body, take, seconds=self._silent, since_data=True)
            if reply.status != OK:
                raise _RequestRejected(
                    f"HTTP {reply.status}: {reply.text[:500]}",
                    final=reply.status in FINAL_STATUSES,
                    retry_after=reply.retry_after,
                )
            take(b"\n")  # the last line needs no end
        finally:
            await asyncio.wait(parses) if parses else None  # their calls have results, and are not sent again
        for task in parses:
            task.result()

    @staticmethod
    def _take(call: _ClientCall, result: CallResult) -> None:
        """Set the result of a call, unless it is `internal`: then the call is sent again."""
        if result.status != "internal":
            if not call.future.done():
                call.future.set_result(result)
            return
        call.internal_results += 1
        if call.internal_results >= MAX_INTERNAL and not call.future.done():
            message = f"the judge answered `internal` {call.internal_results} times: {result.stderr.strip()}"
            call.future.set_exception(JudgeUnavailable(message))


def _count_of_next(waiting: list[_ClientCall]) -> int:
    """Return how many of the waiting calls the next request takes: at least one."""
    characters = 0
    for count, call in enumerate(waiting[:MAX_BATCH], 1):
        characters += _characters(call.body)
        if characters > MAX_CHARACTERS:
            return max(1, count - 1)
    return min(len(waiting), MAX_BATCH)


def _characters(call: dict[str, Any]) -> int:
    return len(call["code"]) + len(call["stdin"])


class LineReader:
    """Splits a stream into its lines, of any length."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes | bytearray]:
        """Return the lines that end in `data`, without their ends."""
        lines: list[bytes | bytearray] = [*data.split(b"\n")]
        last = lines.pop()
        if lines and self._rest:
            self._rest += lines[0]
            lines[0], self._rest = self._rest, bytearray()
        self._rest += last
        return lines
