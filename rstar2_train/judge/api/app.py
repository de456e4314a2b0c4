"""The judge's HTTP API: accepts calls, one or a batch, and answers each with its result.

The routes pass calls to `admission`. A full queue is rejected early (503 with Retry-After); an accepted call is never
dropped. The API binds to loopback unless a token is set or `--insecure` is given.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST
from redis.exceptions import RedisError

from rstar2_train.judge.api import code_judge_compat
from rstar2_train.judge.api.admission import BatchTooLarge, CallAdmission, QueueFull, SessionBusy
from rstar2_train.judge.api.body_limit import BodyLimit
from rstar2_train.judge.api.errors import UNAUTHORIZED, add_error_handlers
from rstar2_train.judge.api.json_messages import encode_lines, respond
from rstar2_train.judge.api.schema import (
    BAD_BODY,
    SESSION_BUSY,
    UNAVAILABLE,
    BatchRequest,
    BatchResponse,
    CallRequest,
    CellRequest,
    JudgeStatus,
    SessionInfo,
    create_documented_app,
    is_open,
)
from rstar2_train.judge.api.submitter import Submitter
from rstar2_train.judge.queue import PREFIX, QueueKeys, connect, describe
from rstar2_train.judge.types import (
    ALIVE_SECONDS,
    DRAIN_SECONDS,
    MAX_PENDING,
    MAX_WAIT_SECONDS,
    SCRIPT_SECONDS,
    CallResult,
    Verb,
)
from rstar2_train.utils.auth import JUDGE_TOKEN, BearerAuth, check_bind, read_secret
from rstar2_train.utils.event_loop import shorten_collections
from rstar2_train.utils.listening import bind
from rstar2_train.utils.loop_watch import watch_loop

log = logging.getLogger("rstar2.judge.api")

NDJSON = "application/x-ndjson"


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """Options of `python -m rstar2_train.judge api`."""

    redis: str
    host: str = "127.0.0.1"
    port: int = 0
    """0: a free port, printed in the ready line."""
    insecure: bool = False
    max_pending: int = MAX_PENDING
    """Limit of accepted calls without an answer, above which the API responds with 503."""
    max_wait_seconds: float = MAX_WAIT_SECONDS
    """Time in the queue after which a call gets status `internal`."""
    prefix: str = PREFIX
    script_seconds: float = SCRIPT_SECONDS
    """Time limit of a program on the routes of code-judge, whose requests have none."""


def create_app(settings: ApiSettings, *, token: str | None) -> FastAPI:
    """Return the application; it connects to Redis when it starts. `token`: required from clients; None: no token."""
    keys = QueueKeys(settings.prefix)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        redis = connect(settings.redis)
        submitter = Submitter(redis, keys, max_wait_seconds=settings.max_wait_seconds)
        submitter.start()
        app.state.admission = CallAdmission(redis, keys, submitter, max_pending=settings.max_pending)
        with watch_loop():
            yield
        await submitter.stop()
        await redis.aclose()

    app = create_documented_app(lifespan, token=bool(token))
    add_error_handlers(app)
    _add_failure_handlers(app)

    def admission() -> CallAdmission:
        current: CallAdmission = app.state.admission
        return current

    async def run(call: CallRequest) -> CallResult:
        verb: Verb = "script" if call.script else "call"
        return await admission().run(call.code, call.stdin, call.limits, verb=verb)

    @app.get("/ping")
    async def ping() -> str:
        """Return `pong`: the process is alive."""
        return "pong"

    @app.get("/v1/status", response_model=JudgeStatus, responses=UNAVAILABLE)
    async def status() -> Response:
        """Return the state of the queue and the workers. `ready` is true if at least one sandbox takes calls."""
        return JSONResponse(await admission().status())

    @app.get("/metrics", response_class=PlainTextResponse, responses=UNAVAILABLE)
    async def metrics() -> Response:
        """Return metrics for Prometheus: calls by status, wait and run times, queue depth, executors."""
        return Response(await admission().metrics(), media_type=CONTENT_TYPE_LATEST)

    @app.post("/v1/run", response_model=CallResult, responses=BAD_BODY)
    async def run_call(call: CallRequest) -> Response:
        """Run one call. Every end of the program is a 200 with a status."""
        admission().admit(1)
        return respond(await run(call))

    @app.post("/v1/batch", response_model=BatchResponse, responses=BAD_BODY)
    async def run_batch(batch: BatchRequest, request: Request) -> Response:
        """Run up to 64 calls. With `Accept: application/x-ndjson` each result is a line with its index.

        The response contains an empty line after every ten seconds without a result, so that clients detect a failure.
        """
        admission().admit(len(batch.calls))
        runs = [asyncio.ensure_future(run(call)) for call in batch.calls]
        if NDJSON in request.headers.get("accept", ""):
            return StreamingResponse(stream_results(runs), media_type=NDJSON)
        return respond(await asyncio.gather(*runs))

    _add_session_routes(app, admission)
    app.include_router(code_judge_compat.create_router(admission, wall_seconds=settings.script_seconds))
    app.add_middleware(BodyLimit)
    if token:
        app.add_middleware(BearerAuth, token=token, is_open=is_open, body=UNAUTHORIZED)
    app.openapi()  # cached now: its generation takes too long for the event loop of the calls
    return app


def _add_failure_handlers(app: FastAPI) -> None:
    """Answer calls that the queue does not take with the status of the reason."""

    @app.exception_handler(QueueFull)
    async def queue_full(request: Request, error: QueueFull) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, status_code=503, headers={"Retry-After": str(error.retry_after)})

    @app.exception_handler(BatchTooLarge)
    async def batch_too_large(request: Request, error: BatchTooLarge) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, status_code=413)

    @app.exception_handler(RedisError)
    @app.exception_handler(OSError)  # includes TimeoutError
    async def redis_unavailable(request: Request, error: Exception) -> JSONResponse:
        detail = {"ready": False, "detail": describe(error)}
        return JSONResponse(detail, status_code=503, headers={"Retry-After": "1"})

    @app.exception_handler(SessionBusy)
    async def session_busy(request: Request, error: SessionBusy) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, status_code=409)


def _add_session_routes(app: FastAPI, admission: Callable[[], CallAdmission]) -> None:
    @app.post("/v1/sessions", response_model=SessionInfo, responses=UNAVAILABLE)
    async def open_session() -> Response:
        """Open a session: a process that keeps its state between cells, in its own namespaces."""
        return JSONResponse({"session": await admission().open_session()})

    @app.post("/v1/sessions/{session}/cells", response_model=CallResult, responses=BAD_BODY | SESSION_BUSY)
    async def run_cell(session: str, cell: CellRequest) -> Response:
        """Run a cell exactly once. Status `session_lost` means that its sandbox or its worker has ended."""
        admission().admit(1)
        return respond(await admission().run_cell(session, cell.code, cell.limits))

    @app.delete("/v1/sessions/{session}", status_code=204, responses=UNAVAILABLE)
    async def close_session(session: str) -> Response:
        """Close a session. The judge closes sessions that have no cell for ten minutes.

        For an unknown session the response is 204 after two seconds: a restarted Redis may not list it yet.
        """
        await admission().close_session(session)
        return Response(status_code=204)


async def stream_results(runs: list[asyncio.Task[CallResult]]) -> AsyncIterator[bytes]:
    """Yield one JSON line per result as they arrive, small ones in one chunk; empty lines as keep-alive."""
    index = {task: number for number, task in enumerate(runs)}
    pending = set(runs)
    while pending:
        done, pending = await asyncio.wait(pending, timeout=ALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            yield b"\n"
            continue
        async for chunk in encode_lines([(index[task], task.result()) for task in done]):
            yield chunk


class _JudgeServer(uvicorn.Server):
    """Prints the ready line, with its address, to stdout when it listens."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if sockets and self.started:
            host, port = sockets[0].getsockname()[:2]
            print(json.dumps({"event": "ready", "role": "judge-api", "host": host, "port": port}), flush=True)


def serve(settings: ApiSettings) -> None:
    """Run the API until SIGTERM. Raises ValueError for an unsafe address, OSError if it cannot listen on the port."""
    token = read_secret(JUDGE_TOKEN)
    check_bind(settings.host, token=token, insecure=settings.insecure)
    listener = bind(settings.host, settings.port)
    config = uvicorn.Config(
        create_app(settings, token=token),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=int(DRAIN_SECONDS),
        timeout_keep_alive=600,  # longer than clients keep a connection: closing one during a request is a failure
        backlog=4096,
    )
    config.load()
    shorten_collections()
    _JudgeServer(config).run(sockets=[listener])
