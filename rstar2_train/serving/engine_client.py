"""Asks the engine for the server: turns of the loop, streamed as they are sampled, and requests that are passed on.

Below the loop (completion.py) and the endpoint (app.py). Rollouts ask in another way (inference/client.py), in which
nothing is streamed and log-probabilities come back. Cancelling a request closes its connection, which aborts it in the
engine.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from rstar2_train.api.stages import Sampling
from rstar2_train.inference.client import Generation
from rstar2_train.inference.openai_client import NOTHING_ADDED
from rstar2_train.rollout.seeds import derive_seed
from rstar2_train.serving.errors import ApiError

SILENT_SECONDS = 600.0
"""An engine that sends nothing for so long is taken to be lost; a full one lets a request wait."""
DONE = "[DONE]"


class StreamingEngine:
    """The engine's OpenAI endpoints."""

    def __init__(self, url: str, *, token: str, model: str, session: aiohttp.ClientSession) -> None:
        """`model`: the name that it serves the model under."""
        self.model = model
        self._url = url
        self._session = session
        self._headers = {"Authorization": f"Bearer {token}"}
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=SILENT_SECONDS)

    async def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """A whole answer. Raises ApiError."""
        async with self._post(path, body) as response:
            reply: dict[str, Any] = await response.json()
            return reply

    async def events(self, path: str, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        """The events of a streamed answer; whoever may leave early closes it. Raises ApiError."""
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
        raise ApiError(503, "the engine broke its answer off: it is being started again, try later")

    @asynccontextmanager
    async def _post(self, path: str, body: dict[str, Any]) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer of status 200, its lines as long as they need be."""
        try:
            async with self._session.post(
                self._url + path, json=body, headers=self._headers, timeout=self._timeout, read_bufsize=2**22
            ) as response:
                if response.status != 200:
                    raise _refusal(response.status, await response.text())
                yield response
        except (aiohttp.ClientError, OSError) as error:  # as is TimeoutError
            why = str(error) or type(error).__name__
            raise ApiError(503, f"the engine does not answer ({why}): it is being started again, try later") from error


def _refusal(status: int, text: str) -> ApiError:
    """The engine's no, as the client sees it."""
    try:
        error = json.loads(text)["error"]
        message, param, code = error["message"], error.get("param"), error.get("code")
    except (ValueError, KeyError, TypeError):
        message, param, code = text[:500], None, None
    return ApiError(status if status < 500 else 503, message, param=param, code=code if isinstance(code, str) else None)


@dataclass
class TurnGenerator:
    """Samples the turns of one conversation, telling their text as it comes; the agent loop's `Generate`."""

    engine: StreamingEngine
    sampling: Sampling
    stop_ids: Sequence[int]
    stops: Sequence[str]
    """Strings of the client's that end the answer."""
    seed: int | None
    tell: Callable[[str], Awaitable[None]]
    stopped: bool = field(default=False, init=False)
    """Whether one of `stops` came."""

    async def __call__(self, token_ids: Sequence[int], *, max_tokens: int, turn: int) -> Generation:
        """Sample a turn. Raises ApiError when the engine cannot.

        Nothing is learnt from these samples, so they carry no log-probabilities. A turn that a string of the client's
        ended is not finished: its calls are not run. What the engine would add to the sampling is set to nothing.
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
        sampled: list[int] = []
        ended = reason = None
        async with aclosing(self.engine.events("/v1/completions", body)) as events:
            async for event in events:
                for choice in event["choices"]:
                    if "token_ids" not in choice:
                        raise ApiError(503, "the engine does not return token ids: vLLM 0.10.2 or newer is needed")
                    sampled += choice["token_ids"] or ()
                    if choice["text"]:
                        await self.tell(choice["text"])
                    ended, reason = choice["finish_reason"] or ended, choice["stop_reason"] or reason
        if ended not in ("stop", "length"):
            raise ApiError(503, f"the engine ended its answer with {ended!r}: it is being started again, try later")
        self.stopped = isinstance(reason, str)
        return Generation(sampled, [], "stop" if ended == "stop" and not self.stopped else "length", "")
