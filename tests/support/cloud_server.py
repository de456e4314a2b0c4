"""Objects of a bucket behind a part of a vendor's API, for tests of the client's conditions.

`gcs_server` and `azure_server` have the rules of their vendor. The vendors themselves were never tried.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

Query = dict[str, str]


class CloudObject(NamedTuple):
    """An object of the server."""

    content: bytes
    generation: int
    """Number of the write, unique on the server."""
    etag: str


class Answer(NamedTuple):
    """The answer to a request."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = {}  # noqa: RUF012


class CloudHandler(BaseHTTPRequestHandler, ABC):
    """The requests that the vendors share. All buckets are the same."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a body then does not wait for the receipt of its headers
    objects: dict[str, CloudObject]
    parts: dict[str, dict[str, bytes]]
    """Identifier of an upload -> its parts by identifier."""
    numbers: Iterator[int]
    lock: threading.Lock

    def handle_request(self) -> None:
        """Answer one request."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        key = unquote(url.path).lstrip("/").partition("/")[2]
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        with self.lock:
            answer = self.answer(key, query, body)
        self.send_response_only(answer.status)
        for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_request

    @abstractmethod
    def answer(self, key: str, query: Query, body: bytes) -> Answer:
        """Return the answer to a request. `key`: name of the object; empty: the bucket."""

    def headers_of(self, stored: CloudObject) -> dict[str, str]:
        """Return the headers of an object's version."""
        return {"ETag": stored.etag, "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}

    def get(self, key: str) -> Answer:
        """Return an object or a range of it, if it has the version of If-Match."""
        stored = self.objects.get(key)
        if stored is None:
            return Answer(404)
        if self.headers.get("If-Match", stored.etag) != stored.etag:
            return Answer(412)
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if span is None:
            return Answer(200, stored.content, self.headers_of(stored))
        start = int(span[1])
        body = stored.content[start : int(span[2]) + 1 if span[2] else None]
        place = f"bytes {start}-{start + len(body) - 1}/{len(stored.content)}"
        return Answer(206, body, self.headers_of(stored) | {"Content-Range": place})

    def listed(self, prefix: str) -> Iterator[tuple[str, CloudObject]]:
        """Yield the names and objects below a prefix, sorted."""
        yield from sorted((name, stored) for name, stored in self.objects.items() if name.startswith(prefix))


@contextlib.contextmanager
def cloud_server(kind: type[CloudHandler], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Run a server without objects; yield its address."""
    state = {"objects": {}, "parts": {}, "numbers": itertools.count(1), "lock": threading.Lock()}
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (kind,), state)) as server:
        server.daemon_threads = True
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
