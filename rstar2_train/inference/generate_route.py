"""The engine's route for rollouts: `POST /rstar2/generate`: token ids in; ids, log-probabilities and versions out.

The bodies are binary, and the turn is streamed in parts (`turn_wire.py`): a turn is not lost with its engine.
`POST /rstar2/score` returns the log-probabilities of given tokens, for the probe of new weights. Between `/rstar2/hold`
and `/rstar2/release` no request of `/rstar2/generate` samples: one that is aborted meanwhile keeps its tokens, and
continues after the release. So the probe of new weights runs before any rollout uses them.
`/rstar2/base`, `/rstar2/adapter` and `/rstar2/serve` name the engine's whole weights, add an adapter to them, and serve
it (`engine_adapters.py`). `/rstar2/fetch` copies the folders of a version from a bucket (`bucket_cache.py`).

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
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Any

from vllm.exceptions import VLLMClientError
from vllm.inputs.engine import tokens_input
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from rstar2_train.inference.bucket_cache import FolderCopies
from rstar2_train.inference.engine_adapters import Adapter, EngineAdapters
from rstar2_train.inference.reply_routes import ReplyRoutes
from rstar2_train.inference.turn_wire import (
    ADAPTER,
    BASE,
    FETCH,
    GENERATE,
    HOLD,
    PART_TOKENS,
    RELEASE,
    SCORE,
    SERVE,
    TurnPart,
    decode_request,
    encode_part,
)
from rstar2_train.utils.auth import Application, Receive, Scope, Send
from rstar2_train.weights.adapter_check import AdapterOrder

_SEED_STEP = 0x9E3779B97F4A7C15
"""Odd number whose multiples differ in many bits, so that a continued request repeats no random numbers."""
LOWEST = -9999.0
"""Represents a log-probability of minus infinity, which JSON does not have."""
_INVALID = (VLLMClientError, ValueError, TypeError, KeyError, OverflowError)
_FAILED = (EngineDeadError, EngineGenerateError)


Parts = AsyncGenerator[tuple[bytes, bool], None]
"""The parts of a reply, each with whether it is the last."""
Handler = Callable[[Any, bytes], Parts]
"""Returns the parts of a reply, from the engine and the body of the request."""


class GenerateRoute:
    """ASGI middleware that handles its routes and passes on all others."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._released = asyncio.Event()
        """Unset while the requests are held."""
        self._released.set()
        self._handlers: dict[str, Handler] = {
            GENERATE: self._generate,
            SCORE: self._score,
            HOLD: self._hold,
            RELEASE: self._release,
            BASE: self._name_base,
            ADAPTER: self._load_adapter,
            SERVE: self._serve,
            FETCH: self._fetch,
        }
        self._adapters = EngineAdapters()
        self._copies = FolderCopies()
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
        content_type = b"application/octet-stream" if scope["path"] == GENERATE else b"application/json"
        reply = _Reply(send, content_type)
        work = asyncio.ensure_future(reply.send(handler(scope["app"].state.engine_client, body)))
        disconnected = asyncio.ensure_future(receive())
        try:
            await asyncio.wait((work, disconnected), return_when=asyncio.FIRST_COMPLETED)
        finally:
            disconnected.cancel()
        if work.done():
            work.result()
            return
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work

    async def _generate(self, engine: Any, body: bytes) -> Parts:
        """Return the parts of a sampled turn. A request that is held continues from the tokens that it has."""
        fields, tokens = decode_request(body)
        prompt_ids = tokens.tolist()
        part_tokens, most = fields.pop("part_tokens", PART_TOKENS), fields.pop("max_tokens")
        seed, route = fields.pop("seed", None), fields.pop("routes_from", None)
        turn = _Turn()
        routes = None if route is None else ReplyRoutes(engine, route)
        reason: str | None = None
        while reason is None:
            await self._released.wait()
            turn.resume()
            parameters = SamplingParams(
                logprobs=0,
                detokenize=False,
                flat_logprobs=True,
                output_kind=RequestOutputKind.DELTA,
                stream_interval=part_tokens,
                max_tokens=most - len(turn.token_ids),
                seed=turn.seed(seed),
                **fields,
                **(routes.wish() if routes else {}),
            )
            with self._adapters.use() as adapter:
                outputs = self._outputs(engine, prompt_ids + turn.token_ids, parameters, adapter)
                async with aclosing(outputs) as results:
                    async for request_id, result in results:
                        output = result.outputs[0]
                        reason = output.finish_reason
                        turn.add(output)
                        if reason is not None:
                            versions = [(span.version, span.start) for span in output.weight_versions or ()]
                        elif turn.unsent >= part_tokens:
                            versions = _versions_so_far(engine, request_id)
                        else:
                            continue  # the engine passes on the first token alone
                        turn.set_versions(self._adapters.verified(adapter, versions))
                        if reason == "abort" and not self._released.is_set():
                            reason = "length" if len(turn.token_ids) == most else None
                        part = turn.take(reason)
                        if routes:
                            last = len(prompt_ids) + len(turn.token_ids) - 1
                            part = await routes.added(part, request_id, output, last=last)
                        yield encode_part(part), reason is not None

    async def _hold(self, engine: Any, body: bytes) -> Parts:
        """Hold the requests from now on. The caller aborts those that sample."""
        self._released.clear()
        yield b"{}", True

    async def _release(self, engine: Any, body: bytes) -> Parts:
        """Continue the held requests."""
        self._released.set()
        await self._adapters.remove_unused(engine)
        yield b"{}", True

    async def _name_base(self, engine: Any, body: bytes) -> Parts:
        """Set the name of the engine's whole weights if the body has one, and return it."""
        fields = json.loads(body)
        if "name" in fields:
            self._adapters.base = fields["name"]
        yield json.dumps({"name": self._adapters.base}).encode(), True

    async def _load_adapter(self, engine: Any, body: bytes) -> Parts:
        """Add an adapter to the engine, which does not serve it yet."""
        refusal = await self._adapters.load(engine, AdapterOrder.from_json(json.loads(body)))
        yield json.dumps({"ok": not refusal, "why": refusal}).encode(), True

    async def _serve(self, engine: Any, body: bytes) -> Parts:
        """Use the adapter of a version for new requests, or none."""
        refusal = self._adapters.serve(json.loads(body)["version"])
        yield json.dumps({"ok": not refusal, "why": refusal}).encode(), True

    async def _fetch(self, engine: Any, body: bytes) -> Parts:
        """Copy folders from the bucket to this machine, while the engine generates; return their paths."""
        reply = await asyncio.to_thread(self._copies.reply, json.loads(body))
        yield json.dumps(reply).encode(), True

    async def _score(self, engine: Any, body: bytes) -> Parts:
        """Return the log-probabilities of given tokens, one row after the other: always the same batch."""
        logprobs, fields = [], json.loads(body)
        for token_ids in fields["rows"]:
            parameters = SamplingParams(
                prompt_logprobs=0, max_tokens=1, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
            )
            with self._adapters.use(base=fields.get("base", False)) as adapter:
                async with aclosing(self._outputs(engine, token_ids, parameters, adapter)) as outputs:
                    results = [result async for _, result in outputs]
            tokens = results[-1].prompt_logprobs[1:]
            values = [at[token].logprob for at, token in zip(tokens, token_ids[1:], strict=True)]
            logprobs.append([max(value, LOWEST) for value in values])
        yield json.dumps({"logprobs": logprobs}, separators=(",", ":")).encode(), True

    async def _outputs(
        self, engine: Any, token_ids: list[int], parameters: SamplingParams, adapter: Adapter | None
    ) -> AsyncGenerator[tuple[str, Any], None]:
        """Return the outputs of a request, at least one, each with the id of the request."""
        if not token_ids:
            raise ValueError("token_ids is empty")
        is_empty, request_id = True, f"{self._name}-{next(self._count)}"
        lora = adapter.request if adapter else None
        async with aclosing(
            engine.generate(tokens_input(token_ids), parameters, request_id, lora_request=lora)
        ) as results:
            async for result in results:
                is_empty = False
                yield request_id, result
        if is_empty:
            raise EngineGenerateError("the engine finished a request without an output")


