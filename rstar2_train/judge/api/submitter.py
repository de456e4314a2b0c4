"""The API's side of the queue: submits calls, reads their results, and keeps the first result of each.

No accepted call is lost: a submission is retried until Redis accepts it, and a call that Redis lost (before its
append-only file was synced) is submitted again. A call whose deadline passes gets status `internal`. A cell may have
run, so it is submitted only once: if Redis or its worker loses it, it gets status `session_lost`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
import time
import uuid
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.queue import QueueKeys, convert, decode_result, retry_until_done
from rstar2_train.judge.types import NO_FREE_SLOT, CallResult, QueuedCall, Verb

log = logging.getLogger("rstar2.judge.submit")

AUDIT_SECONDS = 2.0
AUDIT_AGE_SECONDS = 10.0
"""Time without a result after which a call is looked up in Redis; 0 after a lost connection."""
MAX_MISSED_AUDITS = 3
"""Audits in a row without the worker's heartbeat, after which a cell is lost."""
AUDIT_CHUNK = 64
"""Calls in one pipeline of an audit: the answers of 256 hold the loop for 10 ms, and 50 ms on a busy machine."""
SUBMIT_CHUNK = 256
SUBMIT_CHARACTERS = 4 << 20
"""Calls and their characters in one pipeline; a larger call is sent alone."""
MAX_RESULTS_PER_READ = 512
CONNECTED_SECONDS = 5.0


@dataclass(slots=True, eq=False)
class _SubmittedCall:
    call: QueuedCall
    future: asyncio.Future[CallResult]
    accepted: float
    """Time of acceptance (monotonic seconds)."""
    worker: str = ""
    """Of a further cell: the worker that has its session."""
    entry: bytes = b""
    """Id of its entry in the stream; empty until Redis accepted it."""
    checked: float = 0.0
    """Time of submission or of the last audit (monotonic seconds)."""
    missed_audits: int = 0
    """Audits in a row that did not find its worker."""
    missing: bool = False
    """Whether the last audit did not find its entry."""

    @property
    def size(self) -> int:
        """Characters of its texts."""
        return len(self.call.code) + len(self.call.stdin)


