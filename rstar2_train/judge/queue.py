"""The queue between APIs and workers, on Redis Streams. No accepted call is lost, and none is answered twice.

    API ──XADD──▶ stream of calls ──XREADGROUP──▶ worker
     ▲                                              │
     └──BLPOP── list of results of the API ◀──RPUSH─┘ (one MULTI with XACK and XDEL)

A worker renews its leases. Another worker claims a call whose lease was not renewed, and a call that was delivered too
often becomes a dead letter. Delivery is at least once; the API keeps the first result of a call. The cells of a live
session have a stream of their own, which only the session's worker reads.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
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

from rstar2_train.judge.types import SESSION_IDLE_SECONDS, CallResult, QueuedCall, ReturnedFile
from rstar2_train.utils.auth import REDIS_PASSWORD, read_secret

log = logging.getLogger("rstar2.judge.queue")

PREFIX = "rstar2:judge"
GROUP = "workers"
CONNECTIONS = 16
"""Connections of a client; further commands wait for one."""
MAX_DELIVERIES = 3
RESULT_SECONDS = 900
"""Lifetime of a result list after its last result."""
HEARTBEAT_SECONDS = 1.0
HEARTBEAT_LIFE_SECONDS = 5
RENEW_SECONDS = 2.0
CLAIM_IDLE_SECONDS = 10.0
"""Age of a lease after which another worker may claim the call."""
DEAD_SECONDS = 3600
"""Time without a command after which a worker without leases is removed from the group."""
DEAD_LETTERS = 1000
"""Dead letters that are kept for inspection."""
INLINE_BYTES = 256 << 10
"""Size of a call or a result above which a thread converts it."""

TRANSIENT_ERRORS = (OutOfMemoryError, ReadOnlyError, TryAgainError, ClusterDownError, MasterDownError)
"""Temporary errors of Redis that redis-py has classes for; it removes the error code from their messages."""
TRANSIENT_CODES = ("LOADING", "MISCONF", "BUSY", "NOREPLICAS", "UNBLOCKED", "OOM", "READONLY", "MASTERDOWN")
"""Error codes at the start of other temporary errors. UNBLOCKED: Redis became a replica during a blocking read."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """Names of the Redis keys."""

    prefix: str = PREFIX

    @property
    def calls(self) -> str:
        """Stream of calls for any worker."""
        return f"{self.prefix}:calls"

    @property
    def dead(self) -> str:
        """Stream of dead letters."""
        return f"{self.prefix}:dead"

    def results(self, api: str) -> str:
        """List of results for one API process."""
        return f"{self.prefix}:results:{api}"

    def worker(self, name: str) -> str:
        """Return the key of a worker's heartbeat."""
        return f"{self.prefix}:worker:{name}"

    def cells(self, worker: str) -> str:
        """Stream of cells for the sessions of one worker. No other worker may run them."""
        return f"{self.prefix}:cells:{worker}"

    def session(self, session: str) -> str:
        """Return the key that exists while the session is open."""
        return f"{self.prefix}:session:{session}"

    def session_worker(self, session: str) -> str:
        """Name of the worker of a session; set with the first cell."""
        return f"{self.prefix}:session:{session}:at"


class _RaisesConnectionError(AbstractConnection):
    """A connection that raises ConnectionError, which callers retry, when its transport is closed.

    uvloop raises RuntimeError for a write to a transport that Redis has closed.
    """

    async def send_packed_command(self, command: bytes | str | Iterable[bytes], check_health: bool = True) -> None:
        try:
            await super().send_packed_command(command, check_health)
        except RuntimeError as error:
            raise RedisConnectionError(f"Connection closed: {error}") from error


def connect(url: str) -> Redis:
    """Return a client with its own connection pool; the password comes from RSTAR2_REDIS_PASSWORD[_FILE].

    Raises ValueError for a URL with a password: all users of the machine can read command lines.
    """
    if urlsplit(url).password:
        raise ValueError(
            "--redis: the URL must not contain a password. "
            "Set RSTAR2_REDIS_PASSWORD or RSTAR2_REDIS_PASSWORD_FILE instead."
        )
    pool = BlockingConnectionPool.from_url(
        url,
        password=read_secret(REDIS_PASSWORD),
        protocol=2,
        max_connections=CONNECTIONS,
        timeout=30,
        socket_timeout=30,
        socket_connect_timeout=5,
        socket_keepalive=True,
        health_check_interval=15,
        driver_info=None,  # redis-py (8.1) can mistake the answer to its CLIENT SETINFO for that of a health check
        retry=Retry(NoBackoff(), 0),
    )
    pool.connection_class = type("QueueConnection", (_RaisesConnectionError, pool.connection_class), {})
    return Redis(connection_pool=pool)


