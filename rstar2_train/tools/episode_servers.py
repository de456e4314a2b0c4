"""The servers of an environment: which of them gets the next episode.

Shared by all rollouts of a stage. A server that fails is avoided for a while, so that a lost episode is retried at
another one; a full server is asked again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence

from rstar2_train.api.tasks import EnvironmentSpec
from rstar2_train.tools.mcp_session import ServerLost
from rstar2_train.tools.openenv import Connection, ServerFull
from rstar2_train.utils.dns import resolve_addresses

PATIENCE_SECONDS = 180.0
"""Time without any reachable server after which an episode is lost. A server's imports take up to a minute."""
AVOID_SECONDS = 10.0
"""How long other servers are preferred after a failure."""
POLL_SECONDS = 1.0
LOOKUP_SECONDS = 2.0
"""How long the addresses of a Service are used."""


class EpisodeServers:
    """The servers of one environment, with their free episodes."""

    def __init__(self, spec: EnvironmentSpec, services: Sequence[str]) -> None:
        """`services`: `HOST:PORT` of servers or of headless Services, unless `spec.url` is set."""
        self.spec = spec
        self._services = services
        self._busy: Counter[str] = Counter()
        self._avoid_until: dict[str, float] = {}
        self._freed = asyncio.Condition()
        self._urls: list[str] = []
        self._urls_until = 0.0

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[Connection]:
        """Wait for a free server and yield a new connection to it, which no step has used. Raises ServerLost."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            urls = await self.urls()
            url = self._choose(urls)
            if url is None:
                if urls:
                    deadline = time.monotonic() + PATIENCE_SECONDS  # only busy: waiting is no failure
                elif time.monotonic() > deadline:
                    raise ServerLost(f"environment {self.spec.name} has no server")
                await self._wait()
                continue
            self._busy[url] += 1
            try:
                connection = Connection(url, seconds=self.spec.step_timeout_seconds, tool_errors=self.spec.tool_errors)
                try:
                    await connection.__aenter__()
                except ServerLost:
                    self._avoid_until[url] = time.monotonic() + AVOID_SECONDS
                    if time.monotonic() > deadline:
                        raise
                    await asyncio.sleep(POLL_SECONDS)
                    continue
                async with _entered(connection):
                    try:
                        yield connection
                    except (ServerLost, ServerFull):
                        self._avoid_until[url] = time.monotonic() + AVOID_SECONDS
                        raise
                return
            finally:
                self._busy[url] -= 1
                async with self._freed:
                    self._freed.notify()

    async def urls(self) -> list[str]:
        """Return the base URLs of the servers."""
        if self.spec.url is not None:
            return [self.spec.url]
        if time.monotonic() >= self._urls_until:
            self._urls_until = time.monotonic() + LOOKUP_SECONDS
            groups = [await resolve_addresses(service) for service in self._services]
            self._urls = sorted(f"http://{address}" for group in groups for address in group or ())
        return self._urls

    def _choose(self, urls: Sequence[str]) -> str | None:
        """Return the least busy server, those that failed lately last; None if all are busy."""
        now = time.monotonic()
        free = [url for url in urls if self._busy[url] < self.spec.max_concurrent_episodes]
        return min(free, key=lambda url: (self._avoid_until.get(url, 0.0) > now, self._busy[url]), default=None)

    async def _wait(self) -> None:
        """Wait until an episode ends, at most POLL_SECONDS."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS), self._freed:
                await self._freed.wait()


@contextlib.asynccontextmanager
async def _entered(connection: Connection) -> AsyncIterator[None]:
    """Leave a connection that was entered by hand."""
    try:
        yield
    except BaseException as error:
        await connection.__aexit__(type(error), error, None)
        raise
    await connection.__aexit__(None, None, None)
