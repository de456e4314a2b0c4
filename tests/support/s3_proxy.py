"""An HTTP proxy before an S3 server that counts requests and spoils some of them as a test asks."""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

Fault = Literal["", "500", "503", "reset", "lost-answer", "truncate", "flip", "flip-request", "stall", "redirect"]
FAULTS: tuple[Fault, ...] = ("500", "503", "reset", "lost-answer", "truncate", "flip", "flip-request", "stall")
"""Every fault of a line or a server. `lost-answer`: the server handles the request, the client gets a reset."""


@dataclass(frozen=True, slots=True)
class ProxiedRequest:
    """One request of the client."""

    number: int
    """1 for the first request after the start of the proxy."""
    method: str
    path: str


class S3Proxy:
    """The running proxy."""

    def __init__(self, upstream: int) -> None:
        self.requests: list[ProxiedRequest] = []
        self.before: Callable[[ProxiedRequest], Fault] = lambda request: ""
        """Called before a request is forwarded; returns its fault."""
        self.after: Callable[[ProxiedRequest], None] = lambda request: None
        """Called when the server has handled a request, before the client gets the answer."""
        self.redirect = ""
        """Location of the fault `redirect`."""
        self.lock = threading.Lock()
        proxy = self

        class Handler(_Handler):
            owner, server_port = proxy, upstream

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True

    @property
    def url(self) -> str:
        """Address of the proxy."""
        return f"http://127.0.0.1:{self.server.server_port}"

    def count(self, method: str, path: str) -> ProxiedRequest:
        """Record a request."""
        with self.lock:
            request = ProxiedRequest(len(self.requests) + 1, method, path)
            self.requests.append(request)
            return request


class _Handler(BaseHTTPRequestHandler):
    owner: S3Proxy
    server_port: int
    protocol_version = "HTTP/1.1"
    timeout = 30

    def handle_one_request(self) -> None:
        with contextlib.suppress(OSError):
            super().handle_one_request()
            return
        self.close_connection = True

    def forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = self.owner.count(self.command, self.path)
        fault = self.owner.before(request)
        if fault == "reset":
            return self.reset()
        if fault == "stall":
            time.sleep(1.5)  # longer than the client waits
            return self.reset()
        if fault in ("500", "503"):
            return self.answer(int(fault), [], b"<Error><Code>SlowDown</Code><Message>busy</Message></Error>")
        if fault == "redirect":
            return self.answer(307, [("Location", self.owner.redirect + self.path)], b"")
        if fault == "flip-request":
            body = flipped(body)
        upstream = http.client.HTTPConnection("127.0.0.1", self.server_port, timeout=30)
        path = self.path if self.path.startswith("/") else "/" + self.path.split("/", 3)[3]
        upstream.request(self.command, path, body, dict(self.headers.items()))
        response = upstream.getresponse()
        content = response.read()
        self.owner.after(request)
        if fault == "lost-answer":
            return self.reset()
        headers = [(name, value) for name, value in response.getheaders() if name.lower() != "transfer-encoding"]
        length = int(response.getheader("Content-Length") or len(content))
        if fault == "flip":
            content = flipped(content)
        if fault == "truncate" and content:
            self.answer(response.status, headers, content[: len(content) // 2], length=length)
            return self.reset()
        self.answer(response.status, headers, content, length=length)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward

    def answer(self, status: int, headers: list[tuple[str, str]], body: bytes, *, length: int | None = None) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "connection"):
                self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    def reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def log_message(self, format: str, *args: object) -> None:
        pass


def flipped(body: bytes) -> bytes:
    """Return the bytes with one changed bit in the middle."""
    if not body:
        return body
    middle = len(body) // 2
    return body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]


@contextlib.contextmanager
def s3_proxy(upstream: int) -> Iterator[S3Proxy]:
    """Run a proxy before the server on a port of this machine."""
    proxy = S3Proxy(upstream)
    thread = threading.Thread(target=proxy.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.server.shutdown()
        proxy.server.server_close()
