"""The judge worker: takes tasks from Redis, has them run in its sandboxes, answers. The only part that has both.

Loops: pull (as many as there is room for), flush results (whatever is done, in one transaction), renew and claim,
heartbeat. Redis may vanish and come back at any time; a killed worker's tasks go to the next one.
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
    PREFIX,
    RENEW_SECONDS,
    Consumer,
    LeasedCall,
    QueueKeys,
    connect,
    ensure_group,
    until_done,
)
from rstar2_train.judge.sandbox.oci_bundle import Isolation, huge_pages_active, own_state, prepare
from rstar2_train.judge.sandbox.rootfs import SetupError, cache_folder, choose_lanes, named_when_full
from rstar2_train.judge.sandbox.wire import read_private_key
from rstar2_train.judge.types import DRAIN_SECONDS, NO_ROOM, SESSION_IDLE_SECONDS, CallResult
from rstar2_train.judge.worker.cell_dedup import ExecutedCells
from rstar2_train.judge.worker.pool import DEPTH, SandboxPool
from rstar2_train.judge.worker.provider import LocalSandboxProvider, RemoteSandboxProvider, SandboxProvider

log = logging.getLogger("rstar2.judge.worker")

AHEAD = 4
"""Tasks that a worker holds for each sandbox, beyond those written to it: fewer, larger pulls."""
CELLS_AT_ONCE = 64
FORGET_EVERY = 150
"""Rounds of renewing between two looks for workers that died long ago."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What `python -m rstar2_train.judge worker` was told."""

    redis: str
    isolation: Isolation
    executors: int = 0
    """Sandboxes of its own."""
    executors_at: str = ""
    """HOST:PORT of executors in pods, instead of sandboxes of its own."""
    key_file: Path | None = None
    """The key by which they know their workers."""
    state: Path | None = None
    """Folder for bundles and runsc's state; default: a temporary one."""
    platform: str = "systrap"
    prefix: str = PREFIX
    session_idle_seconds: float = SESSION_IDLE_SECONDS
    """A session without a cell for so long is ended."""
    lanes: tuple[str, ...] | None = None
    """Lanes of the sandboxes; None: all whose packages are installed."""


