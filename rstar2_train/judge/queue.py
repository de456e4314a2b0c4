"""The queue between APIs and workers, on Redis Streams: nothing accepted is lost, nothing is answered twice.

tasks go into one stream with one consumer group; a worker answers with one MULTI of RPUSH (to the list of the API
process that asked), XACK and XDEL. A worker renews what it holds; what nobody renewed is claimed by another one;
what was delivered too often is put aside. Delivery is at least once: the API keeps the first result of a task.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    ClusterDownError,
    MasterDownError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from rstar2_train.judge.types import SESSION_IDLE_SECONDS, CallResult, QueuedCall
from rstar2_train.utils.auth import secret

log = logging.getLogger("rstar2.judge.queue")

PREFIX = "rstar2:judge"
GROUP = "workers"
MAX_DELIVERIES = 3
RESULT_SECONDS = 900
"""Life of a result list after the last result in it."""
HEARTBEAT_SECONDS = 1.0
HEARTBEAT_LIFE_SECONDS = 5
RENEW_SECONDS = 2.0
CLAIM_IDLE_SECONDS = 10.0
"""A task that its worker has not renewed for so long is another worker's to take."""
DEAD_SECONDS = 3600
"""A worker that asked for nothing for so long is dead."""
DEAD_LETTERS = 1000
"""Dead letters kept for people to look at."""

