"""The engine's route for rollouts: `POST /rstar2/generate`: token ids in; ids, log-probabilities and version out.

`POST /rstar2/score` returns the log-probabilities of given tokens, for the probe of new weights. Between `/rstar2/hold`
and `/rstar2/release` no request of `/rstar2/generate` samples: one that is aborted meanwhile keeps its tokens, and
continues after the release. So the probe of new weights runs before any rollout uses them.

vLLM's own routes do the same through many layers, at a higher cost than sampling a short turn of a small model. This
route passes a request directly to the engine. `server.py` adds this ASGI class behind the token check (`--middleware`).
Imported only inside vLLM.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import uuid
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

from vllm.exceptions import VLLMClientError
from vllm.inputs.engine import tokens_input
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from rstar2_train.utils.auth import Application, Receive, Scope, Send

PATH = "/rstar2/generate"
SCORE_PATH = "/rstar2/score"
HOLD_PATH = "/rstar2/hold"
RELEASE_PATH = "/rstar2/release"
_SEED_STEP = 0x9E3779B97F4A7C15
"""Odd number whose multiples differ in many bits, so that a continued request repeats no random numbers."""
LOWEST = -9999.0
"""Represents a log-probability of minus infinity, which JSON does not have."""


Handler = Callable[[Any, bytes], Coroutine[Any, Any, dict[str, Any]]]
"""Answers a request with the engine and the body."""


class GenerateRoute:
    """ASGI middleware that handles its routes and passes on all others."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._released = asyncio.Event()
        """Unset while the requests are held."""
        self._released.set()
        self._handlers: dict[str, Handler] = {
            PATH: self._generate,
            SCORE_PATH: self._score,
            HOLD_PATH: self._hold,
            RELEASE_PATH: self._release,
        }
        self._name = uuid.uuid4().hex[:8]
        self._count = itertools.count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or pass it on. If the client disconnects, the request is aborted."""
        handler = self._handlers.get(scope.get("path", "")) if scope["type"] == "http" else None
        if handler is None or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body = await _body(receive)
        if body is None:
            return
        work = asyncio.ensure_future(_answer(handler(scope["app"].state.engine_client, body)))
        disconnected = asyncio.ensure_future(receive())
        try:
            await asyncio.wait((work, disconnected), return_when=asyncio.FIRST_COMPLETED)
        finally:
            disconnected.cancel()
        if not work.done():
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work
            return
        status, answer = work.result()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _generate(self, engine: Any, body: bytes) -> dict[str, Any]:
        """Return the sampled turn of a request. A request that is held continues from the tokens that it has."""
        fields = json.loads(body)
        prompt_ids, most, seed = fields.pop("token_ids"), fields.pop("max_tokens"), fields.pop("seed", None)
        turn = SampledTurn()
        while True:
            await self._released.wait()
            parameters = SamplingParams(
                logprobs=0,
                detokenize=False,
                flat_logprobs=True,
                output_kind=RequestOutputKind.FINAL_ONLY,
                max_tokens=most - len(turn.token_ids),
                seed=turn.seed(seed),
                **fields,
            )
            turn.add((await self._sample(engine, prompt_ids + turn.token_ids, parameters)).outputs[0])
            if turn.finish_reason != "abort" or self._released.is_set():
                return turn.reply()
            if len(turn.token_ids) == most:
                turn.finish_reason = "length"
                return turn.reply()

    async def _hold(self, engine: Any, body: bytes) -> dict[str, Any]:
        """Hold the requests from now on. The caller aborts those that sample."""
        self._released.clear()
        return {}

    async def _release(self, engine: Any, body: bytes) -> dict[str, Any]:
        """Continue the held requests."""
        self._released.set()
        return {}

    async def _score(self, engine: Any, body: bytes) -> dict[str, Any]:
        """Return the log-probabilities of given tokens, one row after the other: always the same batch."""
        logprobs = []
        for token_ids in json.loads(body)["rows"]:
            parameters = SamplingParams(
                prompt_logprobs=0, max_tokens=1, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
            )
            tokens = (await self._sample(engine, token_ids, parameters)).prompt_logprobs[1:]
            values = [at[token].logprob for at, token in zip(tokens, token_ids[1:], strict=True)]
            logprobs.append([max(value, LOWEST) for value in values])
        return {"logprobs": logprobs}

    async def _sample(self, engine: Any, token_ids: list[int], parameters: SamplingParams) -> Any:
        """Return the output of a request."""
        if not token_ids:
            raise ValueError("token_ids is empty")
        request_id = f"{self._name}-{next(self._count)}"
        results = [result async for result in engine.generate(tokens_input(token_ids), parameters, request_id)]
        if not results:
            raise EngineGenerateError("the engine finished a request without an output")
        return results[-1]


class SampledTurn:
    """The tokens of one turn, from one or more requests to the engine."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        self._logprobs: list[float] = []
        self._spans: list[tuple[str, int]] = []
        """Each weight version, with the position after its last token."""

    def add(self, output: Any) -> None:
        """Append the output of a request."""
        start = len(self.token_ids)
        self.token_ids += output.token_ids
        if output.token_ids:
            self._logprobs += [max(value, LOWEST) for value in output.logprobs.logprobs]
        self.finish_reason = output.finish_reason
        for span in output.weight_versions or ():
            if self._spans and self._spans[-1][0] == span.version:
                self._spans.pop()
            self._spans.append((span.version, start + span.end))

    def seed(self, seed: int | None) -> int | None:
        """Return the seed of the next request: that of the turn, or another one after a hold."""
        if seed is None or not self.token_ids:
            return seed
        return (seed ^ len(self.token_ids) * _SEED_STEP) % 2**63

    def reply(self) -> dict[str, Any]:
        """Return the answer of the route."""
        return {
            "token_ids": self.token_ids,
            "logprobs": self._logprobs,
            "finish_reason": self.finish_reason,
            "weight_versions": [list(span) for span in self._spans],
        }


async def _answer(work: Coroutine[Any, Any, dict[str, Any]]) -> tuple[int, bytes]:
    """Return status and body: 400 for an invalid request, 503 for a failed engine."""
    try:
        answer = await work
    except (EngineDeadError, EngineGenerateError) as error:
        return HTTPStatus.SERVICE_UNAVAILABLE, _error(error)
    except (VLLMClientError, ValueError, TypeError, KeyError, OverflowError) as error:
        return HTTPStatus.BAD_REQUEST, _error(error)
    return HTTPStatus.OK, json.dumps(answer, separators=(",", ":")).encode()


async def _body(receive: Receive) -> bytes | None:
    """Return the whole body of a request; None if the client disconnected."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def _error(error: Exception) -> bytes:
    """Return the error with the cause that vLLM wraps, as JSON."""
    cause = f" ({type(error.__cause__).__name__}: {error.__cause__})" if error.__cause__ else ""
    return json.dumps({"error": f"{type(error).__name__}: {error}{cause}"}).encode()