class Submitter:
    """`start` it, `submit` any number of calls, `stop` it."""

    def __init__(self, redis: Redis, keys: QueueKeys, *, max_wait_seconds: float) -> None:
        self._redis = redis
        self._keys = keys
        self._max_wait = max_wait_seconds
        self._results = keys.results(uuid.uuid4().hex)
        self._pending: dict[str, _SubmittedCall] = {}
        self._outbox: list[_SubmittedCall] = []
        self._outbox_filled = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self._audit_all = False
        """Whether the next audit must look up all calls, because the connection was lost."""
        self._last_read = time.monotonic()
        self.resubmitted = 0
        self.answered = 0
        self.rate = 0.0
        """Answers per second, smoothed over several seconds."""

    @property
    def pending(self) -> int:
        """Calls without a result."""
        return len(self._pending)

    @property
    def connected(self) -> bool:
        """Whether Redis answered the reader within the last CONNECTED_SECONDS."""
        return time.monotonic() - self._last_read < CONNECTED_SECONDS

    def start(self) -> None:
        """Start to send, to read and to audit in the background."""
        self._loops = [asyncio.create_task(loop()) for loop in (self._send, self._read, self._audit)]
        for loop in self._loops:
            loop.add_done_callback(self._stop_process)

    def _stop_process(self, loop: asyncio.Task[None]) -> None:
        """Stop the API after the error of a loop: without it no call can be answered."""
        if not loop.cancelled() and (error := loop.exception()):
            log.critical("Lost the Redis connection, shutting down: %s", error)
            signal.raise_signal(signal.SIGTERM)

    async def stop(self) -> None:
        """Stop; pending calls get status `internal`."""
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        for submitted in list(self._pending.values()):
            self._answer(submitted.call.id, CallResult("internal", stderr="the judge API was stopped\n"))

    def check(self) -> None:
        """Raise the error of a loop that ended, such as a wrong password."""
        for loop in self._loops:
            if loop.done():
                loop.result()

    def submit(
        self,
        code: str,
        stdin: str,
        limits: JudgeLimits,
        *,
        verb: Verb = "call",
        session: str = "",
        worker: str = "",
    ) -> asyncio.Future[CallResult]:
        """Queue a call; the future always gets a result. `worker`: of a further cell, the worker of its session."""
        call = QueuedCall(
            id=uuid.uuid4().hex,
            reply_to=self._results,
            code=code,
            stdin=stdin,
            limits=limits,
            deadline=time.time() + self._max_wait,
            verb=verb,
            session=session,
        )
        future: asyncio.Future[CallResult] = asyncio.get_running_loop().create_future()
        submitted = _SubmittedCall(call, future, accepted=time.monotonic(), worker=worker)
        self._pending[call.id] = submitted
        self._outbox.append(submitted)
        self._outbox_filled.set()
        return future

    def _answer(self, id: str, result: CallResult) -> None:
        submitted = self._pending.pop(id, None)
        if submitted is None:
            return  # the second result of a call that ran twice
        self.answered += 1
        if result.status == "internal" and submitted.call.in_session and result.stderr != NO_FREE_SLOT:
            result = CallResult("session_lost", stderr=result.stderr)  # it may have run: it must not be sent again
        result.queue_seconds = max(0.0, time.monotonic() - submitted.accepted - result.run_seconds)
        if not submitted.future.done():
            submitted.future.set_result(result)

    async def _send(self) -> None:
        while True:
            await self._outbox_filled.wait()
            self._outbox_filled.clear()
            while self._outbox:
                count = self._next_count()
                batch = [submitted for submitted in self._outbox[:count] if submitted.call.id in self._pending]
                del self._outbox[:count]
                if batch:
                    await retry_until_done("submitting calls", partial(self._add, batch))

    def _next_count(self) -> int:
        """Return how many calls of the outbox are sent together: at least one."""
        sizes = itertools.accumulate(submitted.size for submitted in self._outbox[:SUBMIT_CHUNK])
        return max(1, sum(size <= SUBMIT_CHARACTERS for size in sizes))

    async def _add(self, batch: list[_SubmittedCall]) -> None:
        """Add those calls of a batch to their streams that Redis has not accepted yet."""
        unsent = [submitted for submitted in batch if not submitted.entry]
        pipe = self._redis.pipeline(transaction=False)
        for submitted in unsent:
            fields = await convert(submitted.size, submitted.call.encode)
            pipe.xadd(self._stream(submitted), cast(Any, fields))
        failure: Exception | None = None
        for submitted, entry in zip(unsent, await pipe.execute(raise_on_error=False), strict=True):
            if isinstance(entry, Exception):
                failure = entry
            else:
                submitted.entry, submitted.checked = entry, time.monotonic()
        if failure is not None:
            raise failure

    def _stream(self, submitted: _SubmittedCall) -> str:
        return self._keys.cells(submitted.worker) if submitted.worker else self._keys.calls

    async def _read(self) -> None:
        while True:
            try:
                first = await self._redis.blpop([self._results], timeout=1)
                more = await self._redis.lpop(self._results, MAX_RESULTS_PER_READ) if first else None
            except (RedisError, OSError) as error:
                self._audit_all = True
                await retry_until_done(f"reading results ({error or type(error).__name__})", self._redis.ping)
                continue
            self._last_read = time.monotonic()
            if first:
                for data in (first[1], *(more or ())):
                    self._answer(*await convert(len(data), decode_result, data))

    async def _audit(self) -> None:
        """Answer calls past their deadline, and find calls that Redis or a worker lost."""
        answered_before = 0
        while True:
            await asyncio.sleep(AUDIT_SECONDS)
            self.rate = 0.7 * self.rate + 0.3 * (self.answered - answered_before) / AUDIT_SECONDS
            answered_before = self.answered
            self._answer_expired()
            if not self.connected:
                continue
            audit_all, self._audit_all = self._audit_all, False
            oldest = time.monotonic() - (0.0 if audit_all else AUDIT_AGE_SECONDS)
            cells = [submitted for submitted in self._pending.values() if submitted.worker]
            in_redis = [submitted for submitted in self._pending.values() if submitted.entry]
            due = [submitted for submitted in in_redis if submitted.missing or submitted.checked < oldest]
            try:  # no retries: deadlines apply even while Redis is unreachable
                for start in range(0, len(cells), AUDIT_CHUNK):
                    await self._audit_workers(cells[start : start + AUDIT_CHUNK])
                for start in range(0, len(due), AUDIT_CHUNK):
                    await self._audit_entries(due[start : start + AUDIT_CHUNK])
            except (RedisError, OSError) as error:
                self._audit_all = True
                log.warning("Audit of pending calls failed: %s", error or type(error).__name__)

    def _answer_expired(self) -> None:
        now = time.time()
        for submitted in list(self._pending.values()):
            if submitted.call.deadline + submitted.call.limits.wall_seconds < now:
                stderr = f"the call was not answered within {self._max_wait:.0f} s\n"
                self._answer(submitted.call.id, CallResult("internal", stderr=stderr))

    async def _audit_entries(self, batch: list[_SubmittedCall]) -> None:
        """Resubmit calls that two audits in a row did not find in Redis and that have no result."""
        pipe = self._redis.pipeline(transaction=False)
        for submitted in batch:
            pipe.xrange(self._stream(submitted), submitted.entry, submitted.entry, count=1)
        for submitted, entries in zip(batch, await pipe.execute(), strict=True):
            submitted.checked = time.monotonic()
            if entries or submitted.call.id not in self._pending:
                submitted.missing = False
            elif not submitted.missing:
                submitted.missing = True
            elif submitted.call.in_session:
                self._answer(submitted.call.id, CallResult("session_lost", stderr="Redis lost the cell\n"))
            else:
                submitted.missing, submitted.entry = False, b""
                self.resubmitted += 1
                self._outbox.append(submitted)
                self._outbox_filled.set()

    async def _audit_workers(self, cells: list[_SubmittedCall]) -> None:
        """Answer cells whose worker has no heartbeat. A worker that lost Redis only for a moment is back in time."""
        pipe = self._redis.pipeline(transaction=False)
        for submitted in cells:
            pipe.exists(self._keys.worker(submitted.worker))
        for submitted, is_alive in zip(cells, await pipe.execute(), strict=True):
            submitted.missed_audits = 0 if is_alive else submitted.missed_audits + 1
            if submitted.missed_audits == MAX_MISSED_AUDITS:
                self._answer(submitted.call.id, CallResult("session_lost", stderr="the session's worker was lost\n"))
