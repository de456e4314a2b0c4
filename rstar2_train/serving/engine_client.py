"""Client of the engine for the server: streams the turns of the agent loop, and forwards requests with client tools.

Used by the loop (completion.py) and the endpoint (app.py). Training rollouts use inference/client.py, which does not
stream and returns log-probabilities. To cancel a request closes its connection, which aborts it in the engine.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from rstar2_train.api.stages import Sampling
from rstar2_train.inference.openai_client import NOTHING_ADDED
from rstar2_train.inference.sampled_turn import SampledTurn
from rstar2_train.rollout.seeds import derive_seed
from rstar2_train.utils.api_error import ApiError
from rstar2_train.utils.json_steps import MAX_ITEMS, dump_json, load_json

SILENT_SECONDS = 600.0
"""Time without data after which an engine counts as lost. A full engine keeps a request waiting."""
DONE = "[DONE]"


class StreamingEngine:
    """Client of the engine's OpenAI endpoints."""

    def __init__(self, url: str, *, token: str, model: str, session: aiohttp.ClientSession) -> None:
        """`model`: name under which the engine serves the model."""
        self.model = model
        self._url = url
        self._session = session
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=SILENT_SECONDS)

    async def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return a complete answer. Raises ApiError."""
        async with self._post(path, body) as response:
            reply: dict[str, Any] = await load_json(await response.read(), max_fields=MAX_ITEMS)
            return reply

    async def events(self, path: str, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        """Yield the events of a streamed answer. A caller that stops early must close it. Raises ApiError."""
        async with self._post(path, body) as response:
            async for line in response.content:
                data = line.decode().removeprefix("data:").strip() if line.startswith(b"data:") else ""
                if data == DONE:
                    return
                if data:
                    event: dict[str, Any] = json.loads(data)
                    if "error" in event:
                        raise ApiError(503, f"the engine failed: {event['error'].get('message', '')}")
                    yield event
        raise ApiError(503, "the engine stopped during its answer; it is being restarted: retry later")

    @asynccontextmanager
    async def _post(self, path: str, body: dict[str, Any]) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield a response with status 200; lines of any length can be read."""
        data = await dump_json(body)
        try:
            async with self._session.post(
                self._url + path, data=data, headers=self._headers, timeout=self._timeout, read_bufsize=2**22
            ) as response:
                if response.status != 200:
                    raise _rejection(response.status, await response.text())
                yield response
        except (aiohttp.ClientError, OSError) as error:  # as is TimeoutError
            cause = str(error) or type(error).__name__
            raise ApiError(503, f"the engine is unreachable ({cause}); it is being restarted: retry later") from error


def _rejection(status: int, text: str) -> ApiError:
    """Return the engine's error as an error for the client."""
    try:
        error = json.loads(text)["error"]
        message, param, code = error["message"], error.get("param"), error.get("code")
    except (ValueError, KeyError, TypeError):
        message, param, code = text[:500], None, None
    return ApiError(status if status < 500 else 503, message, param=param, code=code if isinstance(code, str) else None)


@dataclass
class TurnGenerator:
    """Samples the turns of one conversation and streams their text; implements the agent loop's `Generate`."""

    engine: StreamingEngine
    sampling: Sampling
    stop_ids: Sequence[int]
    stops: Sequence[str]
    """Stop strings of the client."""
    seed: int | None
    emit: Callable[[str], Awaitable[None]]
    """Called with each piece of text."""
    stopped: bool = field(default=False, init=False)
    """Whether the last turn ended at one of `stops`."""

    async def __call__(self, token_ids: Sequence[int], *, max_tokens: int, turn: int) -> SampledTurn:
        """Sample a turn, without log-probabilities. Raises ApiError.

        A turn that ended at a stop string of the client is not finished, so its calls are not run. The engine's own
        additions to sampling are turned off.
        """
        body = {
            "model": self.engine.model,
            "prompt": list(token_ids),
            "stream": True,
            "max_tokens": max_tokens,
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            **NOTHING_ADDED,
            "seed": None if self.seed is None else derive_seed(self.seed, turn),
            "stop": list(self.stops),
            "stop_token_ids": list(self.stop_ids),
            "skip_special_tokens": False,
            "return_token_ids": True,
        }
        sampled = array("i")
        finish_reason = stop_reason = None
        async with aclosing(self.engine.events("/v1/completions", body)) as events:
            async for event in events:
                for choice in event["choices"]:
                    if "token_ids" not in choice:
                        raise ApiError(503, "the engine does not return token ids: vLLM 0.10.2 or newer is needed")
                    sampled.extend(choice["token_ids"] or ())
                    if choice["text"]:
                        await self.emit(choice["text"])
                    finish_reason = choice["finish_reason"] or finish_reason
                    stop_reason = choice["stop_reason"] or stop_reason
        if finish_reason not in ("stop", "length"):
            raise ApiError(503, f"the engine aborted its answer ({finish_reason!r}): retry later")
        self.stopped = isinstance(stop_reason, str)
        return SampledTurn(sampled, array("f"), "stop" if finish_reason == "stop" and not self.stopped else "length")
