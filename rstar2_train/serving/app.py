"""The HTTP endpoint of `rstar2 serve`: OpenAI's chat completions, with the tool loop behind them.

POST /v1/chat/completions, GET /v1/models, GET /health. Nothing else of the engine is reachable from here: it listens
on loopback, under a token that only this process has. A client that goes away cancels its answer.
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
from rstar2_train.serving.errors import ApiError
from rstar2_train.serving.request import ChatRequest
from rstar2_train.utils.auth import BearerAuth

CHAT = "/v1/chat/completions"
OPEN_PATHS = frozenset({"/health"})
"""Routes without a token: probes have none."""
MOST_BYTES = 1 << 25
"""Of a request's body: many times what a context of a million tokens holds."""
Event = Callable[[dict[str, Any]], Awaitable[None]]


def make_app(house: ServerContext, *, token: str | None) -> FastAPI:
    """The application. `token`: what clients must send; None asks for none."""
    app = FastAPI(title="rStar2", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(_BodyLimit)
    made = int(time.time())

    if token:
        message = "The bearer token is missing or wrong. Set it as the API key (`rstar2 chat`: RSTAR2_SERVE_TOKEN)."
        body = ApiError(401, message, code="invalid_api_key").body()
        app.add_middleware(BearerAuth, token=token, is_open=OPEN_PATHS.__contains__, body=body)

    @app.exception_handler(ApiError)
    async def refused(request: Request, error: ApiError) -> Response:
        return JSONResponse(error.body(), status_code=error.status)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            message = f"the body is not valid JSON: {first['ctx']['error']} at character {first['loc'][-1]}"
            return JSONResponse(ApiError(400, message).body(), status_code=400)
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        message = f"{where or 'the body'}: {first['msg']}"
        return JSONResponse(ApiError(400, message, param=where or None).body(), status_code=400)

    @app.exception_handler(HTTPException)
    async def no_such_route(request: Request, error: HTTPException) -> Response:
        return JSONResponse(ApiError(error.status_code, error.detail).body(), status_code=error.status_code)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        served = house.served
        one = {"id": served.name, "object": "model", "created": made, "owned_by": "rstar2"}
        return {"object": "list", "data": [one | {"max_model_len": served.context}]}

    @app.post(CHAT)
    async def chat_completions(question: ChatRequest, request: Request) -> Response:
        question.check(model=house.served.name)
        head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": house.served.name,
        }
        if question.tools:
            return await _passed_on(question, house, request)
        talk = Completion.about(question, house)
        if question.stream:
            return _Streamed(lambda event: _stream(talk, head, event))
        return await _unless_gone(request.receive, _whole(talk, head))

    return app


class _BodyLimit:
    """Reads no more of a request's body than MOST_BYTES: it is held in memory, and read before anyone is asked who."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        seen = 0

        async def bounded() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > MOST_BYTES:
                raise HTTPException(413, f"the request has more than {MOST_BYTES >> 20} MiB: shorten the messages")
            return message

        await self._app(scope, bounded if scope["type"] == "http" else receive, send)


async def _whole(talk: Completion, head: dict[str, Any]) -> Response:
    """An answer in one piece."""
    text: list[str] = []

    async def tell(piece: str) -> None:
        text.append(piece)

    ending = await talk.run(tell)
    choice = _choice(ending) | {"message": {"role": "assistant", "content": "".join(text)}}
    return JSONResponse(head | {"object": "chat.completion", "choices": [choice], "usage": ending.usage()})


async def _stream(talk: Completion, head: dict[str, Any], event: Event) -> None:
    """An answer in events: its text as it comes, how it ended, and its usage where that was asked for."""
    head = head | {"object": "chat.completion.chunk"}
    options = talk.question.stream_options
    usage = {"usage": None} if options and options.include_usage else {}
    delta: dict[str, str] = {"role": "assistant"}

    async def tell(piece: str) -> None:
        nonlocal delta
        choice = {"index": 0, "delta": delta | {"content": piece}, "finish_reason": None}
        delta = {}
        await event(head | {"choices": [choice]} | usage)

    ending = await talk.run(tell)
    await event(head | {"choices": [_choice(ending) | {"delta": delta}]} | usage)
    if usage:
        await event(head | {"choices": [], "usage": ending.usage()})


def _choice(ending: CompletionEnd) -> dict[str, Any]:
    return {"index": 0, "finish_reason": ending.finish_reason, "stop_reason": ending.stop}


async def _passed_on(question: ChatRequest, house: ServerContext, request: Request) -> Response:
    """The engine's own answer to a question with the client's own tools: the client runs them."""
    body = question.for_engine(model=house.engine.model)
    name = {"model": house.served.name}

    async def whole() -> Response:
        return JSONResponse(await house.engine.answer(CHAT, body) | name)

    async def stream(event: Event) -> None:
        async with aclosing(house.engine.events(CHAT, body)) as events:
            async for one in events:
                await event(one | name)

    return _Streamed(stream) if question.stream else await _unless_gone(request.receive, whole())


class _Streamed(Response):
    """Server-sent events. An error before the first one is an answer with that status; a later one is an event."""

    def __init__(self, produce: Callable[[Event], Coroutine[Any, Any, None]]) -> None:
        super().__init__()
        self._produce = produce

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def say(data: str) -> None:
            nonlocal begun
            if not begun:
                begun = True
                headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": f"data: {data}\n\n".encode(), "more_body": True})

        async def event(fields: dict[str, Any]) -> None:
            await say(json.dumps(fields))  # in ASCII: some clients take U+2028 for the end of a line

        async def work() -> Response | None:
            try:
                await self._produce(event)
                await say(DONE)
            except ApiError as error:
                if not begun:
                    return JSONResponse(error.body(), status_code=error.status)
                await event(error.body())
            await send({"type": "http.response.body", "body": b""})
            return None

        answer = await _unless_gone(receive, work())
        if answer is not None:
            await answer(scope, receive, send)


async def _unless_gone(receive: Receive, work: Coroutine[Any, Any, Any]) -> Any:
    """What `work` returns; it is cancelled, and nothing is answered, when the client goes away meanwhile."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        if not working.done():
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
    return Response(status_code=499) if working.cancelled() else working.result()


async def _until_gone(receive: Receive) -> None:
    """Until the client closes its connection; its request was read before."""
    while (await receive())["type"] != "http.disconnect":
        pass
