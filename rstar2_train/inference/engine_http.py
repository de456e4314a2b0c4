"""Requests to a vLLM server, with the errors of the pool: the base of `client.py` and `openai_client.py`."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from rstar2_train.inference.engine_errors import EngineRejected, EngineUnavailable
from rstar2_train.inference.engine_load import EngineLoad
from rstar2_train.inference.engine_session import EngineSession

_CACHE_INFO = re.compile(r"^vllm:cache_config_info\{(?P<labels>.*)\} ", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
SHORT_SECONDS = 30.0


class EngineHttp:
    """Requests to one server. All servers share one session."""

    def __init__(self, url: str, *, token: str, session: EngineSession) -> None:
        """`token`: bearer token of the server."""
        self.url = url.rstrip("/")
        self.session = session
        self._headers = {"Authorization": f"Bearer {token}"}

    async def healthy(self) -> bool:
        """Return whether the engine reports that it is healthy."""
        try:
            async with self.session.http.get(f"{self.url}/health", timeout=aiohttp.ClientTimeout(total=5)) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def load(self) -> EngineLoad | None:
        """Return the engine's live figures, from `/metrics`; None if it does not report them."""
        return EngineLoad.read(await self.text("/metrics"))

    async def kv_cache_size(self) -> tuple[int, int]:
        """Return the tokens of the KV cache, and the tokens per block."""
        info = _CACHE_INFO.search(await self.text("/metrics"))
        if info is None:
            raise EngineUnavailable(f"{self.url}/metrics has no size of the KV cache")
        labels = dict(_LABEL.findall(info["labels"]))
        block = int(labels["block_size"])
        return int(labels["num_gpu_blocks"]) * block, block

    async def post(self, path: str, body: dict[str, Any], *, seconds: float) -> Any:
        """Return the JSON reply of a POST. Raises EngineUnavailable or EngineRejected."""
        return await self.call("POST", path, body=body, seconds=seconds)

    async def call(self, method: str, path: str, *, seconds: float, body: dict[str, Any] | None = None) -> Any:
        """Return the JSON reply of a request. Raises EngineUnavailable or EngineRejected."""
        async with self.request(method, path, seconds=seconds, json=body) as response:
            return await response.json()

    @asynccontextmanager
    async def request(
        self, method: str, path: str, *, seconds: float, **body: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and pass on its response of status 200. Raises EngineUnavailable or EngineRejected."""
        timeout = aiohttp.ClientTimeout(total=seconds)
        try:
            async with self.session.http.request(
                method, self.url + path, headers=self._headers, timeout=timeout, **body
            ) as response:
                if response.status == 200:
                    yield response
                    return
                failure = self.failure(path, response.status, await response.text())
                if isinstance(failure, EngineUnavailable):
                    failure.retry_after = _seconds(response.headers.get("Retry-After", ""))
                raise failure
        except TimeoutError as error:
            raise EngineUnavailable(f"{self.url}{path} did not respond within {seconds:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineUnavailable(f"{self.url}{path}: {error or type(error).__name__}") from error

    def failure(self, path: str, status: int, text: str) -> EngineUnavailable | EngineRejected:
        """Return the error of a reply whose status is not 200."""
        message = f"{self.url}{path} returned {status}: {text[:500]}"
        if status >= 500 or status in (408, 429):
            return EngineUnavailable(message)
        rejected = EngineRejected(message)
        rejected.status = status
        return rejected

    async def text(self, path: str) -> str:
        """Return the text of a page. Raises EngineUnavailable."""
        timeout = aiohttp.ClientTimeout(total=SHORT_SECONDS)
        try:
            async with self.session.http.get(self.url + path, timeout=timeout) as response:
                return await response.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EngineUnavailable(f"{self.url}{path}: {error or type(error).__name__}") from error


def _seconds(retry_after: str) -> float:
    """Return the seconds of a Retry-After header; 0 for a date or no number."""
    return float(retry_after) if re.fullmatch(r"[0-9]{1,6}", retry_after.strip()) else 0.0
