"""The judge's HTTP API: takes calls, one or a batch, and answers each with how it ended.

In front of `intake`. Says no early (503 with Retry-After) rather than late; never drops a call that it accepted.
Binds to loopback unless a token is given or the operator of the service insists.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST
from redis.exceptions import RedisError
from starlette.types import ASGIApp, Receive, Scope, Send

from rstar2_train.judge.api import code_judge_compat
from rstar2_train.judge.api.admission import BatchTooLarge, CallAdmission, QueueFull, SessionBusy
from rstar2_train.judge.api.schema import (
    BAD_BODY,
    NO_REDIS,
    OPEN,
    PAGE,
    PAGE_FILES,
    SESSION_BUSY,
    TOO_MANY,
    BatchRequest,
    BatchResponse,
    CallRequest,
    CallResponse,
    CellRequest,
    JudgeStatus,
    SessionInfo,
    make_documented,
)
from rstar2_train.judge.api.submitter import Submitter
from rstar2_train.judge.queue import PREFIX, QueueKeys, connect, describe
from rstar2_train.judge.types import ALIVE_SECONDS, DRAIN_SECONDS, MAX_PENDING, MAX_WAIT_SECONDS, CallResult
from rstar2_train.utils.auth import bears, check_bind, secret

log = logging.getLogger("rstar2.judge.api")

NDJSON = "application/x-ndjson"


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """What `python -m rstar2_train.judge api` was told."""

    redis: str
    host: str = "127.0.0.1"
    port: int = 0
    """0: a free one, told in the ready line."""
    insecure: bool = False
    max_pending: int = MAX_PENDING
    """Calls accepted and not answered; above that, 503."""
    max_wait_seconds: float = MAX_WAIT_SECONDS
    """A call nobody ran in that time is answered `internal`."""
    prefix: str = PREFIX


def is_open(path: str) -> bool:
    """Whether a path asks for no token."""
    return path in OPEN or path in PAGE or path.startswith(f"{PAGE_FILES}/")


class Authorise:
    """Lets nobody in who does not send the token. Starlette's own kind of middleware would cost half a millisecond."""

    def __init__(self, app: ASGIApp, *, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_open(scope["path"]):
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not bears(given, self._token):
                answer = JSONResponse({"detail": "a valid bearer token is needed"}, status_code=401)
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)