class Worker:
    """One worker process. `run` it; `drain` ends it gently."""

    def __init__(self, settings: WorkerSettings, redis: Redis, pool: SandboxPool) -> None:
        self.settings = settings
        self.name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._redis = redis
        self._pool = pool
        self._names = QueueKeys(settings.prefix)
        self._consumer = Consumer(redis, self.name, self._names)
        self._held: dict[tuple[str, bytes], LeasedCall] = {}
        """By stream and entry: ids of different streams may be the same."""
        self._done: list[tuple[LeasedCall, CallResult]] = []
        self._some_done = asyncio.Event()
        self._room = asyncio.Event()
        self._draining = asyncio.Event()
        self._calls = 0
        self._cells = ExecutedCells()

    def drain(self) -> None:
        """Takes no further task; `run` returns when those it holds are answered."""
        self._draining.set()
        self._room.set()
        self._pool.changed.set()

    async def run(self) -> None:
        """Works until drained. Raises PoolError when no sandbox can be started."""
        self._pool.start()
        loops = [asyncio.create_task(loop()) for loop in (self._flush, self._renew_and_claim, self._heartbeat)]
        pulling: asyncio.Future[Any] = asyncio.gather(self._pull(), self._pull_cells())
        try:
            everything: list[asyncio.Future[Any]] = [pulling, *loops, self._pool.failed]
            done, _ = await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a loop ends only by an error; pulling ends when drained
            await self._finish_up()
        except RedisConnectionError as error:
            if not self._draining.is_set():
                raise
            log.warning("drained while Redis was away (%s); what this worker held goes to another one", error)
        finally:
            for loop in (pulling, *loops):
                loop.cancel()
            await asyncio.gather(pulling, *loops, return_exceptions=True)
            await self._pool.stop()

    async def _finish_up(self) -> None:
        """The drained worker's last steps: wait for what it holds, answer, take its name off."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while self._held:
                    self._room.clear()
                    await self._room.wait()
                await self._consumer.leave()

    async def _pull(self) -> None:
        make = partial(ensure_group, self._redis, *self._consumer.streams)
        await until_done("making the queue", make, stop=self._draining)
        while not self._draining.is_set():
            room = self._pool.ready * (DEPTH + AHEAD) - len(self._held)
            if room <= 0:
                self._room.clear()
                await self._room.wait()
                continue
            pull = partial(self._consumer.pull, self._names.tasks, room, block_ms=500)
            for held in await until_done("pulling", pull, stop=self._draining):
                await self._take(held)

    async def _pull_cells(self) -> None:
        """Cells come in whatever else is waiting: they free what openings wait for."""
        while not self._draining.is_set():
            pull = partial(self._consumer.pull, self._consumer.cells, CELLS_AT_ONCE, block_ms=500)
            for held in await until_done("pulling cells", pull, stop=self._draining):
                await self._take(held)

    async def _take(self, held: LeasedCall) -> None:
        """Begins a task, unless nobody waits for it any more, or it is a cell that has begun once already."""
        if held.key in self._held:
            return
        self._held[held.key] = held
        task = held.task
        if task.id in self._cells:
            known = self._cells.answer(task.id)
            if known is not None:  # else it is answered with its twin
                self._finished(held, known)
            return
        if task.deadline < time.time():
            self._finished(held, CallResult("internal", stderr="nobody ran the call before its deadline\n"))
            return
        if task.verb != "call":
            self._cells.begin(task.id)
        if task.verb == "open" and not await self._may_open(held):
            return
        self._pool.submit(task).add_done_callback(lambda done: self._finished(held, done.result()))

    async def _may_open(self, held: LeasedCall) -> bool:
        """Whether a session can begin here; else its first cell is answered."""
        session = held.task.session
        if not self._pool.reserve(session):
            self._finished(held, CallResult("internal", stderr=NO_ROOM))
            return False
        if not await until_done("taking a session", lambda: self._consumer.take_session(session)):
            self._pool.release(session)  # it was given to another worker before, and may have run there; or was closed
            self._finished(held, CallResult("session_lost", stderr="the session's worker was lost\n"))
            return False
        return True

    def _finished(self, held: LeasedCall, result: CallResult) -> None:
        self._calls += 1
        if held.task.id in self._cells:
            self._cells.end(held.task.id, result)
            twins = [one for one in self._held.values() if one.task.id == held.task.id and one is not held]
            self._done += [(twin, result) for twin in twins]
        self._done.append((held, result))
        self._some_done.set()

    async def _flush(self) -> None:
        """Answers whatever is done, in one transaction a time."""
        while True:
            await self._some_done.wait()
            self._some_done.clear()
            batch, self._done = self._done, []
            await until_done("answering", partial(self._consumer.finish, batch))
            for held, _ in batch:
                self._held.pop(held.key, None)
            self._room.set()

    async def _renew_and_claim(self) -> None:
        for round_ in itertools.count(1):
            await asyncio.sleep(RENEW_SECONDS)
            shared = [entry for stream, entry in self._held if stream == self._names.tasks]
            if shared:
                await until_done("renewing", partial(self._consumer.renew, shared))
            if round_ % FORGET_EVERY == 0:
                await until_done("forgetting dead workers", self._consumer.forget_the_dead)
            if not self._draining.is_set() and self._pool.ready:
                run, dead = await until_done("claiming", lambda: self._consumer.claim(64))
                cells = await until_done("looking for cells", self._consumer.delivered_cells)
                for held in (*run, *cells):
                    await self._take(held)
                if dead:
                    log.error("%d tasks were delivered too often: dead letters", len(dead))
                    why = CallResult("internal", stderr="the call was given up: its workers died again and again\n")
                    answers = [(held, why) for held in dead]
                    await until_done("giving up", partial(self._consumer.finish, answers, dead=True))

    def report(self) -> dict[str, object]:
        """What the API's /v1/status tells about this worker."""
        return {
            "name": self.name,
            "executors": self._pool.size,
            "ready": self._pool.ready,
            "busy": self._pool.busy,
            "recycled": self._pool.recycled,
            "isolation": self.settings.isolation,
            "hugePages": huge_pages_active(),
            "calls": self._calls,
            "sessions": len(self._pool.sessions),
            "held": len(self._held),
        }

    async def _heartbeat(self) -> None:
        """Tells Redis at once when a sandbox comes or goes, else every second; prints the ready line once."""
        said = False
        while True:
            self._pool.changed.clear()
            await until_done("heartbeat", lambda: self._consumer.heartbeat(self.report()))
            living, ended = set(self._pool.sessions), self._pool.take_ended()
            if living or ended:
                await until_done("sessions", partial(self._consumer.keep_sessions, living, ended))
            self._room.set()
            if not said and self._pool.size and self._pool.ready == self._pool.size:
                said = True
                print(json.dumps({"event": "ready", "role": "judge-worker", **self.report()}), flush=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await self._pool.changed.wait()


def _supply(settings: WorkerSettings, state: Path) -> SandboxProvider:
    """Where the sandboxes come from. Raises SetupError."""
    if settings.executors_at:
        if settings.key_file is None:
            raise SetupError("--executors-at needs --key-file: executors serve whoever holds the workers' key")
        return RemoteSandboxProvider(
            settings.executors_at,
            key=read_private_key(settings.key_file),
            lanes=choose_lanes(settings.lanes),
            state=state,
            walled=settings.isolation == "gvisor",
        )
    shared = prepare(isolation=settings.isolation, state=state, platform=settings.platform, lanes=settings.lanes)
    if settings.isolation == "gvisor" and not huge_pages_active():
        log.info("huge pages for shared memory are off on this node: all is correct, but a fork costs 2-3 times more")
    return LocalSandboxProvider(shared, settings.executors)


async def serve(settings: WorkerSettings) -> None:
    """Runs a worker until SIGTERM or SIGINT. Raises SetupError or PoolError with what to do."""
    if settings.isolation == "none":
        print("WARNING: isolation none: the model's code runs on this machine unprotected", file=sys.stderr, flush=True)
    with contextlib.ExitStack() as cleanup:
        state = settings.state
        if state is None:
            state = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="rstar2-judge-")))
        cleanup.enter_context(named_when_full(state))
        cleanup.enter_context(own_state(state))
        with named_when_full(cache_folder()):
            supply = _supply(settings, state)
        redis = connect(settings.redis)
        worker = Worker(settings, redis, SandboxPool(supply, session_idle_seconds=settings.session_idle_seconds))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, worker.drain)
        try:
            await worker.run()
        finally:
            await redis.aclose()
