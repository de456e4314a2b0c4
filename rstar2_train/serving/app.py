"""The HTTP endpoint of `rstar2 serve`: OpenAI's chat completions on top of the agent loop.

POST /v1/chat/completions, GET /v1/models, GET /health. Clients cannot reach other routes of the engine: it listens on
loopback and its token is known only to this process. The answer of a client that disconnects is cancelled.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rstar2_train.serving.completion import Completion, CompletionEnd, ServerContext
from rstar2_train.serving.engine_client import DONE
from rstar2_train.serving.request import ChatRequest
from rstar2_train.utils.api_error import ApiError
from rstar2_train.utils.auth import SERVE_TOKEN, BearerAuth
from rstar2_train.utils.json_route import JsonRoute
from rstar2_train.utils.json_steps import dump_json

CHAT = "/v1/chat/completions"
MAX_BODY_BYTES = 1 << 25
"""Limit of a request body: many times the size of a context of a million tokens."""
OPEN_PATHS = frozenset({"/health"})
"""Routes without a token: probes have none."""
SendEvent = Callable[[dict[str, Any]], Awaitable[None]]


def make_app(context: ServerContext, *, token: str | None) -> FastAPI:
    """Return the application. `token`: token that clients must send; None: no token is required."""
    app = FastAPI(title="rStar2", docs_url=None, redoc_url=None, openapi_url=None)
    app.router.route_class = _LargeJsonRoute
    app.add_middleware(_BodyLimit)
    created = int(time.time())
    if token:
        message = f"The bearer token is missing or wrong. Send it as the API key (`rstar2 chat`: {SERVE_TOKEN})."
        body = ApiError(401, message, code="invalid_api_key").body()
        app.add_middleware(BearerAuth, token=token, is_open=OPEN_PATHS.__contains__, body=body)

    @app.exception_handler(ApiError)
    async def api_error(request: Request, error: ApiError) -> Response:
        return JSONResponse(error.body(), status_code=error.status)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            message = f"the body is not valid JSON: {first['ctx']['error']} at character {first['loc'][-1]}"
            return JSONResponse(ApiError(400, message).body(), status_code=400)
        field = ".".join(str(part) for part in first["loc"] if part != "body")
        message = f"{field or 'the body'}: {first['msg']}"
        return JSONResponse(ApiError(400, message, param=field or None).body(), status_code=400)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        return JSONResponse(ApiError(error.status_code, error.detail).body(), status_code=error.status_code)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        model = {"id": context.model.name, "object": "model", "created": created, "owned_by": "rstar2"}
        return {"object": "list", "data": [model | {"max_model_len": context.model.context}]}

    @app.post(CHAT)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        await asyncio.to_thread(body.check, model=context.model.name)
        head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": context.model.name,
        }
        if body.tools:
            return await _forward(body, context, request)
        completion = await asyncio.to_thread(Completion.create, body, context)
        if body.stream:
            return _EventStream(lambda send_event: _stream(completion, head, send_event))
        return await _until_disconnect(request.receive, _complete(completion, head))

    return app


class _LargeJsonRoute(JsonRoute):
    """A route whose tools may have parameters with many properties."""

    max_fields = 1024


class _BodyLimit:
    """Rejects a request body above MAX_BODY_BYTES: it is held in memory, and read before the token is checked."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = 0

        async def bounded() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > MAX_BODY_BYTES:
                raise HTTPException(413, f"the request is larger than {MAX_BODY_BYTES >> 20} MiB: shorten the messages")
            return message

        await self._app(scope, bounded if scope["type"] == "http" else receive, send)


async def _complete(completion: Completion, head: dict[str, Any]) -> Response:
    """Return the complete answer as one response."""
    text: list[str] = []

    async def emit(piece: str) -> None:
        text.append(piece)

    end = await completion.run(emit)
    choice = _choice(end) | {"message": {"role": "assistant", "content": "".join(text)}}
    return await _json_response(head | {"object": "chat.completion", "choices": [choice], "usage": end.usage()})


async def _stream(completion: Completion, head: dict[str, Any], send_event: SendEvent) -> None:
    """Send the answer as events: pieces of text, the finish reason, and the usage if the client wants it."""
    head = head | {"object": "chat.completion.chunk"}
    options = completion.request.stream_options or {}
    usage = {"usage": None} if options.get("include_usage") else {}
    delta: dict[str, str] = {"role": "assistant"}

    async def emit(piece: str) -> None:
        nonlocal delta
        choice = {"index": 0, "delta": delta | {"content": piece}, "finish_reason": None}
        delta = {}
        await send_event(head | {"choices": [choice]} | usage)

    end = await completion.run(emit)
    await send_event(head | {"choices": [_choice(end) | {"delta": delta}]} | usage)
    if usage:
        await send_event(head | {"choices": [], "usage": end.usage()})


async def _json_response(answer: dict[str, Any]) -> Response:
    """Return the response with a complete answer, which may be long."""
    return Response(bytes(await dump_json(answer)), media_type="application/json")


def _choice(end: CompletionEnd) -> dict[str, Any]:
    return {"index": 0, "finish_reason": end.finish_reason, "stop_reason": end.stop}


async def _forward(body: ChatRequest, context: ServerContext, request: Request) -> Response:
    """Return the engine's own answer to a request with the client's tools, which the client runs."""
    engine_body = body.for_engine(model=context.engine.model)
    name = {"model": context.model.name}

    async def complete() -> Response:
        return await _json_response(await context.engine.answer(CHAT, engine_body) | name)

    async def stream(send_event: SendEvent) -> None:
        async with aclosing(context.engine.events(CHAT, engine_body)) as events:
            async for event in events:
                await send_event(event | name)

    return _EventStream(stream) if body.stream else await _until_disconnect(request.receive, complete())


class _EventStream(Response):
    """Server-sent events. An error before the first event is a response with its status; a later error is an event."""

    def __init__(self, produce: Callable[[SendEvent], Coroutine[Any, Any, None]]) -> None:
        super().__init__()
        self._produce = produce

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def send_data(data: str) -> None:
            nonlocal started
            if not started:
                started = True
                headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": f"data: {data}\n\n".encode(), "more_body": True})

        async def send_event(fields: dict[str, Any]) -> None:
            await send_data(json.dumps(fields))  # ASCII: some clients treat U+2028 as the end of a line

        async def work() -> Response | None:
            try:
                await self._produce(send_event)
                await send_data(DONE)
            except ApiError as error:
                if not started:
                    return JSONResponse(error.body(), status_code=error.status)
                await send_event(error.body())
            await send({"type": "http.response.body", "body": b""})
            return None

        response = await _until_disconnect(receive, work())
        if response is not None:
            await response(scope, receive, send)


async def _until_disconnect(receive: Receive, work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of `work`. If the client disconnects, `work` is cancelled and the result is status 499."""
    task = asyncio.ensure_future(work)
    disconnect = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        disconnect.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    return Response(status_code=499) if task.cancelled() else task.result()


async def _wait_for_disconnect(receive: Receive) -> None:
    """Return when the client closes its connection. Its request was read before."""
    while (await receive())["type"] != "http.disconnect":
        pass
