"""Token check of an engine: every route except its health and its metrics requires the bearer token.

vLLM's own API key leaves the administration routes open (load weights, pause, call any worker method). `server.py`
starts vLLM with this ASGI middleware (`--middleware`); the token is in the environment.
"""

from __future__ import annotations

from rstar2_train.utils.auth import ENGINE_TOKEN, Application, BearerAuth, read_secret

MIN_TOKEN_LENGTH = 16
OPEN_PATHS = frozenset({"/health", "/metrics"})
"""Routes without a token: probes and the metrics scraper have none."""


def read_token() -> str:
    """Return the token from the environment. Raises ValueError if it is missing or too short."""
    token = read_secret(ENGINE_TOKEN) or ""
    if len(token) < MIN_TOKEN_LENGTH:
        raise ValueError(
            f"{ENGINE_TOKEN} must hold a token of at least {MIN_TOKEN_LENGTH} characters (it has {len(token)}): "
            "it protects the engine's administration routes"
        )
    return token


class RequireToken(BearerAuth):
    """BearerAuth with the engine's token. vLLM creates it with the application as the only argument."""

    def __init__(self, app: Application) -> None:
        body = {"error": "a bearer token is required"}
        super().__init__(app, token=read_token(), is_open=OPEN_PATHS.__contains__, body=body)
