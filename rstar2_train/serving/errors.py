"""What a client is told when it cannot be served: OpenAI's form of an error. Used by every file of the server."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """An error that a client sees, in OpenAI's form."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        """`status`: of HTTP; `param`: the field of the request that is at fault; `code`: OpenAI's word for it."""
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """As JSON-ready fields."""
        kind = {401: "authentication_error", 503: "service_unavailable"}.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}
