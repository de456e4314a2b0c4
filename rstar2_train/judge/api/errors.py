"""Error responses of the judge's HTTP API: each names the cause and the remedy. Used by `app`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from rstar2_train.utils.auth import JUDGE_TOKEN

UNAUTHORIZED = {
    "detail": "The bearer token is missing or wrong. Send the header `Authorization: Bearer TOKEN` with the token of "
    f"the judge, {JUDGE_TOKEN}."
}
"""Body of the response 401."""
_REMEDIES = {
    "missing": "This field is required.",
    "extra_forbidden": "This field is unknown. The page /docs lists the fields of the route.",
    "model_attributes_type": "This must be a JSON object. The body needs the header Content-Type: application/json.",
    "too_short": "This list is empty; it must have at least one item.",
    "too_long": "This list has {actual_length} items; at most {max_length} are allowed. Send several requests.",
}
"""Type of pydantic's error -> message. Other messages of pydantic state the valid values."""


def add_error_handlers(app: FastAPI) -> None:
    """Answer invalid requests, unknown paths and unreadable bodies with the cause and the remedy."""

    @app.exception_handler(RequestValidationError)
    async def invalid_request(request: Request, error: RequestValidationError) -> JSONResponse:
        # Without the input: it may contain text that cannot be encoded as JSON.
        errors = [{"loc": item["loc"], "msg": _message(item), "type": item["type"]} for item in error.errors()]
        return JSONResponse({"detail": errors}, status_code=422)

    @app.exception_handler(HTTPException)
    async def rejected(request: Request, error: HTTPException) -> JSONResponse:
        path, detail = request.url.path, error.detail
        if error.status_code == 404:
            detail = f"There is no route {path}. The page /docs lists all routes."
        elif error.status_code == 405:
            methods = (error.headers or {}).get("Allow", "another method")
            detail = f"The route {path} does not accept {request.method}; use {methods}."
        elif error.status_code == 400 and error.__cause__ is not None:  # an error of the JSON parser
            cause = str(error.__cause__).partition(";")[0]
            detail = f"The body is not JSON in UTF-8 that this server can parse: {cause}."
        return JSONResponse({"detail": detail}, status_code=error.status_code, headers=error.headers)


def _message(item: Mapping[str, Any]) -> str:
    """Return the message for one error of pydantic."""
    kind, context = item["type"], item.get("ctx", {})
    if kind == "json_invalid":
        return f"The body is not valid JSON at character {item['loc'][-1]}: {context['error']}."
    if kind == "missing" and item["loc"] == ("body",):
        return "The body is empty or null. Send a JSON object with the header Content-Type: application/json."
    remedy = _REMEDIES.get(kind)
    return remedy.format_map(context) if remedy else str(item["msg"]).removeprefix("Value error, ")