async def retry_until_done(
    description: str, action: Callable[[], Awaitable[T]], *, stop: asyncio.Event | None = None
) -> T:
    """Run a Redis command; retry it with backoff while Redis is unreachable or refuses temporarily.

    Raises AuthenticationError, and ResponseError for an error of the command itself. Raises RedisConnectionError when a
    try fails after `stop` was set.
    """
    delay = 0.05
    while True:
        try:
            return await action()
        except AuthenticationError:
            raise
        except ResponseError as error:
            if not is_transient(error):
                raise
            failure: Exception = error
        except (RedisError, OSError) as error:
            failure = error
        if stop is not None and stop.is_set():
            raise RedisConnectionError(f"{description}: {failure}") from failure
        log.warning("Redis, %s: %s. Retrying in %.2f s.", description, failure or type(failure).__name__, delay)
        await asyncio.sleep(delay)
        delay = min(1.0, delay * 2)


def is_transient(error: ResponseError) -> bool:
    """Return whether Redis refuses temporarily: it is full, loading, read-only, failing over, or has no disk space."""
    message = str(error).rpartition("caused error: ")[2].lstrip("('\"")  # after the prefix that a pipeline adds
    message = message.removeprefix("Transaction discarded because of: ")  # after the prefix of a refused EXEC
    return isinstance(error, TRANSIENT_ERRORS) or message.startswith(TRANSIENT_CODES)


def describe(error: Exception) -> str:
    """Return an error of Redis as a sentence for people."""
    text = str(error) or type(error).__name__
    if isinstance(error, OutOfMemoryError):
        return f"Redis is full: {text}"
    refused = isinstance(error, (ResponseError, AuthenticationError))
    return f"Redis {'rejected the command' if refused else 'does not answer'}: {text}"


