"""Talks to one vLLM engine over HTTP: token ids in; sampled ids, their log-probs and the weight version out.

Below the pool (`pool.py`), which says which engine to use. Sampling goes through our own route in the engine
(`generate_route.py`), everything else through vLLM's. Cancelling a request closes its connection, and the engine then
stops working on it.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import aiohttp

_CACHE_INFO = re.compile(r"^vllm:cache_config_info\{(?P<labels>.*)\} ", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_SHORT_SECONDS = 30.0
LOADING = "loading"
"""Weight version of an engine while its weights are being exchanged, and after an exchange that failed."""


class EngineUnavailable(Exception):
    """The engine cannot be used now: unreachable, dying, restarting, too slow, or with other weights than asked."""


class EngineRejected(Exception):
    """The engine is well and refuses the request: repeating it will not help."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One sampled turn."""

    token_ids: list[int]
    """Sampled ids, the stop token included."""
    logprobs: list[float]
    """Log-probability of each under the sampling policy (after temperature and top-p)."""
    finish_reason: Literal["stop", "length"]
    weight_version: str
    """Version of the weights that sampled all of them."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What one engine can hold."""

    max_model_len: int
    """Tokens of one sequence, prompt and response together."""
    kv_tokens: int
    """Tokens of KV cache, of all sequences together."""
    block_tokens: int
    """KV cache is given out in blocks of so many tokens."""


