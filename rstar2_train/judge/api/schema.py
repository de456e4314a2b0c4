"""Request and response models of the judge's HTTP API, and its OpenAPI page.

Used by the routes of `app`. The API serves the page and all its files itself (fastapi-offline contains Swagger UI),
because judges run without internet access.
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
from rstar2_train.judge.types import MAX_BATCH, CallResult
from rstar2_train.utils.json_route import JsonRoute

TITLE = "rStar2 Code Judge"
VERSION = "v1"
OPEN_PATHS = ("/ping", "/metrics")
"""Routes without a token: they report on the judge itself, and nothing about the calls that it runs."""
PAGE_PATHS = ("/docs", "/openapi.json")
"""The OpenAPI page needs no token: its content is public. It sends the token that the user enters ("Authorize")."""
PAGE_FILES = "/docs/files"

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


class ApiMessage(BaseModel):
    """Base of requests and responses. The docstrings of the fields are their descriptions on the OpenAPI page."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class CallRequest(ApiMessage, extra="forbid"):
    """One call."""

    code: str
    """Python source."""
    stdin: str = ""
    """Standard input of the program."""
    script: bool = False
    """Run it as `python FILE` does: the value of a last expression is not printed, and magics are errors."""
    limits: JudgeLimits = JudgeLimits()
    """Limits; the defaults are those of a manifest."""


class CellRequest(ApiMessage, extra="forbid"):
    """One cell of a session. It has no standard input."""

    code: str
    """Python source. It can use all names that earlier cells defined."""
    limits: JudgeLimits = JudgeLimits()
    """Limits of this cell. Memory and processes are limits of the session, set by its first cell."""


class BatchRequest(ApiMessage, extra="forbid"):
    """Several calls, answered together, or one by one with `Accept: application/x-ndjson`."""

    calls: Annotated[list[CallRequest], Field(min_length=1, max_length=MAX_BATCH)]
    """At most 64 calls."""


class SessionInfo(ApiMessage):
    """A session."""

    session: str
    """Random id of the session."""


class BatchResponse(ApiMessage):
    """Results in the order of the calls."""

    results: list[CallResult]
    """One result per call."""


class ExecutorCounts(ApiMessage, extra="forbid"):
    """Number of sandboxes of all workers."""

    ready: int
    """Sandboxes that take calls."""
    configured: int
    """Sandboxes that the workers should have."""
    busy: int
    """Sandboxes with a call in flight."""


class WorkerReport(ApiMessage, extra="forbid"):
    """The last report of a worker, at most a second old."""

    name: str
    """Unique name of the worker process."""
    executors: int
    """Sandboxes that it should have."""
    ready: int
    """Sandboxes that take calls."""
    busy: int
    """Sandboxes with a call in flight."""
    recycled: int
    """Sandboxes that ended and were replaced."""
    isolation: Isolation
    """`gvisor`, or `none`: calls run unprotected."""
    huge_pages: bool
    """Whether the node gives gVisor huge pages, which make forks two to three times cheaper."""
    calls: int
    """Answered calls."""
    sessions: int
    """Live sessions."""
    held: int
    """Calls leased from the queue and not answered."""


class JudgeStatus(ApiMessage, extra="forbid"):
    """State of the queue and the workers."""

    ready: bool
    """Whether at least one sandbox takes calls."""
    queued: int
    """Calls in Redis, including running calls."""
    pending: int
    """Unanswered calls of this API process."""
    resubmitted: int
    """Calls that Redis lost and this API process submitted again."""
    executors: ExecutorCounts
    """Number of sandboxes of all workers."""
    workers: list[WorkerReport]
    """One report per worker."""


class ErrorResponse(ApiMessage):
    """The reason why a request failed."""

    detail: str
    """The cause and the fix."""


def _error(description: str) -> dict[str, Any]:
    return {"model": ErrorResponse, "description": description}


RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait before a retry.", "schema": {"type": "integer"}}}
UNAVAILABLE: dict[int | str, dict[str, Any]] = {
    503: _error("The queue is full, or Redis is unreachable or refuses. Nothing was run; retry.")
    | {"headers": RETRY_AFTER}
}
BAD_BODY: dict[int | str, dict[str, Any]] = UNAVAILABLE | {
    400: _error("The body is not valid UTF-8."),
    413: _error("The body is larger than its limit, or contains more calls than the limit of pending calls."),
}
SESSION_BUSY: dict[int | str, dict[str, Any]] = {409: _error("The session is running a cell.")}


def create_documented_app(lifespan: Lifespan, *, token: bool) -> FastAPI:
    """Return an application with an OpenAPI page at /docs. `token`: whether its routes require a token."""
    app = FastAPIOffline(title=TITLE, version=VERSION, lifespan=lifespan, redoc_url=None, static_url=PAGE_FILES)
    app.router.route_class = JsonRoute

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = get_openapi(title=TITLE, version=VERSION, routes=app.routes)
            if token:
                _require_token(app.openapi_schema)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
    return app


def is_open(path: str) -> bool:
    """Return whether a path needs no token."""
    return path in OPEN_PATHS or path in PAGE_PATHS or path.startswith(f"{PAGE_FILES}/")


def _require_token(schema: dict[str, Any]) -> None:
    """Add the bearer token and the response 401 to every operation that requires a token."""
    schema["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{ErrorResponse.__name__}"}}}
    for path, operations in schema["paths"].items():
        if not is_open(path):
            for operation in operations.values():
                operation["security"] = [{"bearer": []}]
                operation["responses"]["401"] = {"description": "The token is missing or wrong.", "content": content}
