"""An HTTP client for the MCP SDK that stops reading a response at limits: of bytes, and of values (`message_limit`).

Used by mcp_session.py.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping

import httpx2

from rstar2_train.tools.message_limit import MessageLimit

logging.getLogger("httpx2").setLevel(logging.WARNING)  # it logs each request

TIMEOUT = httpx2.Timeout(10, read=600)
"""Seconds per operation; the session has its own deadline for a whole call."""


def bounded_client(headers: Mapping[str, str], *, max_bytes: int) -> httpx2.AsyncClient:
    """Return a client whose responses fail with ReadError above `max_bytes`. It ignores proxies and redirects."""
    transport = _BoundedTransport(httpx2.AsyncHTTPTransport(), max_bytes)
    return httpx2.AsyncClient(transport=transport, headers=dict(headers), timeout=TIMEOUT, trust_env=False)


class _BoundedTransport(httpx2.AsyncBaseTransport):
    def __init__(self, inner: httpx2.AsyncHTTPTransport, max_bytes: int) -> None:
        self._inner = inner
        self._max_bytes = max_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _BoundedStream(response.stream, self._max_bytes, request)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, max_bytes: int, request: httpx2.Request) -> None:
        self._stream = stream
        self._max_bytes = max_bytes
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        seen, limit = 0, MessageLimit()
        async for part in self._stream:
            seen += len(part)
            if seen > self._max_bytes:
                raise httpx2.ReadError(f"response longer than {self._max_bytes} bytes", request=self._request)
            try:
                limit.count(part)
            except ValueError as error:
                raise httpx2.ReadError(str(error), request=self._request) from None
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()
