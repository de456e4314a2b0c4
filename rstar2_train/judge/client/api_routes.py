"""The routes of the judge's API and the bodies of requests, as its clients need them."""

from __future__ import annotations

from functools import cached_property

from rstar2_train.utils.http_connections import Route


class ApiRoutes:
    """The routes of one judge. They raise ValueError if its URL is invalid."""

    def __init__(self, url: str, token: str) -> None:
        """`token`: bearer token; empty: none."""
        self.url = url
        self._token = token

    @cached_property
    def batch(self) -> Route:
        """Calls, whose results arrive as lines of JSON."""
        return self._route("/v1/batch", accept="application/x-ndjson")

    @cached_property
    def status(self) -> Route:
        """The state of the judge."""
        return self._route("/v1/status", method="GET")

    @cached_property
    def sessions(self) -> Route:
        """New sessions."""
        return self._route("/v1/sessions")

    def cells(self, session: str) -> Route:
        """Return the route of a session's cells."""
        return self._route(f"/v1/sessions/{session}/cells")

    def end(self, session: str) -> Route:
        """Return the route that closes a session."""
        return self._route(f"/v1/sessions/{session}", method="DELETE")

    def _route(self, path: str, *, method: str = "POST", accept: str = "*/*") -> Route:
        return Route.from_url(
            self.url + path, token=self._token, method=method, content_type="application/json", accept=accept
        )