class _Turn:
    """The tokens of one turn, from one or more requests to the engine."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self._logprobs: list[float] = []
        self._sent = self._start = 0
        """Tokens that are sent; tokens at the start of the present request to the engine."""
        self._versions: list[tuple[str, int]] = []

    @property
    def unsent(self) -> int:
        """Number of tokens that are not sent yet."""
        return len(self.token_ids) - self._sent

    def resume(self) -> None:
        """Start a request to the engine for the rest of the turn."""
        self._start = len(self.token_ids)

    def add(self, output: Any) -> None:
        """Append the tokens of an output."""
        self.token_ids += output.token_ids
        if output.token_ids:
            self._logprobs += [max(value, LOWEST) for value in output.logprobs.logprobs]

    def set_versions(self, versions: Sequence[tuple[str, int]]) -> None:
        """Set the weight versions of the present request, with positions in it."""
        known = [span for span in self._versions if span[1] < self._start]
        for version, at in versions:
            if self._start + at < len(self.token_ids) and (not known or known[-1][0] != version):
                known.append((version, self._start + at))
        self._versions = known

    def seed(self, seed: int | None) -> int | None:
        """Return the seed of the next request: that of the turn, or another one after a hold."""
        if seed is None or not self.token_ids:
            return seed
        return (seed ^ len(self.token_ids) * _SEED_STEP) % 2**63

    def take(self, finish_reason: str | None) -> TurnPart:
        """Return the tokens that are not sent yet; they count as sent."""
        start, self._sent = self._sent, len(self.token_ids)
        return TurnPart(self.token_ids[start:], self._logprobs[start:], self._versions, finish_reason)


class _Reply:
    """The reply to one request: 200 and its parts, 400 for an invalid request, 503 for a failed engine."""

    def __init__(self, send: Send, content_type: bytes) -> None:
        self._send, self._content_type = send, content_type
        self._started = self._ended = False

    async def send(self, parts: Parts) -> None:
        """Send the parts as they come. A failure before the last part becomes the last part.

        The end of the reply travels with the last part: a packet of its own would cost the client a wake-up.
        """
        try:
            async with aclosing(parts):
                async for part, is_last in parts:
                    await self._send_part(part, HTTPStatus.OK, self._content_type, is_last=is_last)
        except (*_FAILED, *_INVALID) as error:
            if self._ended:
                return
            if self._started:
                await self._send_part(encode_part(TurnPart([], [], [], error=_error(error))), is_last=True)
            else:
                status = HTTPStatus.SERVICE_UNAVAILABLE if isinstance(error, _FAILED) else HTTPStatus.BAD_REQUEST
                body = json.dumps({"error": _error(error)}).encode()
                await self._send_part(body, status, b"application/json", is_last=True)

    async def _send_part(
        self, body: bytes, status: int = HTTPStatus.OK, content_type: bytes = b"", *, is_last: bool
    ) -> None:
        if not self._started:
            self._started = True
            headers = [(b"content-type", content_type)]
            await self._send({"type": "http.response.start", "status": int(status), "headers": headers})
        self._ended = is_last
        await self._send({"type": "http.response.body", "body": body, "more_body": not is_last})


def _versions_so_far(engine: Any, request_id: str) -> list[tuple[str, int]]:
    """Return the weight versions of an unfinished request; vLLM reports them only with the last output."""
    processor = engine.output_processor
    [internal_id] = processor.external_req_ids[request_id]
    return list(processor.request_states[internal_id].weight_version_starts)


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


def _error(error: Exception) -> str:
    """Return the error with the cause that vLLM wraps."""
    cause = f" ({type(error.__cause__).__name__}: {error.__cause__})" if error.__cause__ else ""
    return f"{type(error).__name__}: {error}{cause}"
