"""HTTP client of a vLLM server with OpenAI's routes that another operator runs.

A pool (`pool.py`) takes it in place of `EngineClient`, see `engine_protocols.py`. The server's weights are fixed: the
served model name is their version. Used by `rstar2 eval --endpoint`. The client sends and receives token ids
(`return_token_ids`), so that a trajectory has the same tokens as from the project's own engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2_train.inference.engine_errors import EngineRejected, EngineUnavailable
from rstar2_train.inference.engine_http import SHORT_SECONDS, EngineHttp
from rstar2_train.inference.engine_protocols import EngineLimits
from rstar2_train.inference.engine_session import EngineSession
from rstar2_train.inference.sampled_turn import SampledTurn
from rstar2_train.inference.turn_wire import TurnPart

UNKNOWN_KV_TOKENS = 2**40
"""KV cache of a server that does not report its size: only the number of trajectories limits admission."""

NOTHING_ADDED = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""Overrides the sampling defaults that a vLLM server reads from the model's generation_config.json."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model of an endpoint, from `/v1/models`."""

    name: str
    root: str
    """Source that the server loaded: a folder, often on another machine, or a Hub name."""
    max_model_len: int
    """Tokens of the longest sequence."""


async def served_models(url: str, *, token: str) -> list[ServedModel]:
    """Return the models that the server at `url` offers.

    Raises EngineUnavailable when the server is unreachable, EngineRejected when it rejects the token or is not vLLM.
    """
    async with EngineSession() as session:
        return await ModelList(url, token=token, session=session).models()


class ModelList(EngineHttp):
    """Reads `/v1/models`."""

    async def models(self) -> list[ServedModel]:
        reply = await self.call("GET", "/v1/models", seconds=SHORT_SECONDS)
        try:
            return [ServedModel(row["id"], row.get("root") or "", int(row["max_model_len"])) for row in reply["data"]]
        except (KeyError, TypeError, AttributeError) as error:
            raise EngineRejected(
                f"{self.url}/v1/models does not report max_model_len: use a vLLM server, which accepts and returns "
                "token ids"
            ) from error


class OpenAIClient(ModelList):
    """The client of one server; replaces `EngineClient` in a pool."""

    def __init__(self, url: str, *, token: str, session: EngineSession, model: str) -> None:
        """`model`: the served model name."""
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
        turn: SampledTurn | None = None,
    ) -> SampledTurn:
        """Sample as `EngineClient.generate` does, without the server's own sampling defaults, in one part."""
        turn = turn or SampledTurn()
        turn.resume()
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
        reply = await self.post("/v1/completions", body, seconds=60 + max_tokens / 5)
        if not reply.get("choices"):
            raise EngineRejected(f"{self.url}/v1/completions returned no choices: use a vLLM server")
        choice: dict[str, Any] = reply["choices"][0]
        token_ids = choice.get("token_ids")
        if token_ids is None:
            raise EngineRejected(f"{self.url} does not return token ids: use vLLM 0.10.2 or newer")
        part = TurnPart(token_ids, choice["logprobs"]["token_logprobs"], [(self._model, 0)], choice["finish_reason"])
        turn.add(part, url=self.url)
        return turn.whole()

    async def limits(self) -> EngineLimits:
        """Return the server's capacity; the KV cache is unknown if the server has no vLLM metrics."""
        longest = (await self._served_model()).max_model_len
        try:
            return EngineLimits(longest, *await self.kv_cache_size())
        except EngineUnavailable:
            return EngineLimits(longest, UNKNOWN_KV_TOKENS, 1)

    async def weight_version(self) -> str:
        """Return the model's name. Raises EngineUnavailable while the server does not serve it."""
        return (await self._served_model()).name

    async def load_weights(self, folder: Path, version: str, *, seconds: float, keep_requests: bool = False) -> None:
        """Check that the server serves the model; load nothing. Raises EngineUnavailable if it does not."""
        await self._served_model()

    async def release(self) -> None:
        """Do nothing: a server of another project holds no requests."""

    async def _served_model(self) -> ServedModel:
        models = await self.models()
        for model in models:
            if model.name == self._model:
                return model
        names = ", ".join(model.name for model in models)
        raise EngineUnavailable(f"{self.url} serves {names}, not {self._model!r}")
