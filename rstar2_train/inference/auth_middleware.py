"""Token check in front of every route of an engine but its health and its metrics.

vLLM's own API key leaves the administration routes open (load weights, pause, call any worker method), and those are
what the trainer needs. `server.py` puts this ASGI class in front (`--middleware`); the token is in the environment.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from rstar2_train.utils.auth import bears

TOKEN_VARIABLE = "RSTAR2_ENGINE_TOKEN"
"""Environment variable with the token that engine and trainer share."""
MIN_TOKEN_LENGTH = 16
OPEN_PATHS = frozenset({"/health", "/metrics"})
"""Routes that need no token: probes and the metrics scraper have none."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


def read_token() -> str:
    """The token from the environment. Raises ValueError when it is missing or too short to mean anything."""
    token = os.environ.get(TOKEN_VARIABLE, "")
    if len(token) < MIN_TOKEN_LENGTH:
        raise ValueError(
            f"{TOKEN_VARIABLE} must hold a token of at least {MIN_TOKEN_LENGTH} characters (it has {len(token)}): "
            "it guards the engine's administration routes"
        )
    return token


class RequireToken:
    """ASGI middleware: `Authorization: Bearer <token>` or 401."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._token = read_token()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        kind = scope["type"]
        if kind == "lifespan" or (kind == "http" and self._allowed(scope)):
            await self._app(scope, receive, send)
        elif kind == "http":
            headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b'{"error": "a bearer token is required"}'})
        else:  # websockets: no route here needs one
            await send({"type": "websocket.close", "code": 1008})

    def _allowed(self, scope: Scope) -> bool:
        if scope["path"] in OPEN_PATHS:
            return True
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return bears(given, self._token)
