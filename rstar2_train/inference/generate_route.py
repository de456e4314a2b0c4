"""The engine's own route for rollouts: `POST /rstar2/generate`, token ids in, ids and log-probs and weight version out.

vLLM's routes answer the same question through a stack of layers made for every other one, at more cost than sampling a
short turn of a small model; this one hands a request to the engine directly. An ASGI class that `server.py` puts
behind the token check (`--middleware`). Imported only inside vLLM.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import uuid
from http import HTTPStatus
from typing import Any

from vllm.exceptions import VLLMClientError
from vllm.inputs.engine import tokens_input
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from rstar2_train.utils.auth import Application, Receive, Scope, Send

PATH = "/rstar2/generate"
LOWEST = -9999.0
"""Stands for a log-probability of minus infinity, which JSON does not have."""


class GenerateRoute:
    """ASGI middleware that answers one route and passes on all others."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._name = uuid.uuid4().hex[:8]
        self._count = itertools.count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on. When the client goes away the request is aborted."""
        if scope["type"] != "http" or scope["path"] != PATH or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body = await _body(receive)
        if body is None:
            return
        work = asyncio.ensure_future(self._answer(scope["app"].state.engine_client, body))
        gone = asyncio.ensure_future(receive())
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
        if not work.done():
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work
            return
        status, answer = work.result()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _answer(self, engine: Any, body: bytes) -> tuple[int, bytes]:
        """Status and body. What is wrong with the request is 400; a dying engine is 503."""
        try:
            fields = json.loads(body)
            token_ids = fields.pop("token_ids")
            parameters = SamplingParams(
                logprobs=0, detokenize=False, flat_logprobs=True, output_kind=RequestOutputKind.FINAL_ONLY, **fields
            )
            output = await self._sample(engine, token_ids, parameters)
        except (EngineDeadError, EngineGenerateError) as error:
            return HTTPStatus.SERVICE_UNAVAILABLE, _error(error)
        except (VLLMClientError, ValueError, TypeError, KeyError, OverflowError) as error:
            return HTTPStatus.BAD_REQUEST, _error(error)
        answer = {
            "token_ids": list(output.token_ids),
            "logprobs": [max(value, LOWEST) for value in output.logprobs.logprobs],
            "finish_reason": output.finish_reason,
            "weight_versions": [span.version for span in output.weight_versions or ()],
        }
        return HTTPStatus.OK, json.dumps(answer, separators=(",", ":")).encode()

    async def _sample(self, engine: Any, token_ids: list[int], parameters: SamplingParams) -> Any:
        """The one output of a request."""
        if not token_ids:
            raise ValueError("token_ids is empty")
        request_id = f"{self._name}-{next(self._count)}"
        results = [result async for result in engine.generate(tokens_input(token_ids), parameters, request_id)]
        if not results:
            raise EngineGenerateError("the engine ended a request without an output")
        return results[-1].outputs[0]


async def _body(receive: Receive) -> bytes | None:
    """A request's whole body; None when the client went away."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def _error(error: Exception) -> bytes:
    """What went wrong, with the cause that vLLM wraps."""
    cause = f" ({type(error.__cause__).__name__}: {error.__cause__})" if error.__cause__ else ""
    return json.dumps({"error": f"{type(error).__name__}: {error}{cause}"}).encode()
