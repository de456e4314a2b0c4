"""Errors of the endpoint in OpenAI's format. Used by every file of the server."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """An error that is returned to the client."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        """`status`: HTTP status; `param`: the invalid field of the request; `code`: OpenAI's error code."""
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """Return the JSON body of the response."""
        kind = {401: "authentication_error", 503: "service_unavailable"}.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}
