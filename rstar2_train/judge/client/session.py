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

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.client.api_routes import ApiRoutes
from rstar2_train.judge.types import MAX_WAIT_SECONDS, CallResult, JudgeUnavailable
from rstar2_train.utils.http_connections import OK, HttpConnections, NotConnected
from rstar2_train.utils.json_steps import dump_json, load_json

LOST = "the connection to the judge was lost while the cell was in flight\n"
RETRY_SECONDS = 0.5
OPEN_SECONDS = 30.0
ANSWER_SECONDS = MAX_WAIT_SECONDS + 60
"""Time that a judge may take for a cell, beyond the cell's own limit: the judge gives up earlier."""


class JudgeSession:
    """`async with client.session() as session:`, then `run` cells one at a time."""

    def __init__(
        self, http: HttpConnections, routes: ApiRoutes, *, cells: asyncio.Semaphore, patience_seconds: float
    ) -> None:
        """`cells`: limits the cells in flight."""
        self._http = http
        self._routes = routes
        self._cells = cells
        self._patience = patience_seconds
        self._id = ""
        self._lost = ""
        """stderr of all further cells once the session is lost."""

    async def __aenter__(self) -> JudgeSession:
        """Open the session. Raises JudgeUnavailable if the judge does not answer within the client's patience."""
        give_up = time.monotonic() + self._patience
        while True:
            try:
                reply, data = await self._http.fetch(self._routes.sessions, seconds=OPEN_SECONDS)
                if reply.status == OK:
                    self._id = json.loads(data)["session"]
                    return self
                failure = f"HTTP {reply.status}: {reply.text[:500]}"
            except OSError as error:  # TimeoutError is an OSError
                failure = f"{type(error).__name__} {error}".strip()
            if time.monotonic() > give_up:
                raise self._unavailable(failure)
            await asyncio.sleep(RETRY_SECONDS)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if not self._lost:
            with contextlib.suppress(OSError):  # the judge closes an idle session itself
                await self._http.fetch(self._routes.end(self._id), seconds=OPEN_SECONDS)

    async def run(self, code: str, *, limits: JudgeLimits | None = None) -> CallResult:
        """Run a cell. The result's `session_lives` is whether another cell may follow. Raises JudgeUnavailable."""
        if self._lost:
            return CallResult("session_lost", stderr=self._lost)
        limits = limits or JudgeLimits()
        fields = {"code": code, "limits": limits.model_dump(mode="json", by_alias=True)}
        cell = await dump_json(fields, characters=len(code))
        route, seconds = self._routes.cells(self._id), ANSWER_SECONDS + limits.wall_seconds
        give_up = time.monotonic() + self._patience
        while True:
            delay = RETRY_SECONDS
            try:
                async with self._cells:
                    reply, data = await self._http.fetch(route, cell, seconds=seconds, since_data=True, repeat=False)
            except NotConnected as error:
                if time.monotonic() > give_up:
                    raise self._unavailable(f"{type(error).__name__} {error}") from error
            except OSError as error:
                self._lost = f"{LOST}({type(error).__name__})\n"
                return CallResult("session_lost", stderr=self._lost)
            else:
                if reply.status != 503:
                    break
                # The judge is alive and has not accepted the cell.
                give_up = time.monotonic() + self._patience
                delay = RETRY_SECONDS if reply.retry_after is None else reply.retry_after
            await asyncio.sleep(delay)
        if reply.status != OK:
            raise self._unavailable(f"HTTP {reply.status}: {reply.text[:500]}")
        result = CallResult.from_dict(await load_json(data))
        if not result.session_lives:
            self._lost = f"the session ended with an earlier cell: {result.status}\n"
        return result

    def _unavailable(self, reason: str) -> JudgeUnavailable:
        return JudgeUnavailable(f"{self._routes.url}: {reason}")
