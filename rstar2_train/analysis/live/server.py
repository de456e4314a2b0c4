"""Serves the live view to one user's browser on this machine.

Trajectories contain texts of models, which may be hostile, and training data, which may be private. So:

- the server listens on 127.0.0.1 only, and every path starts with a random token that only the printed address has:
  other users and pages of other sites cannot read it;
- a request whose Host is not this machine is rejected, which stops DNS rebinding;
- the Content-Security-Policy allows scripts and requests of this server only, and the page inserts texts as text nodes.

The server only reads.
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from rstar2_train.analysis.live.job import LiveJob
from rstar2_train.analysis.sources import AnalysisError
from rstar2_train.utils.html import render_template

ADDRESS = "127.0.0.1"
HOSTS = frozenset({ADDRESS, "localhost"})
"""Names in the Host header that are this machine, also through a forwarded port."""
_FOLDER = Path(__file__).parent
_ANALYSIS = _FOLDER.parent
_SCRIPT, _STYLE = "text/javascript; charset=utf-8", "text/css; charset=utf-8"
FILES: Mapping[str, tuple[Path, str]] = {
    "viewer.js": (_ANALYSIS / "viewer.js", _SCRIPT),
    "trajectory.js": (_ANALYSIS / "trajectory.js", _SCRIPT),
    "style.css": (_ANALYSIS / "style.css", _STYLE),
    "live.js": (_FOLDER / "live.js", _SCRIPT),
    "uPlot.js": (_FOLDER / "vendor" / "uPlot.js", _SCRIPT),
    "uPlot.css": (_FOLDER / "vendor" / "uPlot.css", _STYLE),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class ViewServer(ThreadingHTTPServer):
    """The server of one job's view. `serve_forever` runs it."""

    daemon_threads = True

    def __init__(self, job: LiveJob, *, name: str, port: int = 0) -> None:
        """`name`: name of the job. `port`: 0 takes a free one. Raises OSError if another server has the port."""
        super().__init__((ADDRESS, port), ViewRequest)
        self.job = job
        self.token = secrets.token_urlsafe(16)
        self.page = render_template(_ANALYSIS / "viewer.html.jinja", job=name, live=True).encode()

    @property
    def url(self) -> str:
        """Address of the page, with its token."""
        return f"http://{ADDRESS}:{self.server_port}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error of a request, unless the browser closed the connection."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class ViewRequest(BaseHTTPRequestHandler):
    """Answers one browser's requests."""

    server: ViewServer
    protocol_version = "HTTP/1.1"
    server_version = "rstar2"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer a request for the page, its files, or the job's data."""
        parts = urlsplit(self.path)
        _, token, *rest = parts.path.split("/")
        if (self.headers.get("Host") or "").partition(":")[0] not in HOSTS:
            return self._error(HTTPStatus.MISDIRECTED_REQUEST, "this server answers 127.0.0.1 and localhost only")
        if not secrets.compare_digest(token.encode(), self.server.token.encode()) or len(rest) != 1:
            return self._error(HTTPStatus.NOT_FOUND, "open the address that rstar2 view printed, with its token")
        name = rest[0]
        if name == "":
            return self._answer(self.server.page, "text/html; charset=utf-8")
        if name in FILES:
            path, kind = FILES[name]
            return self._answer(path.read_bytes(), kind)
        query = {key: values[-1] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        try:
            call = self._call(name, query)
        except (KeyError, ValueError) as error:
            return self._error(HTTPStatus.BAD_REQUEST, f"invalid query: {error!r}")
        if call is None:
            return self._error(HTTPStatus.NOT_FOUND, f"no {name!r}")
        try:
            body = json.dumps(call(), separators=(",", ":")).encode()
        except (AnalysisError, OSError, ValueError) as error:  # a file that was deleted or is damaged
            return self._error(HTTPStatus.CONFLICT, str(error))
        self._answer(body, "application/json")

    def _call(self, name: str, query: Mapping[str, str]) -> Callable[[], object] | None:
        """Return the call that a request names; None for an unknown name. Raises KeyError, ValueError."""
        job = self.server.job
        if name == "news.json":
            return partial(job.news, int(query["generation"]), int(query["rows"]), int(query["points"]))
        if name == "trajectory.json":
            return partial(job.trajectory, int(query["generation"]), int(query["row"]))
        if name == "search.json":
            return partial(job.search, int(query["generation"]), query["text"])
        return None

    def _error(self, status: HTTPStatus, message: str) -> None:
        self._answer(json.dumps({"error": message}).encode(), "application/json", status)

    def _answer(self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        for header, value in HEADERS.items():
            self.send_header(header, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the terminal shows the address."""