def make_app(settings: ApiSettings, *, token: str | None) -> FastAPI:
    """The application; it connects to Redis when it starts."""
    names = QueueKeys(settings.prefix)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        redis = connect(settings.redis)
        submitter = Submitter(redis, names, max_wait_seconds=settings.max_wait_seconds)
        submitter.start()
        app.state.intake = CallAdmission(redis, names, submitter, max_pending=settings.max_pending)
        yield
        await submitter.stop()
        await redis.aclose()

    app = make_documented(lifespan, token=bool(token))

    def intake() -> CallAdmission:
        found: CallAdmission = app.state.intake
        return found

    @app.exception_handler(QueueFull)
    async def busy(request: Request, error: QueueFull) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, status_code=503, headers={"Retry-After": str(error.retry_after)})

    @app.exception_handler(BatchTooLarge)
    async def too_many(request: Request, error: BatchTooLarge) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, status_code=413)

    @app.exception_handler(RedisError)
    @app.exception_handler(OSError)  # as is TimeoutError
    async def no_redis(request: Request, error: Exception) -> JSONResponse:
        detail = {"ready": False, "detail": describe(error)}
        return JSONResponse(detail, status_code=503, headers={"Retry-After": "1"})

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        found = [{"loc": one["loc"], "msg": one["msg"], "type": one["type"]} for one in error.errors()]
        return JSONResponse({"detail": found}, status_code=422)  # the input itself may be no text that JSON takes

    @app.exception_handler(SessionBusy)
    async def session_busy(request: Request, error: SessionBusy) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, status_code=409)

    @app.get("/ping")
    async def ping() -> str:
        """Whether this process answers."""
        return "pong"

    @app.get("/v1/status", response_model=JudgeStatus, responses=NO_REDIS)
    async def status() -> Response:
        """Queue and workers; `ready` once at least one sandbox takes calls. 503 without Redis."""
        return JSONResponse(await intake().status())

    @app.get("/metrics", response_class=PlainTextResponse, responses=NO_REDIS)
    async def metrics() -> Response:
        """For Prometheus: calls by status, waits and run times, the queue's depth, executors. 503 without Redis."""
        return Response(await intake().metrics(), media_type=CONTENT_TYPE_LATEST)

    @app.post("/v1/run", response_model=CallResponse, responses=BAD_BODY)
    async def run_one(call: CallRequest) -> Response:
        """Runs one call. Every outcome of the snippet is a 200 with a status."""
        intake().admit(1)
        return JSONResponse((await intake().run(call.code, call.stdin, call.limits)).to_dict())

    @app.post("/v1/batch", response_model=BatchResponse, responses=BAD_BODY | TOO_MANY)
    async def run_batch(batch: BatchRequest, request: Request) -> Response:
        """Runs up to 64 calls. With `Accept: application/x-ndjson` each result comes as a line, with its index.

        An empty line, every ten seconds without a result, says that the judge is there.
        """
        intake().admit(len(batch.calls))
        runs = [asyncio.ensure_future(intake().run(call.code, call.stdin, call.limits)) for call in batch.calls]
        if NDJSON in request.headers.get("accept", ""):
            return StreamingResponse(as_lines(runs), media_type=NDJSON)
        return JSONResponse({"results": [result.to_dict() for result in await asyncio.gather(*runs)]})

    @app.post("/v1/sessions", response_model=SessionInfo, responses=NO_REDIS)
    async def open_session() -> Response:
        """Begins a session: a process that keeps its state from cell to cell, in namespaces of its own."""
        return JSONResponse({"session": await intake().open_session()})

    @app.post("/v1/sessions/{session}/cells", response_model=CallResponse, responses=BAD_BODY | SESSION_BUSY)
    async def run_cell(session: str, cell: CellRequest) -> Response:
        """Runs a cell, once and never again. `session_lost` when its sandbox, or its worker, is no more."""
        intake().admit(1)
        return JSONResponse((await intake().run_cell(session, cell.code, cell.limits)).to_dict())

    @app.delete("/v1/sessions/{session}", status_code=204, responses=NO_REDIS)
    async def close_session(session: str) -> Response:
        """Ends a session. One that nobody uses for ten minutes ends by itself.

        204 also when there is none, two seconds later: a Redis that has just come back may not know it yet.
        """
        await intake().close_session(session)
        return Response(status_code=204)

    app.include_router(code_judge_compat.router(intake))
    if token:
        app.add_middleware(Authorise, token=token)
    return app


async def as_lines(runs: list[asyncio.Task[CallResult]]) -> AsyncIterator[str]:
    """One JSON line a result, as they come, those that are there together in one chunk; empty ones as signs of life."""
    index = {task: number for number, task in enumerate(runs)}
    left = set(runs)
    while left:
        done, left = await asyncio.wait(left, timeout=ALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        yield "".join(json.dumps({"index": index[task], **task.result().to_dict()}) + "\n" for task in done) or "\n"


class _JudgeServer(uvicorn.Server):
    """Says on stdout where it listens, once it does."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if sockets and self.started:
            host, port = sockets[0].getsockname()[:2]
            print(json.dumps({"event": "ready", "role": "judge-api", "host": host, "port": port}), flush=True)


def serve(settings: ApiSettings) -> None:
    """Runs the API until SIGTERM. Raises ValueError for an unsafe address, OSError when the port is taken."""
    token = secret("RSTAR2_JUDGE_TOKEN")
    check_bind(settings.host, token=token, insecure=settings.insecure)
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        raise OSError(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}") from error
    config = uvicorn.Config(
        make_app(settings, token=token),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=int(DRAIN_SECONDS),
        timeout_keep_alive=600,  # longer than any client keeps one: a close under a request would look like a failure
        backlog=4096,
    )
    _JudgeServer(config).run(sockets=[listener])
