"""What the judge's HTTP API takes and answers, and how its OpenAPI page tells that.

Read by `api`, whose routes these belong to. The page and all that it loads come from this machine (fastapi-offline has
the files of Swagger UI): judges run where there is no way out.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi_offline import FastAPIOffline
from pydantic import BaseModel, ConfigDict, Field

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.sandbox.oci_bundle import Isolation
from rstar2_train.judge.types import MAX_BATCH, Status

TITLE = "rStar2 Code Judge"
VERSION = "v1"
OPEN = ("/ping", "/metrics")
"""Routes that ask for no token: they tell how the judge does, nothing of what it runs."""
PAGE = ("/docs", "/openapi.json")
"""The page asks for none either: what it tells is in the public sources. It sends the token that is typed into it."""
PAGE_FILES = "/docs/files"

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


class CallRequest(BaseModel):
    """One call."""

    model_config = ConfigDict(extra="forbid")

    code: str
    """Python source."""
    stdin: str = ""
    """What it may read from its standard input."""
    limits: JudgeLimits = JudgeLimits()
    """Limits; the defaults are the manifest's."""


class CellRequest(BaseModel):
    """One cell of a session. It has no standard input."""

    model_config = ConfigDict(extra="forbid")

    code: str
    """Python source. It has what the cells before it defined."""
    limits: JudgeLimits = JudgeLimits()
    """Limits of this cell; memory and processes are the session's, set by its first cell."""


class BatchRequest(BaseModel):
    """Several calls, answered together, or one by one with `Accept: application/x-ndjson`."""

    model_config = ConfigDict(extra="forbid")

    calls: Annotated[list[CallRequest], Field(min_length=1, max_length=MAX_BATCH)]
    """At most 64 calls."""


class SessionInfo(BaseModel):
    """A session."""

    session: str
    """Its name, which nobody can guess."""


class CallResponse(BaseModel):
    """How a call ended."""

    status: Status
    stdout: str
    stderr: str
    exit_code: int | None
    queue_seconds: float
    run_seconds: float
    session_lives: bool
    """Of a cell: whether its session goes on."""


class BatchResponse(BaseModel):
    """Results in the order of the calls."""

    results: list[CallResponse]


class ExecutorCounts(BaseModel):
    """Sandboxes of all workers."""

    model_config = ConfigDict(extra="forbid")

    ready: int
    configured: int
    busy: int


class WorkerReport(BaseModel):
    """What a worker told of itself, a second ago at most."""

    model_config = ConfigDict(extra="forbid")

    name: str
    executors: int
    ready: int
    busy: int
    recycled: int
    """Sandboxes thrown away so far."""
    isolation: Isolation
    hugePages: bool
    calls: int
    """Answered so far."""
    sessions: int
    held: int
    """Calls taken from the queue and not answered."""


class JudgeStatus(BaseModel):
    """Queue and workers."""

    model_config = ConfigDict(extra="forbid")

    ready: bool
    """At least one sandbox takes calls."""
    queued: int
    """Calls in Redis, those being run included."""
    pending: int
    """Calls of this API process not answered yet."""
    resubmitted: int
    """Calls that Redis lost and that went again."""
    executors: ExecutorCounts
    workers: list[WorkerReport]


class ErrorResponse(BaseModel):
    """Why there is no answer."""

    detail: str


def _problem(description: str) -> dict[str, Any]:
    return {"model": ErrorResponse, "description": description}


RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}
NO_REDIS: dict[int | str, dict[str, Any]] = {
    503: _problem("Too busy, or Redis is away or refuses: nothing was run, ask again.") | {"headers": RETRY_AFTER}
}
BAD_BODY: dict[int | str, dict[str, Any]] = NO_REDIS | {400: _problem("The body is no text.")}
TOO_MANY: dict[int | str, dict[str, Any]] = {413: _problem("More calls in one request than are ever taken.")}
SESSION_BUSY: dict[int | str, dict[str, Any]] = {409: _problem("The session is still running a cell.")}


def make_documented(lifespan: Lifespan, *, token: bool) -> FastAPI:
    """An application with the page at /docs. `token`: one is asked for, so the page can send one (Authorize)."""
    app = FastAPIOffline(title=TITLE, version=VERSION, lifespan=lifespan, redoc_url=None, static_url=PAGE_FILES)

    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = get_openapi(title=TITLE, version=VERSION, routes=app.routes)
            if token:
                _ask_for_token(app.openapi_schema)
        return app.openapi_schema

    app.openapi = describe  # type: ignore[method-assign]
    return app


def _ask_for_token(schema: dict[str, Any]) -> None:
    """Adds the bearer token, and the answer 401, to every route that asks for it."""
    schema["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for path, operations in schema["paths"].items():
        if path not in OPEN:
            for operation in operations.values():
                operation["security"] = [{"bearer": []}]
                operation["responses"]["401"] = {"description": "No token, or a wrong one.", "content": content}
