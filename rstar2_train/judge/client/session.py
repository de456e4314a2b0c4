"""A session of the judge, from the caller's side: cells that share one Python process, for one trajectory.

Beside `client`, over the same connections. A cell is sent once. When it is not known whether it ran, because the
connection or the sandbox was lost, the answer is `session_lost`, and so is that of every cell after it. A judge that
says nothing for longer than it would keep a cell counts as lost too.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from types import TracebackType

import httpx

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.types import MAX_WAIT_SECONDS, CallResult, JudgeUnavailable

LOST = "the connection to the judge was lost while the cell was under way\n"
WAIT_SECONDS = 0.5
ANSWER_SECONDS = MAX_WAIT_SECONDS + 60
"""How long a judge may take to answer a cell, beyond the cell's own limit: it would have given it up by itself."""


class JudgeSession:
    """`async with client.session() as session:` then `run` cells, one at a time."""

    def __init__(self, http: httpx.AsyncClient, *, patience_seconds: float) -> None:
        self._http = http
        self._patience = patience_seconds
        self._id = ""
        self._lost = ""

    async def __aenter__(self) -> JudgeSession:
        """Begins it. Raises JudgeUnavailable when the judge stays away."""
        give_up = time.monotonic() + self._patience
        while True:
            try:
                answer = await self._http.post("/v1/sessions", timeout=30)
                answer.raise_for_status()
                self._id = answer.json()["session"]
                return self
            except httpx.HTTPError as error:
                if time.monotonic() > give_up:
                    raise JudgeUnavailable(f"{self._http.base_url}: {type(error).__name__} {error}".strip()) from error
            await asyncio.sleep(WAIT_SECONDS)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if not self._lost:
            with contextlib.suppress(httpx.HTTPError):  # it ends by itself when nobody uses it
                await self._http.delete(f"/v1/sessions/{self._id}", timeout=30)

    async def run(self, code: str, *, limits: JudgeLimits | None = None) -> CallResult:
        """Runs a cell. `session_lives` says whether another one can follow. Raises JudgeUnavailable."""
        if self._lost:
            return CallResult("session_lost", stderr=self._lost)
        limits = limits or JudgeLimits()
        body = {"code": code, "limits": limits.model_dump(mode="json", by_alias=True)}
        timeout = httpx.Timeout(ANSWER_SECONDS + limits.wall_seconds, connect=10, pool=None)
        give_up = time.monotonic() + self._patience
        while True:
            wait = WAIT_SECONDS
            try:
                answer = await self._http.post(f"/v1/sessions/{self._id}/cells", json=body, timeout=timeout)
                if answer.status_code == 503:  # it lives, and has not taken the cell
                    give_up, wait = time.monotonic() + self._patience, float(answer.headers.get("Retry-After", wait))
                else:
                    break
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:  # nothing was sent
                if time.monotonic() > give_up:
                    raise JudgeUnavailable(f"{self._http.base_url}: {type(error).__name__} {error}".strip()) from error
            except httpx.TransportError as error:
                self._lost = f"{LOST}({type(error).__name__})\n"
                return CallResult("session_lost", stderr=self._lost)
            await asyncio.sleep(wait)
        if answer.status_code != 200:
            raise JudgeUnavailable(f"{self._http.base_url}: HTTP {answer.status_code}: {answer.text[:500]}")
        result = CallResult(**answer.json())
        if not result.session_lives:
            self._lost = f"the session ended with a cell before: {result.status}\n"
        return result
