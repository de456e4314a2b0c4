"""Errors in OpenAI's format, of `rstar2 serve` and of the endpoint of agents (`rollout/agent_program`)."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
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


def reject_unsupported(given: Mapping[str, Any], no_op_values: Mapping[str, Sequence[Any]]) -> None:
    """Raise ApiError for a parameter that has an effect. `no_op_values`: values of known ones that have none."""
    for name, value in given.items():
        if value is None or value in no_op_values.get(name, ()):
            continue
        allowed = f" (only {no_op_values[name][0]!r})" if name in no_op_values else ""
        message = f"{name}={reprlib.repr(value)[:80]} is not supported{allowed}: remove it"
        raise ApiError(400, message, param=name, code="unsupported_parameter")
