"""Where calls come in, whichever route brought them: says no early rather than late, counts, and hands on to `submit`.

Between the HTTP routes (`api`, `code_judge`) and the queue. Whatever is accepted here is answered.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping
from typing import Any, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from redis.asyncio import Redis

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.api.submitter import Submitter
from rstar2_train.judge.queue import HEARTBEAT_SECONDS, QueueKeys
from rstar2_train.judge.types import NO_ROOM, SESSION_IDLE_SECONDS, CallResult, Verb, check_request

WAIT_BUCKETS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900)
RUN_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 60)
REDIS_SECONDS = 2.0
"""How long a question to Redis alone may take."""


class QueueFull(Exception):
    """Too many calls are waiting. `retry_after`: seconds after which it is worth while to ask again."""

    def __init__(self, message: str, *, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class BatchTooLarge(Exception):
    """More calls in one request than are ever taken."""


class SessionBusy(Exception):
    """A session runs one cell at a time."""


class CallAdmission:
    """One an API process."""

    def __init__(self, redis: Redis, names: QueueKeys, submitter: Submitter, *, max_pending: int) -> None:
        """`max_pending`: calls accepted and not answered; above that, Busy."""
        self.submitter = submitter
        self.max_pending = max_pending
        self._redis = redis
        self._names = names
        self._in_session: set[str] = set()
        """Sessions with a cell under way."""
        own = self.registry = CollectorRegistry()
        self._calls = Counter("rstar2_judge_calls_total", "Answered calls by status", ["status"], registry=own)
        self._refused = Counter("rstar2_judge_refused_total", "Calls refused with 503", registry=own)
        self._wait = Histogram(
            "rstar2_judge_wait_seconds", "From acceptance to answer, less the run", buckets=WAIT_BUCKETS, registry=own
        )
        self._run = Histogram(
            "rstar2_judge_run_seconds", "Wall time of the snippet's process", buckets=RUN_BUCKETS, registry=own
        )
        self._gauges = {
            "pending": Gauge("rstar2_judge_pending", "Calls of this API process not answered yet", registry=own),
            "resubmitted": Gauge("rstar2_judge_resubmitted", "Calls that Redis lost and that went again", registry=own),
            "queued": Gauge("rstar2_judge_queue_depth", "Calls in Redis, those being run included", registry=own),
        }
        self._executors = Gauge("rstar2_judge_executors", "Sandboxes of all workers", ["state"], registry=own)

    def admit(self, count: int) -> None:
        """Raises Busy when `count` more calls are too many now, BatchTooLarge when they always are."""
        submitter = self.submitter
        if count > self.max_pending:
            raise BatchTooLarge(f"{count} calls in one request; at most {self.max_pending} are taken")
        if submitter.pending + count <= self.max_pending:
            return
        self._refused.inc(count)
        seconds = min(30, max(1, round(0.25 * submitter.pending / max(submitter.rate, 1.0))))
        message = f"{submitter.pending} calls are waiting; at most {self.max_pending} are taken"
        raise QueueFull(message, retry_after=seconds)

    async def run(self, code: str, stdin: str, limits: JudgeLimits) -> CallResult:
        """Runs one call that was admitted. Raises what ended the way to Redis for good, such as a wrong password."""
        problem = check_request(code, stdin)
        if problem:
            result = CallResult("invalid", stderr=problem + "\n")
        else:
            self.submitter.check()
            result = await self.submitter.submit(code, stdin, limits)
            self._wait.observe(result.queue_seconds)
            self._run.observe(result.run_seconds)
        self._calls.labels(result.status).inc()
        return result

    async def open_session(self) -> str:
        """Begins a session: a name for it. It takes a place in a sandbox with its first cell."""
        session = uuid.uuid4().hex
        async with asyncio.timeout(REDIS_SECONDS):
            await self._redis.set(self._names.session(session), "", ex=SESSION_IDLE_SECONDS)
        return session

    async def run_cell(self, session: str, code: str, limits: JudgeLimits) -> CallResult:
        """Runs a cell in a session, after those before it. Raises SessionBusy while one is being run."""
        problem = check_request(code, "")
        if problem:
            return CallResult("invalid", stderr=problem + "\n", session_lives=True)
        if session in self._in_session:
            raise SessionBusy(f"session {session} is still running a cell")
        self._in_session.add(session)
        try:
            result = await self._in(session, "cell", code, limits)
        finally:
            self._in_session.discard(session)
        self._calls.labels(result.status).inc()
        return result

    async def close_session(self, session: str) -> None:
        """Ends a session."""
        await self._in(session, "close", "", JudgeLimits())
        await self._redis.delete(self._names.session(session))

    async def _in(self, session: str, verb: Verb, code: str, limits: JudgeLimits) -> CallResult:
        """Sends a cell, or the end, to where the session is."""
        self.submitter.check()
        worker = await self._find(session)
        if worker is None:  # a Redis that has just come back is told again at the worker's next heartbeat
            await asyncio.sleep(2 * HEARTBEAT_SECONDS)
            worker = await self._find(session)
        if worker is None:
            return CallResult("session_lost", stderr=f"there is no session {session}, or none any more\n")
        if not worker and verb == "close":
            return CallResult("ok")
        verb = verb if worker else "open"
        result = await self.submitter.submit(code, "", limits, verb=verb, session=session, worker=worker)
        if result.status == "internal":  # of a cell that is NO_ROOM alone (submitter.py); what it printed says nothing
            raise QueueFull(NO_ROOM.strip(), retry_after=1)
        return result

    async def _find(self, session: str) -> str | None:
        """The worker that has a session; empty: none yet; None: there is no such session."""
        names = self._names
        known, place = await self._redis.mget(names.session(session), names.place(session))
        worker = "" if place is None else cast(bytes, place).decode()
        lives = not worker or await self._redis.exists(names.worker(worker))
        return None if known is None or not lives else worker

    async def status(self) -> dict[str, Any]:
        """Queue and workers. Raises RedisError or OSError when Redis does not answer."""
        self.submitter.check()
        async with asyncio.timeout(REDIS_SECONDS):
            workers, queued = await self._workers(), await self._redis.xlen(self._names.tasks)
        executors = {
            "ready": sum(worker["ready"] for worker in workers),
            "configured": sum(worker["executors"] for worker in workers),
            "busy": sum(worker["busy"] for worker in workers),
        }
        return {
            "ready": executors["ready"] > 0,
            "queued": queued,
            "pending": self.submitter.pending,
            "resubmitted": self.submitter.resubmitted,
            "executors": executors,
            "workers": workers,
        }

    async def metrics(self) -> bytes:
        """Everything counted, as Prometheus reads it. Raises as `status` does."""
        status = await self.status()
        self._set(status)
        return generate_latest(self.registry)

    def _set(self, status: Mapping[str, Any]) -> None:
        for name, gauge in self._gauges.items():
            gauge.set(status[name])
        for state, count in status["executors"].items():
            self._executors.labels(state).set(count)

    async def _workers(self) -> list[dict[str, Any]]:
        keys = [key async for key in self._redis.scan_iter(match=self._names.worker("*"), count=1000)]
        values = await self._redis.mget(keys) if keys else []
        return sorted((json.loads(value) for value in values if value), key=lambda worker: str(worker["name"]))
