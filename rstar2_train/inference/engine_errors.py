"""The errors of an engine: a retry may succeed, here or in another engine, or cannot."""

from __future__ import annotations


class EngineUnavailable(Exception):
    """The engine cannot be used now: unreachable, restarting, too slow, or at another weight version."""

    retry_after: float = 0.0
    """Seconds after which the server asks for a retry; 0: it does not."""


class EngineRejected(Exception):
    """The engine is healthy and rejects the request: a retry cannot succeed."""

    status: int = 0
    """HTTP status of the reply; 0: a reply of status 200 that cannot be used."""
