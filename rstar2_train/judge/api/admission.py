"""Admits calls of all HTTP routes: rejects them early when the queue is full, counts them, passes them to `submitter`.

Used by the routes of `app` and `code_judge_compat`. Every admitted call is answered.
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
from rstar2_train.judge.types import NO_FREE_SLOT, SESSION_IDLE_SECONDS, CallResult, Verb, check_request

WAIT_BUCKETS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900)
RUN_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 60)
REDIS_SECONDS = 2.0
"""Timeout of a single Redis command."""


class QueueFull(Exception):
    """Too many calls are pending. `retry_after`: seconds after which a retry is likely to succeed."""

    def __init__(self, message: str, *, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class BatchTooLarge(Exception):
    """A request contains more calls than the limit of pending calls."""


class SessionBusy(Exception):
    """The session is running a cell; it runs one at a time."""


class CallAdmission:
    """Admission of one API process."""

    def __init__(self, redis: Redis, keys: QueueKeys, submitter: Submitter, *, max_pending: int) -> None:
        """`max_pending`: limit of admitted calls without an answer, above which QueueFull is raised."""
        self.submitter = submitter
        self.max_pending = max_pending
        self._redis = redis
        self._keys = keys
        self._busy_sessions: set[str] = set()
        """Sessions with a cell in flight."""
        own = self.registry = CollectorRegistry()
        self._calls = Counter("rstar2_judge_calls_total", "Answered calls, by status.", ["status"], registry=own)
        self._refused = Counter("rstar2_judge_refused_total", "Calls rejected with HTTP 503.", registry=own)
        self._wait = Histogram(
            "rstar2_judge_wait_seconds",
            "Time from admission to answer, less the run time.",
            buckets=WAIT_BUCKETS,
            registry=own,
        )
        self._run = Histogram(
            "rstar2_judge_run_seconds",
            "Wall-clock time of the snippet's process.",
            buckets=RUN_BUCKETS,
            registry=own,
        )
        self._gauges = {
            "pending": Gauge("rstar2_judge_pending", "Unanswered calls of this API process.", registry=own),
            "resubmitted": Gauge(
                "rstar2_judge_resubmitted", "Calls that Redis lost and this API process submitted again.", registry=own
            ),
            "queued": Gauge("rstar2_judge_queue_depth", "Calls in Redis, including running calls.", registry=own),
        }
        self._executors = Gauge(
            "rstar2_judge_executors", "Sandboxes of all workers, by state.", ["state"], registry=own
        )

    def admit(self, count: int) -> None:
        """Admit `count` calls. Raises QueueFull if that is too many now, BatchTooLarge if it is always too many."""
        submitter = self.submitter
        if count > self.max_pending:
            raise BatchTooLarge(
                f"The request contains {count} calls; at most {self.max_pending} are allowed. Send fewer."
            )
        if submitter.pending + count <= self.max_pending:
            return
        self._refused.inc(count)
        seconds = min(30, max(1, round(0.25 * submitter.pending / max(submitter.rate, 1.0))))
        message = f"The queue is full: {submitter.pending} calls are pending; at most {self.max_pending} are allowed. "
        message += f"Retry after {seconds} s."
        raise QueueFull(message, retry_after=seconds)

    async def run(self, code: str, stdin: str, limits: JudgeLimits, *, verb: Verb = "call") -> CallResult:
        """Run one admitted call; `verb`: call, script or code_judge.

        Raises the permanent error of the Redis connection, such as a wrong password.
        """
        problem = check_request(code, stdin)
        if problem:
            result = CallResult("invalid", stderr=problem + "\n")
        else:
            self.submitter.check()
            result = await self.submitter.submit(code, stdin, limits, verb=verb)
            self._wait.observe(result.queue_seconds)
            self._run.observe(result.run_seconds)
        self._calls.labels(result.status).inc()
        return result

    async def open_session(self) -> str:
        """Return the id of a new session. It occupies a slot of a sandbox from its first cell on."""
        session = uuid.uuid4().hex
        async with asyncio.timeout(REDIS_SECONDS):
            await self._redis.set(self._keys.session(session), "", ex=SESSION_IDLE_SECONDS)
        return session

    async def run_cell(self, session: str, code: str, limits: JudgeLimits) -> CallResult:
        """Run a cell in a session. Raises SessionBusy while the session runs one, QueueFull if no slot is free."""
        problem = check_request(code, "")
        if problem:
            return CallResult("invalid", stderr=problem + "\n", session_lives=True)
        if session in self._busy_sessions:
            raise SessionBusy(f"Session {session} is running a cell. Send the next one after its result.")
        self._busy_sessions.add(session)
        try:
            result = await self._submit_to_session(session, "cell", code, limits)
        finally:
            self._busy_sessions.discard(session)
        self._calls.labels(result.status).inc()
        return result

    async def close_session(self, session: str) -> None:
        """End a session."""
        await self._submit_to_session(session, "close", "", JudgeLimits())
        await self._redis.delete(self._keys.session(session))

    async def _submit_to_session(self, session: str, verb: Verb, code: str, limits: JudgeLimits) -> CallResult:
        """Submit a cell, or the end of a session, to the worker of the session."""
        self.submitter.check()
        worker = await self._find_worker(session)
        if worker is None:  # a Redis that lost its data gets the keys of sessions with the workers' next heartbeats
            await asyncio.sleep(2 * HEARTBEAT_SECONDS)
            worker = await self._find_worker(session)
        if worker is None:
            return CallResult(
                "session_lost", stderr=f"there is no session {session}, or it has ended: open another one\n"
            )
        if not worker and verb == "close":
            return CallResult("ok")
        verb = verb if worker else "open"
        result = await self.submitter.submit(code, "", limits, verb=verb, session=session, worker=worker)
        if result.status == "internal":  # for cells, the submitter returns it only with NO_FREE_SLOT
            raise QueueFull(NO_FREE_SLOT.strip(), retry_after=1)
        return result

    async def _find_worker(self, session: str) -> str | None:
        """Return the worker of a session: empty if it has no cell yet, None if the session does not exist.

        The worker may be slow or lost: the submitter decides that for all its cells.
        """
        keys = self._keys
        marker, name = await self._redis.mget(keys.session(session), keys.session_worker(session))
        worker = "" if name is None else cast(bytes, name).decode()
        return None if marker is None else worker

    async def status(self) -> dict[str, Any]:
        """Return the state of queue and workers. Raises RedisError or OSError if Redis does not answer."""
        self.submitter.check()
        async with asyncio.timeout(REDIS_SECONDS):
            workers, queued = await self._worker_reports(), await self._redis.xlen(self._keys.calls)
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
        """Return all metrics in Prometheus' text format. Raises like `status`."""
        self._set_gauges(await self.status())
        return generate_latest(self.registry)

    def _set_gauges(self, status: Mapping[str, Any]) -> None:
        for name, gauge in self._gauges.items():
            gauge.set(status[name])
        for state, count in status["executors"].items():
            self._executors.labels(state).set(count)

    async def _worker_reports(self) -> list[dict[str, Any]]:
        keys = [key async for key in self._redis.scan_iter(match=self._keys.worker("*"), count=1000)]
        values = await self._redis.mget(keys) if keys else []
        return sorted((json.loads(value) for value in values if value), key=lambda worker: str(worker["name"]))