async def ensure_group(redis: Redis, *streams: str) -> None:
    """Create the streams and their consumer group, unless they exist."""
    for stream in streams:
        try:
            await redis.xgroup_create(stream, GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise


@dataclass(slots=True)
class LeasedCall:
    """A call that was delivered to this worker, which must answer it or let another worker claim it."""

    entry: bytes
    """Id of the entry in the stream."""
    call: QueuedCall
    stream: str

    @property
    def key(self) -> tuple[str, bytes]:
        """Unique key: entries of different streams may have equal ids."""
        return self.stream, self.entry


class Consumer:
    """The worker's side of the queue. Its methods raise RedisError; the worker retries them."""

    def __init__(self, redis: Redis, name: str, keys: QueueKeys) -> None:
        self._redis = redis
        self._keys = keys
        self.name = name
        self.cells = keys.cells(name)
        self.streams = (keys.calls, self.cells)

    async def _in_group(self, action: Callable[[], Awaitable[T]], default: T) -> T:
        """Run a command on the group. If Redis lost its data, create the group again and return `default`."""
        try:
            return await action()
        except ResponseError as error:
            if "NOGROUP" not in str(error):
                raise
            await ensure_group(self._redis, *self.streams)
            return default

    async def pull(self, stream: str, count: int, *, block_ms: int) -> list[LeasedCall]:
        """Lease up to `count` new calls of a stream; wait up to `block_ms` for the first."""

        async def read() -> Any:
            return await self._redis.xreadgroup(GROUP, self.name, {stream: ">"}, count=count, block=block_ms)

        streams = await self._in_group(read, None) or []
        return [lease for _, entries in streams for lease in await self._leases(entries, stream)]

    @staticmethod
    async def _leases(entries: Iterable[tuple[bytes, dict[bytes, bytes]]], stream: str) -> list[LeasedCall]:
        leases = []
        for entry, fields in entries:
            if fields:
                size = sum(map(len, fields.values()))
                leases.append(LeasedCall(entry, await convert(size, QueuedCall.decode, fields), stream))
        return leases

    async def claim(self, count: int) -> tuple[list[LeasedCall], list[LeasedCall]]:
        """Claim calls of workers that stopped to renew: (calls to run, calls that were delivered too often)."""
        return await self._in_group(lambda: self._claim(count), ([], []))

    async def _claim(self, count: int) -> tuple[list[LeasedCall], list[LeasedCall]]:
        idle_ms = int(CLAIM_IDLE_SECONDS * 1000)
        reply: Any = await self._redis.xautoclaim(self._keys.calls, GROUP, self.name, idle_ms, "0-0", count=count)
        leases = await self._leases(reply[1], self._keys.calls)
        if not leases:
            return [], []
        pipe = self._redis.pipeline(transaction=False)
        for lease in leases:
            pipe.xpending_range(self._keys.calls, GROUP, lease.entry, lease.entry, 1)
        deliveries = [pending[0]["times_delivered"] if pending else 1 for pending in await pipe.execute()]
        run = [lease for lease, times in zip(leases, deliveries, strict=True) if times <= MAX_DELIVERIES]
        dead = [lease for lease, times in zip(leases, deliveries, strict=True) if times > MAX_DELIVERIES]
        return run, dead

    async def renew(self, entries: list[bytes]) -> None:
        """Renew the leases of these entries in the stream of calls."""

        async def claim() -> None:
            await self._redis.xclaim(self._keys.calls, GROUP, self.name, 0, cast(Any, entries), justid=True)

        await self._in_group(claim, None)

    async def finish(self, results: list[tuple[LeasedCall, CallResult]], *, dead: bool = False) -> None:
        """Push results, acknowledge and delete their calls in one transaction. `dead`: also add dead letters."""
        pipe = self._redis.pipeline(transaction=True)
        for reply_to in {lease.call.reply_to for lease, _ in results}:
            payloads = [
                await convert(len(result.stdout) + len(result.stderr), encode_result, lease.call.id, result)
                for lease, result in results
                if lease.call.reply_to == reply_to
            ]
            pipe.rpush(reply_to, *payloads)
            pipe.expire(reply_to, RESULT_SECONDS)
        if dead:
            for lease, _ in results:
                pipe.xadd(self._keys.dead, cast(Any, lease.call.encode()), maxlen=DEAD_LETTERS, approximate=True)
        for stream in {lease.stream for lease, _ in results}:
            entries = [lease.entry for lease, _ in results if lease.stream == stream]
            pipe.xack(stream, GROUP, *entries)
            pipe.xdel(stream, *entries)
        await pipe.execute()

    async def delivered_cells(self) -> list[LeasedCall]:
        """Return the cells that Redis delivered to this worker and that have no result in Redis."""

        async def read() -> Any:
            return await self._redis.xreadgroup(GROUP, self.name, {self.cells: "0"}, count=64)

        streams = await self._in_group(read, None) or []
        return [lease for _, entries in streams for lease in await self._leases(entries, self.cells)]

    async def take_session(self, session: str) -> bool:
        """Assign a new session to this worker; return False if it is closed or another worker has it."""
        key = self._keys.session_worker(session)
        if not await self._redis.exists(self._keys.session(session)):
            return False
        if await self._redis.set(key, self.name, nx=True, ex=SESSION_IDLE_SECONDS):
            return True
        return cast(bytes | None, await self._redis.get(key)) == self.name.encode()

    async def update_sessions(self, live: Iterable[str], ended: Iterable[str]) -> None:
        """Set the keys of this worker's live sessions, also after Redis lost them, and delete those of ended ones."""
        pipe = self._redis.pipeline(transaction=False)
        for session in live:
            pipe.set(self._keys.session_worker(session), self.name, ex=SESSION_IDLE_SECONDS)
            pipe.set(self._keys.session(session), "", ex=SESSION_IDLE_SECONDS)
        for session in ended:
            pipe.delete(self._keys.session(session))
        await pipe.execute()

    async def heartbeat(self, report: dict[str, Any]) -> None:
        """Publish that this worker is alive, with its report."""
        pipe = self._redis.pipeline(transaction=False)
        pipe.set(self._keys.worker(self.name), json.dumps(report), ex=HEARTBEAT_LIFE_SECONDS)
        pipe.expire(self.cells, SESSION_IDLE_SECONDS)
        await pipe.execute()

    async def remove_dead_consumers(self) -> None:
        """Remove other workers from the group that have no lease and sent no command for DEAD_SECONDS."""
        await self._in_group(self._remove_dead_consumers, None)

    async def _remove_dead_consumers(self) -> None:
        for consumer in await self._redis.xinfo_consumers(self._keys.calls, GROUP):
            is_dead = consumer["pending"] == 0 and consumer["idle"] > DEAD_SECONDS * 1000
            if is_dead and consumer["name"] != self.name.encode():
                await self._redis.xgroup_delconsumer(self._keys.calls, GROUP, consumer["name"])

    async def leave(self) -> None:
        """Remove this worker, which must have no lease, from the group.

        Its stream of cells expires: a stream that a later cell of its sessions created again would not.
        """
        await self._redis.delete(self._keys.worker(self.name))
        await ensure_group(self._redis, self._keys.calls)
        await self._redis.xgroup_delconsumer(self._keys.calls, GROUP, self.name)


async def convert(size: int, function: Callable[..., T], *arguments: Any) -> T:
    """Return the function's result; for data above INLINE_BYTES it runs in a thread: it takes up to some 10 ms."""
    return function(*arguments) if size <= INLINE_BYTES else await asyncio.to_thread(function, *arguments)


def encode_result(id: str, result: CallResult) -> bytes:
    """Return a call id and its result: a line of JSON, and the outputs, which are no JSON because that is slow."""
    files = [asdict(file) for file in result.files]
    outputs = result.stdout.encode(), result.stderr.encode()
    sizes = [len(output) for output in outputs]
    head = [id, result.status, sizes, result.exit_code, result.run_seconds, result.session_lives, files]
    return b"".join((json.dumps(head).encode(), b"\n", *outputs))


def decode_result(data: bytes) -> tuple[str, CallResult]:
    """Reverse `encode_result`: return the call id and the result."""
    start = data.index(b"\n") + 1
    id, status, (out, err), exit_code, run_seconds, session_lives, files = json.loads(data[:start])
    stdout, stderr = data[start : start + out].decode(), data[start + out : start + out + err].decode()
    returned = [ReturnedFile(**file) for file in files]
    return id, CallResult(status, stdout, stderr, exit_code, 0.0, run_seconds, session_lives, returned)
