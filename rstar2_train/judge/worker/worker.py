"""The judge worker: leases calls from Redis, runs them in its sandboxes and pushes the results.

Its loops: pull calls up to its capacity, pull cells, push results (all that are ready, in one transaction), renew and
claim leases, send heartbeats. Redis may be unreachable at any time. Another worker claims the calls of a killed one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import signal
import socket
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from rstar2_train.judge.queue import (
    HEARTBEAT_SECONDS,
    MAX_DELIVERIES,
    PREFIX,
    RENEW_SECONDS,
    Consumer,
    LeasedCall,
    QueueKeys,
    connect,
    ensure_group,
    retry_until_done,
)
from rstar2_train.judge.sandbox.oci_bundle import Isolation, huge_pages_active, locked_state, prepare
from rstar2_train.judge.sandbox.rootfs import SetupError, choose_lanes
from rstar2_train.judge.sandbox.wire import read_private_key
from rstar2_train.judge.types import DRAIN_SECONDS, NO_FREE_SLOT, SESSION_IDLE_SECONDS, CallResult
from rstar2_train.judge.worker.cell_dedup import ExecutedCells
from rstar2_train.judge.worker.pool import DEPTH, SandboxPool
from rstar2_train.judge.worker.provider import LocalSandboxProvider, RemoteSandboxProvider, SandboxProvider
from rstar2_train.utils.disk import named_disk
from rstar2_train.utils.files import cache_folder
from rstar2_train.utils.loop_watch import watch_loop

log = logging.getLogger("rstar2.judge.worker")

PREFETCH = 4
"""Calls that a worker leases per sandbox in addition to those in flight: fewer and larger pulls."""
PULL_MS = 1000
"""Time that a pull waits for a call: also the time after which a drained worker stops to pull."""
MAX_CELLS_PER_PULL = 64
MAX_CLAIMS = 64
EXPIRED = "The call expired in the queue: no worker was free before its deadline.\n"
CRASHED = f"The call failed: its worker crashed in {MAX_DELIVERIES} deliveries.\n"
"""stderr of `internal` results."""
ALIVE_SECONDS = 5.0
"""Time between two touches of the file of a probe."""
CLEAN_UP_EVERY = 150
"""Renewals between two removals of dead consumers."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Options of `python -m rstar2_train.judge worker`."""

    redis: str
    isolation: Isolation
    executors: int = 0
    """Number of local sandboxes."""
    executors_at: str = ""
    """HOST:PORT of executor pods, instead of local sandboxes."""
    key_file: Path | None = None
    """The workers' private key (PEM), for executor pods."""
    state: Path | None = None
    """Folder for bundles and the state of runsc; default: a temporary one."""
    platform: str = "systrap"
    prefix: str = PREFIX
    session_idle_seconds: float = SESSION_IDLE_SECONDS
    """Time without a cell after which a session is closed."""
    alive_file: Path | None = None
    """File that is touched while the event loop runs, for a probe."""
    lanes: tuple[str, ...] | None = None
    """Lanes of the sandboxes; None: all whose packages are installed."""


