"""The HTTP session of all requests of one process to the engines."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import aiohttp

from rstar2_train.utils.http_connections import HttpConnections


class EngineSession:
    """Connections without a limit: the scheduler limits the requests, and each request has its own deadline.

    Use as `async with`.
    """

    def __init__(self) -> None:
        # Engines set no cookies.
        self.http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        """For all calls but those that sample."""
        self.turns = HttpConnections()
        """For sampled turns."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        self.turns.close()
        await self.http.close()
