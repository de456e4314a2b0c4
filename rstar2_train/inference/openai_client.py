"""A model that somebody else serves: any vLLM server with OpenAI's routes, by the name that it serves the model under.

Beside `client.py`, whose engines are ours and take weights; a pool (`pool.py`) holds either kind. Here the weights
are what they are: the name stands for their version. Used by `rstar2 eval --endpoint`. Token ids go in and come out
(`return_token_ids`), so that a trajectory is the same, to the token, as from an engine of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from rstar2_train.inference.client import (
    EngineClient,
    EngineLimits,
    EngineRejected,
    EngineUnavailable,
    Generation,
    checked_generation,
)

_SHORT_SECONDS = 30.0
UNKNOWN_KV_TOKENS = 2**40
"""Where a server does not tell the size of its KV cache, admission goes by the number of trajectories alone."""

NOTHING_ADDED = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""What a vLLM server would otherwise take for itself from the model's generation_config.json."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model of an endpoint, from `/v1/models`."""

    name: str
    root: str
    """What the server loaded: a folder, often on another machine, or a name of a hub."""
    max_model_len: int
    """Tokens of the longest sequence."""


async def served_models(url: str, *, token: str) -> list[ServedModel]:
    """The models that the server at `url` offers.

    Raises EngineUnavailable when nobody answers, EngineRejected when the token is refused or it is no vLLM server.
    """
    async with aiohttp.ClientSession() as session:
        return await _Models(url, token=token, session=session).all()


class _Models(EngineClient):
    """Reads `/v1/models`."""

    async def all(self) -> list[ServedModel]:
        reply = await self._call("GET", "/v1/models", seconds=_SHORT_SECONDS)
        try:
            return [ServedModel(one["id"], one.get("root") or "", int(one["max_model_len"])) for one in reply["data"]]
        except (KeyError, TypeError, AttributeError) as error:
            raise EngineRejected(
                f"{self.url}/v1/models does not tell max_model_len: a vLLM server is needed, which takes and returns "
                "token ids"
            ) from error


class OpenAIClient(_Models):
    """One server; a pool's client in place of `EngineClient`."""

    def __init__(self, url: str, *, token: str, session: aiohttp.ClientSession, model: str) -> None:
        """`model`: the name that it is served under."""
        super().__init__(url, token=token, session=session)
        self._model = model

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
        """Sample as `EngineClient.generate` does. What the server would add to the sampling is set to nothing."""
        body = {
            "model": self._model,
            "prompt": list(prompt_ids),
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_p": top_p,
            **NOTHING_ADDED,
            "seed": seed,
            "stop_token_ids": list(stop_ids),
            "logprobs": 0,
            "return_token_ids": True,
        }
        reply = await self._post("/v1/completions", body, seconds=60 + max_tokens / 5)
        if not reply.get("choices"):
            raise EngineRejected(f"{self.url} does not answer /v1/completions as vLLM does")
        choice: dict[str, Any] = reply["choices"][0]
        token_ids = choice.get("token_ids")
        if token_ids is None:
            raise EngineRejected(f"{self.url} does not return token ids: vLLM 0.10.2 or newer is needed")
        fields = {
            "token_ids": token_ids,
            "logprobs": choice["logprobs"]["token_logprobs"],
            "finish_reason": choice["finish_reason"],
            "weight_versions": [self._model],
        }
        return checked_generation(fields, url=self.url)

    async def limits(self) -> EngineLimits:
        """Sizes; the KV cache's only where the server has vLLM's metrics."""
        longest = (await self._served()).max_model_len
        try:
            return EngineLimits(longest, *await self._cache())
        except EngineUnavailable:
            return EngineLimits(longest, UNKNOWN_KV_TOKENS, 1)

    async def weight_version(self) -> str:
        """The model's name. Raises EngineUnavailable while the server does not serve it."""
        return (await self._served()).name

    async def load_weights(self, folder: Path, version: str, *, seconds: float) -> None:
        """Nothing is loaded. Raises EngineUnavailable while the server does not serve the model."""
        await self._served()

    async def _served(self) -> ServedModel:
        models = await self.all()
        for one in models:
            if one.name == self._model:
                return one
        raise EngineUnavailable(f"{self.url} serves {', '.join(one.name for one in models)}, not {self._model!r}")
