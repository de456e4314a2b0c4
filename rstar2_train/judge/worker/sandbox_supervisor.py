"""Keeps one sandbox running per location: starts it, checks its isolation, replaces it when it ends.

Locations come from the `provider`: indexes of local sandboxes or addresses of executors. `pool` is called back when a
lane may take calls and when a sandbox ends; it decides which call runs where.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from rstar2_train.judge.sandbox.base import IsolationCheckFailed, Lane, Sandbox, SandboxBusy, SandboxError
from rstar2_train.judge.sandbox.rootfs import SetupError
from rstar2_train.judge.worker.isolation_check import IsolationCheck
from rstar2_train.judge.worker.provider import SandboxProvider

log = logging.getLogger("rstar2.judge.pool")

START_TRIES = 3
"""Failed starts of a local sandbox before the worker gives up, if no sandbox ever opened."""
BUSY_SECONDS = 2.0
"""Delay before the next try to get an executor that serves another worker."""
MAX_BACKOFF_SECONDS = 10.0


class PoolError(SetupError):
    """No sandbox could be started; the message contains the output of runsc."""


class SandboxSupervisor:
    """The sandboxes of a worker. `start` it, then `stop` it."""

    def __init__(
        self,
        provider: SandboxProvider,
        *,
        on_open: Callable[[Sandbox], None],
        on_end: Callable[[Sandbox], None],
    ) -> None:
        """`on_open`: called when a lane of a sandbox may take calls. `on_end`: called when a sandbox has ended."""
        self.sandboxes: list[Sandbox] = []
        """Sandboxes that take calls."""
        self.opened = 0
        """Sandboxes that ever took calls."""
        self.recycled = 0
        """Those of them that ended and were replaced."""
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails with PoolError when no sandbox can be started."""
        self.changed = asyncio.Event()
        """Set when a sandbox starts or stops to take calls, and when the locations change."""
        self._provider = provider
        self._on_open = on_open
        self._on_end = on_end
        self._started: set[Sandbox] = set()
        self._locations: frozenset[str] = frozenset()
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._following: asyncio.Task[None] | None = None
        self._isolation_check = IsolationCheck(provider.state)

    @property
    def size(self) -> int:
        """Number of locations."""
        return len(self._locations)

    def start(self) -> None:
        """Start the sandboxes in the background."""
        self._isolation_check.__enter__()
        self._following = asyncio.create_task(self._follow_locations())

    async def stop(self) -> None:
        """Kill all sandboxes."""
        tasks = [*self._keepers.values(), *([self._following] if self._following else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(sandbox.stop() for sandbox in self._started))
        self._isolation_check.__exit__(None, None, None)

    async def _follow_locations(self) -> None:
        """Start a task per new location. The task of a removed location returns when its sandbox ends."""
        async for locations in self._provider.locations():
            self._locations = locations
            for location in locations - self._keepers.keys():
                self._keepers[location] = asyncio.create_task(self._keep_running(location))
            self.changed.set()

    async def _keep_running(self, location: str) -> None:
        """Run sandboxes at a location, one after the other, until the location is removed."""
        failures = 0
        while location in self._locations:
            sandbox = self._provider.create(location)
            self._started.add(sandbox)
            failed_check, delay = False, 0.0
            try:
                await sandbox.start()
                await self._attend(sandbox)
            except SandboxBusy:
                delay = BUSY_SECONDS
            except (SandboxError, OSError, ValueError) as error:  # OSError, ValueError: this machine cannot start it
                failures = 0 if sandbox in self.sandboxes else failures + 1
                failed_check = isinstance(error, IsolationCheckFailed)
                delay = min(MAX_BACKOFF_SECONDS, 0.25 * 2**failures) if failures else 0.0
                log.error("Replacing sandbox %s: %s", sandbox.id, error)
                hopeless = failures >= START_TRIES and not self.opened and not self._provider.retries_forever
                if hopeless and not self.failed.done():
                    self.failed.set_exception(PoolError(f"No sandbox could be started on this machine: {error}"))
            finally:
                if sandbox in self.sandboxes:
                    self.sandboxes.remove(sandbox)
                    self.recycled += 1
                self._on_end(sandbox)
                await sandbox.stop(failed_check=failed_check)
                self._started.discard(sandbox)
                self.changed.set()
            await asyncio.sleep(delay)
        del self._keepers[location]

    async def _attend(self, sandbox: Sandbox) -> None:
        """Open each lane when it is warmed up and passes the isolation check. Raises SandboxError when it ends."""
        while True:
            sandbox.changed.clear()
            if sandbox.dead.is_set():
                raise SandboxError(f"The sandbox ended. {sandbox.diagnostics()}")
            for lane in sandbox.lanes.values():
                if lane.ready and not lane.admitted:
                    await self._isolation_check.check(sandbox, lane.name)
                    self._open(sandbox, lane)
            await sandbox.changed.wait()

    def _open(self, sandbox: Sandbox, lane: Lane) -> None:
        lane.admitted = True
        if sandbox not in self.sandboxes:
            self.sandboxes.append(sandbox)
            self.opened += 1
        log.info("Sandbox %s: opened lane %s after %.1f s.", sandbox.id, lane.name, time.monotonic() - sandbox.started)
        self.changed.set()
        self._on_open(sandbox)
