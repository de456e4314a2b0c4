"""The API's side of the queue: submits calls, reads all their results with one reader, keeps the first of each.

Nothing accepted is forgotten: a submission is repeated until Redis takes it, and a task that Redis lost (killed before
it had written it down) is submitted again. A call whose deadline passes is answered `internal`. A cell is submitted
once: it may have run, so when Redis or its worker loses it, it is answered `session_lost`.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
import uuid
from dataclasses import dataclass, field
from functools import partial

from redis.asyncio import Redis
from redis.exceptions import RedisError

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.queue import QueueKeys, decode_result, until_done
from rstar2_train.judge.types import NO_ROOM, CallResult, QueuedCall, Verb

log = logging.getLogger("rstar2.judge.submit")

AUDIT_SECONDS = 2.0
AUDIT_EVERY = 10.0
"""A task unanswered for so long is looked up in Redis; after a lost connection, at the next audit."""
AWAY_AUDITS = 3
AUDIT_CHUNK = 256
SUBMIT_CHUNK = 256
READ_AT_ONCE = 512


@dataclass(slots=True, eq=False)
class _SubmittedCall:
    task: QueuedCall
    future: asyncio.Future[CallResult]
    accepted: float
    """Monotonic time of acceptance."""
    worker: str = ""
    """Of a further cell: the worker that has its session."""
    entry: bytes = b""
    """Its id in the stream; empty until Redis took it."""
    checked: float = field(default=0.0)
    """When it was last seen in Redis, or submitted."""
    away: int = 0
    """Audits in a row that did not find its worker."""
    missing: bool = False
    """The last audit did not find it."""


class Submitter:
    """`start`, `submit` any number of calls at once, `stop`."""

    def __init__(self, redis: Redis, names: QueueKeys, *, max_wait_seconds: float) -> None:
        self._redis = redis
        self._names = names
        self._max_wait = max_wait_seconds
        self._results = names.results(uuid.uuid4().hex)
        self._pending: dict[str, _SubmittedCall] = {}
        self._outbox: list[_SubmittedCall] = []
        self._some_out = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self._suspect = False
        self._reader_well = time.monotonic()
        self.resubmitted = 0
        self.answered = 0
        self.rate = 0.0
        """Answers per second, smoothed over some seconds."""

    @property
    def pending(self) -> int:
        """Calls that are not answered yet."""
        return len(self._pending)

    @property
    def connected(self) -> bool:
        """Whether Redis answered the reader lately."""
        return time.monotonic() - self._reader_well < 5.0

    def start(self) -> None:
        """Starts the sender, the reader and the audit."""
        self._loops = [asyncio.create_task(loop()) for loop in (self._send, self._read, self._audit)]
        for loop in self._loops:
            loop.add_done_callback(self._ended)

    def _ended(self, loop: asyncio.Task[None]) -> None:
        """A loop ends by an error alone: this process is of no more use."""
        if not loop.cancelled() and (error := loop.exception()):
            log.critical("the way to Redis is broken, the API ends: %s", error)
            signal.raise_signal(signal.SIGTERM)

    async def stop(self) -> None:
        """Stops; calls still pending are answered `internal`."""
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        for pending in list(self._pending.values()):
            self._answer(pending.task.id, CallResult("internal", stderr="the judge API was stopped\n"))

    def check(self) -> None:
        """Raises the error that ended one of the loops, if one did (a wrong password, or a defect)."""
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
        """Queues a call; the future always gets a result. `worker`: the one that has the session of a further cell."""
        task = QueuedCall.build(
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
        pending = _SubmittedCall(task, future, accepted=time.monotonic(), worker=worker)
        self._pending[task.id] = pending
        self._outbox.append(pending)
        self._some_out.set()
        return future

    def _answer(self, task: str, result: CallResult) -> None:
        pending = self._pending.pop(task, None)
        if pending is None:
            return  # a second result of a task that ran twice
        self.answered += 1
        if result.status == "internal" and pending.task.verb != "call" and result.stderr != NO_ROOM:
            result = CallResult("session_lost", stderr=result.stderr)  # it may have run: nobody may send it again
        result.queue_seconds = max(0.0, time.monotonic() - pending.accepted - result.run_seconds)
        if not pending.future.done():
            pending.future.set_result(result)

    async def _send(self) -> None:
        while True:
            await self._some_out.wait()
            self._some_out.clear()
            while self._outbox:
                batch = [one for one in self._outbox[:SUBMIT_CHUNK] if one.task.id in self._pending]
                del self._outbox[:SUBMIT_CHUNK]
                if batch:
                    await until_done("submitting", partial(self._add, batch))

    async def _add(self, batch: list[_SubmittedCall]) -> None:
        left = [one for one in batch if not one.entry]
        pipe = self._redis.pipeline(transaction=False)
        for one in left:
            pipe.xadd(self._stream(one), {"t": one.task.encode()})
        refused: Exception | None = None
        for one, entry in zip(left, await pipe.execute(raise_on_error=False), strict=True):
            if isinstance(entry, Exception):
                refused = entry
            else:
                one.entry, one.checked = entry, time.monotonic()
        if refused is not None:
            raise refused

    def _stream(self, one: _SubmittedCall) -> str:
        return self._names.cells(one.worker) if one.worker else self._names.tasks

    async def _read(self) -> None:
        while True:
            try:
                first = await self._redis.blpop([self._results], timeout=1)
                more = await self._redis.lpop(self._results, READ_AT_ONCE) if first else None
            except (RedisError, OSError) as error:
                self._suspect = True
                await until_done(f"reading results ({error or type(error).__name__})", self._redis.ping)
                continue
            self._reader_well = time.monotonic()
            if first:
                for data in (first[1], *(more or ())):
                    self._answer(*decode_result(data))

    async def _audit(self) -> None:
        """Answers what is past its deadline, submits again what Redis lost."""
        before = 0
        while True:
            await asyncio.sleep(AUDIT_SECONDS)
            self.rate = 0.7 * self.rate + 0.3 * (self.answered - before) / AUDIT_SECONDS
            before = self.answered
            now, clock = time.monotonic(), time.time()
            for pending in list(self._pending.values()):
                if pending.task.deadline + pending.task.wall_seconds < clock:
                    why = f"the call was not answered within {self._max_wait:.0f} s\n"
                    self._answer(pending.task.id, CallResult("internal", stderr=why))
            if not self.connected:
                continue
            suspect, self._suspect = self._suspect, False
            old = 0.0 if suspect else AUDIT_EVERY
            cells = [one for one in self._pending.values() if one.worker]
            known = [one for one in self._pending.values() if one.entry]
            due = [one for one in known if one.missing or now - one.checked > old]
            try:  # once: deadlines go on while Redis is away
                for start in range(0, len(cells), AUDIT_CHUNK):
                    await self._look_for_workers(cells[start : start + AUDIT_CHUNK])
                for start in range(0, len(due), AUDIT_CHUNK):
                    await self._look_up(due[start : start + AUDIT_CHUNK])
            except (RedisError, OSError) as error:
                self._suspect = True
                log.warning("auditing: %s", error or type(error).__name__)

    async def _look_up(self, batch: list[_SubmittedCall]) -> None:
        """Twice not found, one audit apart, and still no result: Redis lost it."""
        pipe = self._redis.pipeline(transaction=False)
        for one in batch:
            pipe.xrange(self._stream(one), one.entry, one.entry, count=1)
        for one, found in zip(batch, await pipe.execute(), strict=True):
            one.checked = time.monotonic()
            if found or one.task.id not in self._pending:
                one.missing = False
            elif not one.missing:
                one.missing = True
            elif one.task.verb != "call":
                self._answer(one.task.id, CallResult("session_lost", stderr="Redis lost the cell\n"))
            else:
                one.missing, one.entry = False, b""
                self.resubmitted += 1
                self._outbox.append(one)
                self._some_out.set()

    async def _look_for_workers(self, cells: list[_SubmittedCall]) -> None:
        """A cell whose worker has gone will not be run. One that was away with Redis is back by the next audits."""
        pipe = self._redis.pipeline(transaction=False)
        for one in cells:
            pipe.exists(self._names.worker(one.worker))
        for one, found in zip(cells, await pipe.execute(), strict=True):
            one.away = 0 if found else one.away + 1
            if one.away == AWAY_AUDITS:
                self._answer(one.task.id, CallResult("session_lost", stderr="the session's worker was lost\n"))
