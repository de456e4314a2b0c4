"""Tokens and passwords: their environment variables, their reader, and the check of requests.

Every process reads its secrets here, so that `NAME_FILE` works for each of them. Imports the standard library only,
because every image uses it.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import os
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, Final

ENGINE_TOKEN: Final = "RSTAR2_ENGINE_TOKEN"
"""Token of the engines (inference servers)."""
JUDGE_TOKEN: Final = "RSTAR2_JUDGE_TOKEN"
"""Token of the judge's API."""
SERVE_TOKEN: Final = "RSTAR2_SERVE_TOKEN"
"""Token of the endpoint of `rstar2 serve`."""
AGENT_TOKEN: Final = "RSTAR2_AGENT_TOKEN"
"""Token of the pods that run an agent's programs."""
TEACHER_TOKEN: Final = "RSTAR2_TEACHER_TOKEN"
"""Token of a teacher's server, which another operator runs."""
ALIVE_FILE: Final = "RSTAR2_ALIVE_FILE"
"""File that a judge worker touches while it works, for a probe."""
REDIS_PASSWORD: Final = "RSTAR2_REDIS_PASSWORD"
"""Password of the judge's Redis."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
UNAUTHORIZED = {"detail": "The bearer token is missing or wrong."}


def read_secret(name: str) -> str | None:
    """Return the secret in the environment variable `name`, or in the file that `name`_FILE names; None if unset.

    Raises OSError for a file that cannot be read.
    """
    file = os.environ.get(f"{name}_FILE")
    if file:
        try:
            return Path(file).read_text(encoding="utf-8").strip() or None
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror}; {name}_FILE names this file", file) from error
    return os.environ.get(name) or None


def secret_env(name: str, value: str) -> dict[str, str]:
    """Return the variables that give a child process this secret, also if its parent's `name`_FILE is set."""
    return {name: value, f"{name}_FILE": ""}


def is_authorized(header: bytes, token: str) -> bool:
    """Return whether an Authorization header is `Bearer` (in any case) and the token. Compares in constant time."""
    scheme, _, given = header.partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(given, token.encode())


class BearerAuth:
    """ASGI middleware: reject requests without the bearer token with 401, except requests to open paths.

    It reads no body before the check. A request with several Authorization headers is rejected, and WebSockets are
    closed: no server here uses them. Starlette's BaseHTTPMiddleware would add half a millisecond per request.
    """

    def __init__(
        self,
        app: Application,
        *,
        token: str,
        is_open: Callable[[str], bool],
        body: Mapping[str, Any] = UNAUTHORIZED,
    ) -> None:
        """`is_open`: whether a path needs no token. `body`: JSON body of the response 401."""
        self._app = app
        self._token = token
        self._is_open = is_open
        self._body = json.dumps(body).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application, or reject it."""
        kind = scope["type"]
        if kind == "lifespan" or (kind == "http" and (self._is_open(scope["path"]) or self._is_authorized(scope))):
            await self._app(scope, receive, send)
        elif kind == "http":
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(self._body)).encode()),
                (b"www-authenticate", b"Bearer"),
            ]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": self._body})
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _is_authorized(self, scope: Scope) -> bool:
        headers = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(headers) == 1 and is_authorized(headers[0], self._token)


def check_bind(host: str, *, token: str | None, insecure: bool, variable: str = JUDGE_TOKEN) -> None:
    """Raise ValueError for an address that other machines can reach, if no token is required from them.

    `variable`: environment variable of the token, for the message.
    """
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if not loopback and not token and not insecure:
        raise ValueError(
            f"--host {host} without a token lets everyone who can reach this machine run code on it. "
            f"Set {variable} or {variable}_FILE, use --host 127.0.0.1, or pass --insecure."
        )
