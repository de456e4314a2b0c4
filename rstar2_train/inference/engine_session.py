"""The HTTP session of all requests of one process to the engines."""

from __future__ import annotations

import aiohttp


def engine_session() -> aiohttp.ClientSession:
    """Return a session without limits: the scheduler limits the requests, and each request has its own deadline.

    Engines set no cookies; a jar would cost a tenth of a request.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(), cookie_jar=aiohttp.DummyCookieJar()
    )