PASSING = (OutOfMemoryError, ReadOnlyError, TryAgainError, ClusterDownError, MasterDownError)
"""Errors of a Redis that will take the command later; their messages have lost the word that Redis began them with."""
PASSING_WORDS = ("LOADING", "MISCONF", "BUSY", "NOREPLICAS", "UNBLOCKED", "OOM", "READONLY", "MASTERDOWN")
"""What the messages of the others begin with. UNBLOCKED: it became a replica under a blocked read."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """Redis keys."""

    prefix: str = PREFIX

    @property
    def tasks(self) -> str:
        """The stream of tasks."""
        return f"{self.prefix}:tasks"

    @property
    def dead(self) -> str:
        """The stream of dead letters."""
        return f"{self.prefix}:dead"

    def results(self, api: str) -> str:
        """The list that one API process reads."""
        return f"{self.prefix}:results:{api}"

    def worker(self, name: str) -> str:
        """The heartbeat of a worker."""
        return f"{self.prefix}:worker:{name}"

    def cells(self, worker: str) -> str:
        """The stream of cells of the sessions that a worker has: nobody else may run them."""
        return f"{self.prefix}:cells:{worker}"

    def session(self, session: str) -> str:
        """That a session exists."""
        return f"{self.prefix}:session:{session}"

    def place(self, session: str) -> str:
        """The worker that has a session, once its first cell is there."""
        return f"{self.prefix}:session:{session}:at"


def connect(url: str, *, connections: int = 16) -> Redis:
    """A client with its own small pool; the password comes from RSTAR2_REDIS_PASSWORD[_FILE].

    Raises ValueError for a URL that holds a password: command lines are readable by everybody on the machine.
    """
    if urlsplit(url).password:
        raise ValueError(
            "the Redis URL holds a password; give it in RSTAR2_REDIS_PASSWORD or RSTAR2_REDIS_PASSWORD_FILE"
        )
    pool = BlockingConnectionPool.from_url(
        url,
        password=secret("RSTAR2_REDIS_PASSWORD"),
        protocol=2,
        max_connections=connections,
        timeout=30,
        socket_timeout=30,
        socket_connect_timeout=5,
        socket_keepalive=True,
        health_check_interval=15,
        driver_info=None,  # CLIENT SETINFO, whose answer redis-py (8.1) can take for that of its own health check
        retry=Retry(NoBackoff(), 0),
    )
    return Redis(connection_pool=pool)


async def until_done(what: str, action: Callable[[], Awaitable[T]], *, stop: asyncio.Event | None = None) -> T:
    """Runs a Redis command until Redis answers it, however often Redis is restarted meanwhile.

    An error of the command itself (not of the connection, loading or a full disk), or a wrong password, is raised.
    """
    delay = 0.05
    while True:
        try:
            return await action()
        except AuthenticationError:
            raise
        except ResponseError as error:
            if not transient(error):
                raise
            reason: Exception = error
        except (RedisError, OSError) as error:
            reason = error
        if stop is not None and stop.is_set():
            raise RedisConnectionError(f"{what}: {reason}") from reason
        log.warning("%s: %s; trying again in %.2f s", what, reason or type(reason).__name__, delay)
        await asyncio.sleep(delay)
        delay = min(1.0, delay * 2)


def transient(error: ResponseError) -> bool:
    """Whether Redis refuses only for now: full, loading, disk trouble, failing over."""
    words = str(error).rpartition("caused error: ")[2].lstrip("('\"")  # a pipeline puts a text of its own before it
    words = words.removeprefix("Transaction discarded because of: ")  # refused at its EXEC: the reason as Redis says it
    return isinstance(error, PASSING) or words.startswith(PASSING_WORDS)


def describe(error: Exception) -> str:
    """What came from Redis in place of an answer, for people."""
    text = str(error) or type(error).__name__
    if isinstance(error, OutOfMemoryError):
        return f"Redis is full: {text}"
    refused = isinstance(error, (ResponseError, AuthenticationError))
    return f"Redis {'refuses' if refused else 'does not answer'}: {text}"


async def ensure_group(redis: Redis, *streams: str) -> None:
    """Makes the streams and their group, if they are not there (any more)."""
    for stream in streams:
        try:
            await redis.xgroup_create(stream, GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise


@dataclass(slots=True)
class LeasedCall:
    """A task that this worker was given."""

    entry: bytes
    task: QueuedCall
    stream: str

    @property
    def key(self) -> tuple[str, bytes]:
        """What it is known by."""
        return self.stream, self.entry


class Consumer:
    """The worker's side. Commands that fail raise; the worker decides how to go on."""

    def __init__(self, redis: Redis, name: str, names: QueueKeys) -> None:
        self._redis = redis
        self._names = names
        self.name = name
        self.cells = names.cells(name)
        self.streams = (names.tasks, self.cells)

    async def _in_group(self, action: Callable[[], Awaitable[T]], otherwise: T) -> T:
        """Runs a command on the group; `otherwise` when Redis came back empty: then the group is made again."""
        try:
            return await action()
        except ResponseError as error:
            if "NOGROUP" not in str(error):
                raise
            await ensure_group(self._redis, *self.streams)
            return otherwise

    async def pull(self, stream: str, count: int, *, block_ms: int) -> list[LeasedCall]:
        """Up to `count` new tasks of a stream, waiting up to `block_ms` for the first."""

        async def read() -> Any:
            return await self._redis.xreadgroup(GROUP, self.name, {stream: ">"}, count=count, block=block_ms)

        return [held for _, entries in await self._in_group(read, None) or [] for held in self._held(entries, stream)]

    @staticmethod
    def _held(entries: Iterable[tuple[bytes, dict[bytes, bytes]]], stream: str) -> list[LeasedCall]:
        return [LeasedCall(entry, QueuedCall.decode(fields[b"t"]), stream) for entry, fields in entries if fields]

    async def claim(self, count: int) -> tuple[list[LeasedCall], list[LeasedCall]]:
        """Tasks of workers that stopped renewing: (those to run, those delivered too often)."""
        return await self._in_group(lambda: self._claim(count), ([], []))

    async def _claim(self, count: int) -> tuple[list[LeasedCall], list[LeasedCall]]:
        idle = int(CLAIM_IDLE_SECONDS * 1000)
        answer: Any = await self._redis.xautoclaim(self._names.tasks, GROUP, self.name, idle, "0-0", count=count)
        held = self._held(answer[1], self._names.tasks)
        if not held:
            return [], []
        pipe = self._redis.pipeline(transaction=False)
        for one in held:
            pipe.xpending_range(self._names.tasks, GROUP, one.entry, one.entry, 1)
        counts = [answer[0]["times_delivered"] if answer else 1 for answer in await pipe.execute()]
        run = [one for one, times in zip(held, counts, strict=True) if times <= MAX_DELIVERIES]
        dead = [one for one, times in zip(held, counts, strict=True) if times > MAX_DELIVERIES]
        return run, dead

    async def renew(self, entries: list[bytes]) -> None:
        """Says that these tasks are still being worked on."""

        async def claim() -> None:
            await self._redis.xclaim(self._names.tasks, GROUP, self.name, 0, cast(Any, entries), justid=True)

        await self._in_group(claim, None)

    async def finish(self, results: list[tuple[LeasedCall, CallResult]], *, dead: bool = False) -> None:
        """Answers, acknowledges and deletes, all in one transaction."""
        pipe = self._redis.pipeline(transaction=True)
        for reply_to in {held.task.reply_to for held, _ in results}:
            payloads = [encode_result(held.task.id, r) for held, r in results if held.task.reply_to == reply_to]
            pipe.rpush(reply_to, *payloads)
            pipe.expire(reply_to, RESULT_SECONDS)
        if dead:
            for held, _ in results:
                pipe.xadd(self._names.dead, {"t": held.task.encode()}, maxlen=DEAD_LETTERS, approximate=True)
        for stream in {held.stream for held, _ in results}:
            entries = [held.entry for held, _ in results if held.stream == stream]
            pipe.xack(stream, GROUP, *entries)
            pipe.xdel(stream, *entries)
        await pipe.execute()

    async def delivered_cells(self) -> list[LeasedCall]:
        """Cells that were given to this worker and are not answered in Redis, whatever it remembers of them itself."""

        async def read() -> Any:
            return await self._redis.xreadgroup(GROUP, self.name, {self.cells: "0"}, count=64)

        found = await self._in_group(read, None) or []
        return [held for _, entries in found for held in self._held(entries, self.cells)]

    async def take_session(self, session: str) -> bool:
        """Whether a session that begins is this worker's: the first that asks has it. None that was closed."""
        place = self._names.place(session)
        if not await self._redis.exists(self._names.session(session)):
            return False
        if await self._redis.set(place, self.name, nx=True, ex=SESSION_IDLE_SECONDS):
            return True
        return cast(bytes | None, await self._redis.get(place)) == self.name.encode()

    async def keep_sessions(self, living: Iterable[str], ended: Iterable[str]) -> None:
        """Says which sessions live here, also to a Redis that has forgotten them, and which are no more."""
        pipe = self._redis.pipeline(transaction=False)
        for session in living:
            pipe.set(self._names.place(session), self.name, ex=SESSION_IDLE_SECONDS)
            pipe.set(self._names.session(session), "", ex=SESSION_IDLE_SECONDS)
        for session in ended:
            pipe.delete(self._names.session(session))
        await pipe.execute()

    async def heartbeat(self, report: dict[str, Any]) -> None:
        """Tells the APIs that this worker lives, and what it has."""
        pipe = self._redis.pipeline(transaction=False)
        pipe.set(self._names.worker(self.name), json.dumps(report), ex=HEARTBEAT_LIFE_SECONDS)
        pipe.expire(self.cells, SESSION_IDLE_SECONDS)
        await pipe.execute()

    async def forget_the_dead(self) -> None:
        """Takes workers off the books that were killed long ago and hold nothing."""
        await self._in_group(self._forget_the_dead, None)

    async def _forget_the_dead(self) -> None:
        for one in await self._redis.xinfo_consumers(self._names.tasks, GROUP):
            if one["pending"] == 0 and one["idle"] > DEAD_SECONDS * 1000 and one["name"] != self.name.encode():
                await self._redis.xgroup_delconsumer(self._names.tasks, GROUP, one["name"])

    async def leave(self) -> None:
        """Takes this worker off the books; it must hold nothing."""
        await self._redis.delete(self._names.worker(self.name))
        await ensure_group(self._redis, self._names.tasks)
        await self._redis.xgroup_delconsumer(self._names.tasks, GROUP, self.name)
        await self._redis.delete(self.cells)


def encode_result(task: str, result: CallResult) -> str:
    """One result as JSON."""
    printed = (result.stdout, result.stderr)
    return json.dumps([task, result.status, *printed, result.exit_code, result.run_seconds, result.session_lives])


def decode_result(data: bytes) -> tuple[str, CallResult]:
    """Reverse of `encode_result`: task id and result."""
    task, status, stdout, stderr, exit_code, run_seconds, lives = json.loads(data)
    return task, CallResult(status, stdout, stderr, exit_code, 0.0, run_seconds, lives)