class EngineClient:
    """One engine. The session is shared by all engines and made once."""

    def __init__(self, url: str, *, token: str, session: aiohttp.ClientSession) -> None:
        self.url = url.rstrip("/")
        self._session = session
        self._headers = {"Authorization": f"Bearer {token}"}

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        max_tokens: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop_ids: Sequence[int] = (),
    ) -> Generation:
        """Sample at most `max_tokens` after `prompt_ids`, ending with one of `stop_ids`.

        Raises EngineUnavailable when it cannot be done here and now, EngineRejected when the request is at fault.
        """
        body = {
            "token_ids": list(prompt_ids),
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "seed": seed,
            "stop_token_ids": list(stop_ids),
        }
        reply = await self._post("/rstar2/generate", body, seconds=60 + max_tokens / 5)
        return checked_generation(reply, url=self.url)

    async def healthy(self) -> bool:
        """Whether the engine says that it is up."""
        try:
            async with self._session.get(f"{self.url}/health", timeout=aiohttp.ClientTimeout(total=5)) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def limits(self) -> EngineLimits:
        """Sizes, from `/v1/models` and `/metrics`."""
        models = await self._call("GET", "/v1/models", seconds=_SHORT_SECONDS)
        return EngineLimits(int(models["data"][0]["max_model_len"]), *await self._cache())

    async def weight_version(self) -> str:
        """The version that the engine itself reports; `default` for the weights it booted with."""
        reply = await self._call("GET", "/weight_info", seconds=_SHORT_SECONDS)
        return str(reply["weight_version"])

    async def load_weights(self, folder: Path, version: str, *, seconds: float) -> None:
        """Exchange the weights for those in `folder` (an absolute path that the engine sees too), as `version`.

        Requests in flight are aborted, the prefix cache is emptied, and the version is asked back at the end. While
        it lasts, and if it fails midway, the engine calls its weights `loading`. Raises EngineRejected when the
        folder does not hold this model (the old weights stay), EngineUnavailable when the engine fails or is late.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._call("POST", "/pause?mode=abort", seconds=seconds)
                loaded = await self._exchange(folder, version, seconds=seconds)
                await self._call("POST", "/resume", seconds=_SHORT_SECONDS)
                confirmed = await self.weight_version()
        except TimeoutError as error:
            raise EngineUnavailable(f"{self.url} did not load version {version!r} within {seconds:g} s") from error
        if not loaded["ok"]:
            raise EngineRejected(f"{self.url} refuses the weights of version {version!r}: {loaded['why']}")
        if confirmed != version:
            raise EngineUnavailable(f"{self.url} confirms version {confirmed!r} in place of {version!r}")

    async def _cache(self) -> tuple[int, int]:
        """Tokens of the KV cache, and of one of its blocks."""
        info = _CACHE_INFO.search(await self._text("/metrics"))
        if info is None:
            raise EngineUnavailable(f"{self.url}/metrics does not tell the size of the KV cache")
        labels = dict(_LABEL.findall(info["labels"]))
        block = int(labels["block_size"])
        return int(labels["num_gpu_blocks"]) * block, block

    async def _exchange(self, folder: Path, version: str, *, seconds: float) -> dict[str, Any]:
        before = await self.weight_version()
        await self._post("/update_weight_version", {"new_version": LOADING}, seconds=_SHORT_SECONDS)
        body = {"method": "rstar2_load", "args": [str(folder)]}
        results = (await self._post("/collective_rpc", body, seconds=seconds))["results"]
        refused = [result for result in results if not result["ok"]]
        if refused:
            # With several workers one may have refused and another loaded: only unanimity keeps the old version.
            if len(refused) == len(results):
                await self._post("/update_weight_version", {"new_version": before}, seconds=_SHORT_SECONDS)
            return dict(refused[0])
        reset = await self._call("POST", "/reset_prefix_cache?reset_running_requests=true", seconds=_SHORT_SECONDS)
        if not reset["success"]:
            raise EngineUnavailable(f"{self.url} could not empty its prefix cache")
        await self._post("/update_weight_version", {"new_version": version}, seconds=_SHORT_SECONDS)
        return {"ok": True}

    async def _post(self, path: str, body: dict[str, Any], *, seconds: float) -> Any:
        return await self._call("POST", path, body=body, seconds=seconds)

    async def _call(self, method: str, path: str, *, seconds: float, body: dict[str, Any] | None = None) -> Any:
        timeout = aiohttp.ClientTimeout(total=seconds)
        try:
            async with self._session.request(
                method, self.url + path, json=body, headers=self._headers, timeout=timeout
            ) as response:
                if response.status == 200:
                    return await response.json()
                text = (await response.text())[:500]
                if response.status < 500 and response.status not in (408, 429):
                    raise EngineRejected(f"{self.url}{path} answers {response.status}: {text}")
                raise EngineUnavailable(f"{self.url}{path} answers {response.status}: {text}")
        except TimeoutError as error:
            raise EngineUnavailable(f"{self.url}{path} did not answer within {seconds:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineUnavailable(f"{self.url}{path}: {error or type(error).__name__}") from error

    async def _text(self, path: str) -> str:
        timeout = aiohttp.ClientTimeout(total=_SHORT_SECONDS)
        try:
            async with self._session.get(self.url + path, timeout=timeout) as response:
                return await response.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EngineUnavailable(f"{self.url}{path}: {error or type(error).__name__}") from error


def checked_generation(reply: dict[str, Any], *, url: str) -> Generation:
    """A reply of the engine at `url` as a turn. Raises EngineUnavailable or EngineRejected for one that is none."""
    reason = reply["finish_reason"]
    if reason not in ("stop", "length"):
        raise EngineUnavailable(f"{url} ended a request with {reason!r}")
    token_ids: list[int] = reply["token_ids"]
    logprobs: list[float] = reply["logprobs"]
    versions = sorted(set(reply["weight_versions"]))
    if len(versions) != 1:
        raise EngineUnavailable(f"{url} changed its weights within a request: {versions}")
    if len(logprobs) != len(token_ids):
        raise EngineUnavailable(f"{url} sent {len(logprobs)} log-probs for {len(token_ids)} tokens")
    if math.isnan(sum(logprobs)):
        raise EngineRejected(f"{url} sends log-probs that are not numbers: the weights {versions[0]!r} are broken")
    return Generation(token_ids, logprobs, reason, versions[0])