class Worker:
    """One worker process. `run` it; `drain` makes `run` return."""

    def __init__(self, settings: WorkerSettings, redis: Redis, pool: SandboxPool) -> None:
        self.settings = settings
        self.name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._redis = redis
        self._pool = pool
        self._keys = QueueKeys(settings.prefix)
        self._consumer = Consumer(redis, self.name, self._keys)
        self._leases: dict[tuple[str, bytes], LeasedCall] = {}
        """Calls without a result in Redis, by LeasedCall.key."""
        self._results: list[tuple[LeasedCall, CallResult]] = []
        """Results that are not in Redis yet."""
        self._has_results = asyncio.Event()
        self._capacity_changed = asyncio.Event()
        self._draining = asyncio.Event()
        self._answered = 0
        self._cells = ExecutedCells()

    def drain(self) -> None:
        """Lease no further call; `run` returns when all leased calls are answered."""
        self._draining.set()
        self._capacity_changed.set()
        self._pool.supervisor.changed.set()

    async def run(self) -> None:
        """Run calls until drained. Raises PoolError if no sandbox can be started."""
        self._pool.start()
        loops = [asyncio.create_task(loop()) for loop in (self._push_results, self._renew_and_claim, self._heartbeat)]
        if self.settings.alive_file is not None:
            loops.append(asyncio.create_task(_touch(self.settings.alive_file)))
        pulling: asyncio.Future[Any] = asyncio.gather(self._pull(), self._pull_cells())
        try:
            watched: list[asyncio.Future[Any]] = [pulling, *loops, self._pool.supervisor.failed]
            done, _ = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a loop ends only with an error; pulling returns when drained
            await self._finish_leases()
        except RedisConnectionError as error:
            if not self._draining.is_set():
                raise
            log.warning("Drained while Redis was unreachable (%s). Other workers will claim the leased calls.", error)
        finally:
            for loop in (pulling, *loops):
                loop.cancel()
            await asyncio.gather(pulling, *loops, return_exceptions=True)
            await self._pool.stop()

    async def _finish_leases(self) -> None:
        """Wait until all leased calls are answered, then leave the group. Gives up after DRAIN_SECONDS."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while self._leases:
                    self._capacity_changed.clear()
                    await self._capacity_changed.wait()
                await self._consumer.leave()

    async def _pull(self) -> None:
        create = partial(ensure_group, self._redis, *self._consumer.streams)
        await retry_until_done("creating the queue", create, stop=self._draining)
        while not self._draining.is_set():
            capacity = self._pool.ready * (DEPTH + PREFETCH) - len(self._leases)
            if capacity <= 0:
                self._capacity_changed.clear()
                await self._capacity_changed.wait()
                continue
            pull = partial(self._consumer.pull, self._keys.calls, capacity, block_ms=PULL_MS)
            for lease in await retry_until_done("pulling calls", pull, stop=self._draining):
                await self._start(lease)

    async def _pull_cells(self) -> None:
        """Pull cells regardless of capacity: they end the sessions that first cells wait for."""
        while not self._draining.is_set():
            pull = partial(self._consumer.pull, self._consumer.cells, MAX_CELLS_PER_PULL, block_ms=PULL_MS)
            for lease in await retry_until_done("pulling cells", pull, stop=self._draining):
                await self._start(lease)

    async def _start(self, lease: LeasedCall) -> None:
        """Submit a call to the pool, unless its deadline has passed or it is a cell that was started before."""
        if lease.key in self._leases:
            return
        self._leases[lease.key] = lease
        call = lease.call
        if call.id in self._cells:
            result = self._cells.result(call.id)
            if result is not None:  # else `_finish` answers this duplicate too
                self._finish(lease, result)
            return
        if call.deadline < time.time():
            self._finish(lease, CallResult("internal", stderr=EXPIRED))
            return
        if call.in_session:
            self._cells.start(call.id)
        if call.verb == "open" and not await self._reserve_session(lease):
            return
        lane = await self._pool.choose_lane(call)
        self._pool.submit(call, lane).add_done_callback(lambda done: self._finish(lease, done.result()))

    async def _reserve_session(self, lease: LeasedCall) -> bool:
        """Reserve a slot for a new session. If that is impossible, answer its first cell and return False."""
        session = lease.call.session
        if not self._pool.reserve_session(session):
            self._finish(lease, CallResult("internal", stderr=NO_FREE_SLOT))
            return False
        if not await retry_until_done("taking a session", lambda: self._consumer.take_session(session)):
            # It is closed, or was delivered to another worker before, which may have run the cell.
            self._pool.sessions.release(session)
            self._finish(lease, CallResult("session_lost", stderr="the session's worker was lost\n"))
            return False
        return True

    def _finish(self, lease: LeasedCall, result: CallResult) -> None:
        """Queue the result of a call for Redis, and that of duplicates of a cell."""
        self._answered += 1
        id = lease.call.id
        if id in self._cells:
            self._cells.finish(id, result)
            duplicates = [other for other in self._leases.values() if other.call.id == id and other is not lease]
            self._results += [(duplicate, result) for duplicate in duplicates]
        self._results.append((lease, result))
        self._has_results.set()

    async def _push_results(self) -> None:
        """Push all results that are ready, in one transaction at a time."""
        while True:
            await self._has_results.wait()
            self._has_results.clear()
            batch, self._results = self._results, []
            await retry_until_done("pushing results", partial(self._consumer.finish, batch))
            for lease, _ in batch:
                self._leases.pop(lease.key, None)
            self._capacity_changed.set()

    async def _renew_and_claim(self) -> None:
        for number in itertools.count(1):
            await asyncio.sleep(RENEW_SECONDS)
            claimable = [entry for stream, entry in self._leases if stream == self._keys.calls]
            if claimable:
                await retry_until_done("renewing leases", partial(self._consumer.renew, claimable))
            if number % CLEAN_UP_EVERY == 0:
                await retry_until_done("removing dead workers", self._consumer.remove_dead_consumers)
            if not self._draining.is_set() and self._pool.ready:
                run, dead = await retry_until_done("claiming calls", lambda: self._consumer.claim(MAX_CLAIMS))
                cells = await retry_until_done("reading delivered cells", self._consumer.delivered_cells)
                for lease in (*run, *cells):
                    await self._start(lease)
                if dead:
                    log.error(
                        "Moved %d calls to the dead letters: their worker crashed in each of %d deliveries.",
                        len(dead),
                        MAX_DELIVERIES,
                    )
                    failed = CallResult("internal", stderr=CRASHED)
                    results = [(lease, failed) for lease in dead]
                    await retry_until_done("answering dead letters", partial(self._consumer.finish, results, dead=True))

    def report(self) -> dict[str, object]:
        """Return the entry of this worker in the API's /v1/status."""
        return {
            "name": self.name,
            "executors": self._pool.size,
            "ready": self._pool.ready,
            "busy": self._pool.busy,
            "recycled": self._pool.supervisor.recycled,
            "isolation": self.settings.isolation,
            "huge_pages": huge_pages_active(),
            "calls": self._answered,
            "sessions": len(self._pool.sessions),
            "held": len(self._leases),
        }

    async def _heartbeat(self) -> None:
        """Send a heartbeat when a sandbox opens or ends, else every second. Print the ready line once."""
        is_announced, changed = False, self._pool.supervisor.changed
        while True:
            changed.clear()
            await retry_until_done("sending a heartbeat", lambda: self._consumer.heartbeat(self.report()))
            live, ended = set(self._pool.sessions), self._pool.sessions.take_ended()
            if live or ended:
                await retry_until_done("updating sessions", partial(self._consumer.update_sessions, live, ended))
            self._capacity_changed.set()
            if not is_announced and self._pool.size and self._pool.ready == self._pool.size:
                is_announced = True
                print(json.dumps({"event": "ready", "role": "judge-worker", **self.report()}), flush=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await changed.wait()


async def _touch(file: Path) -> None:
    """Touch a file every few seconds."""
    while True:
        os.close(os.open(file, os.O_CREAT | os.O_WRONLY, 0o600))
        os.utime(file)
        await asyncio.sleep(ALIVE_SECONDS)


def _create_provider(settings: WorkerSettings, state: Path) -> SandboxProvider:
    """Return the source of the sandboxes. Raises SetupError."""
    if settings.executors_at:
        if settings.key_file is None:
            raise SetupError("--executors-at requires --key-file, the key with which executors authenticate workers.")
        return RemoteSandboxProvider(
            settings.executors_at,
            key=read_private_key(settings.key_file),
            lanes=choose_lanes(settings.lanes),
            state=state,
            isolated=settings.isolation == "gvisor",
        )
    prepared = prepare(isolation=settings.isolation, state=state, platform=settings.platform, lanes=settings.lanes)
    if settings.isolation == "gvisor" and not huge_pages_active():
        log.info("Huge pages for shared memory are off on this node. Forks in gVisor take 2-3 times as long.")
    return LocalSandboxProvider(prepared, settings.executors)


async def serve(settings: WorkerSettings) -> None:
    """Run a worker until SIGTERM or SIGINT. Raises SetupError or PoolError, with the fix in the message."""
    if settings.isolation == "none":
        print(
            "WARNING: isolation none: the model's code runs UNPROTECTED on this machine.", file=sys.stderr, flush=True
        )
    with contextlib.ExitStack() as cleanup:
        state = settings.state
        if state is None:
            state = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="rstar2-judge-")))
        cleanup.enter_context(named_disk(state))
        cleanup.enter_context(locked_state(state))
        with named_disk(cache_folder()):
            provider = _create_provider(settings, state)
        redis = connect(settings.redis)
        worker = Worker(settings, redis, SandboxPool(provider, session_idle_seconds=settings.session_idle_seconds))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, worker.drain)
        try:
            with watch_loop():
                await worker.run()
        finally:
            await redis.aclose()
