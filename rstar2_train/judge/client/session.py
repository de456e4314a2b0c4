"""The client's side of a session: cells that share one Python process, for one trajectory.

Uses the connections of `client`. A cell is sent once. If it is unknown whether a cell ran, because the connection or
the sandbox was lost, its status is `session_lost`, and so is that of every later cell. A judge that is silent for
longer than it may keep a cell in its queue counts as lost too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from types import TracebackType

import aiohttp

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.client.connections import json_body, silence_timeout
from rstar2_train.judge.types import MAX_WAIT_SECONDS, CallResult, JudgeUnavailable

LOST = "the connection to the judge was lost while the cell was in flight\n"
RETRY_SECONDS = 0.5
OPEN_SECONDS = 30.0
ANSWER_SECONDS = MAX_WAIT_SECONDS + 60
"""Time that a judge may take for a cell, beyond the cell's own limit: the judge gives up earlier."""
NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
"""Errors before a request was sent."""


class JudgeSession:
    """`async with client.session() as session:`, then `run` cells one at a time."""

    def __init__(self, http: aiohttp.ClientSession, url: str, *, patience_seconds: float) -> None:
        self._http = http
        self._url = url
        self._patience = patience_seconds
        self._id = ""
        self._lost = ""
        """stderr of all further cells once the session is lost."""

    async def __aenter__(self) -> JudgeSession:
        """Open the session. Raises JudgeUnavailable if the judge does not answer within the client's patience."""
        give_up = time.monotonic() + self._patience
        while True:
            try:
                timeout = aiohttp.ClientTimeout(total=OPEN_SECONDS)
                async with self._http.post(f"{self._url}/v1/sessions", timeout=timeout) as response:
                    response.raise_for_status()
                    self._id = json.loads(await response.read())["session"]
                    return self
            except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
                if time.monotonic() > give_up:
                    raise self._unavailable(error) from error
            await asyncio.sleep(RETRY_SECONDS)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if not self._lost:
            with contextlib.suppress(aiohttp.ClientError, OSError):  # the judge closes an idle session itself
                timeout = aiohttp.ClientTimeout(total=OPEN_SECONDS)
                await (await self._http.delete(f"{self._url}/v1/sessions/{self._id}", timeout=timeout)).read()

    async def run(self, code: str, *, limits: JudgeLimits | None = None) -> CallResult:
        """Run a cell. The result's `session_lives` is whether another cell may follow. Raises JudgeUnavailable."""
        if self._lost:
            return CallResult("session_lost", stderr=self._lost)
        limits = limits or JudgeLimits()
        cell = {"code": code, "limits": limits.model_dump(mode="json", by_alias=True)}
        url, timeout = (
            f"{self._url}/v1/sessions/{self._id}/cells",
            silence_timeout(ANSWER_SECONDS + limits.wall_seconds),
        )
        give_up = time.monotonic() + self._patience
        while True:
            delay = RETRY_SECONDS
            await _process_closed_connections()
            try:
                async with self._http.post(url, data=json_body(cell), timeout=timeout) as response:
                    status, text = response.status, await response.text(errors="replace")
            except NOT_SENT as error:
                if time.monotonic() > give_up:
                    raise self._unavailable(error) from error
            except (aiohttp.ClientError, OSError) as error:
                self._lost = f"{LOST}({type(error).__name__})\n"
                return CallResult("session_lost", stderr=self._lost)
            else:
                if status != 503:
                    break
                # The judge is alive and has not accepted the cell.
                give_up = time.monotonic() + self._patience
                delay = float(response.headers.get("Retry-After", delay))
            await asyncio.sleep(delay)
        if status != 200:
            raise JudgeUnavailable(f"{self._url}: HTTP {status}: {text[:500]}")
        result = CallResult.from_dict(json.loads(text))
        if not result.session_lives:
            self._lost = f"the session ended with an earlier cell: {result.status}\n"
        return result

    def _unavailable(self, error: Exception) -> JudgeUnavailable:
        return JudgeUnavailable(f"{self._url}: {type(error).__name__} {error}".strip())


async def _process_closed_connections() -> None:
    """Let the event loop read the end of idle connections that the judge closed.

    A cell sent on such a connection would fail and count as lost, though no judge received it. The first turn of the
    loop reads the end, and the second one runs the callbacks that close the transport.
    """
    for _ in range(2):
        await asyncio.sleep(0)
