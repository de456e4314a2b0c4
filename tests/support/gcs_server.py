"""Objects of a bucket behind the part of Google's XML API that obstore uses, with its conditions.

The rules are those of https://cloud.google.com/storage/docs/xml-api: a write is conditional by the generation of the
object (0: absent), a read by its ETag. Google itself was never tried.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

_LISTED = "<Contents><Key>{}</Key><Size>{}</Size><LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
_Query = dict[str, str]


class _Object(NamedTuple):
    content: bytes
    generation: int
    etag: str

    def headers(self) -> dict[str, str]:
        date = "Thu, 01 Jan 2026 00:00:00 GMT"
        return {"ETag": self.etag, "x-goog-generation": str(self.generation), "Last-Modified": date}


class _Answer(NamedTuple):
    status: int
    body: bytes = b""
    headers: dict[str, str] = {}  # noqa: RUF012


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    objects: dict[str, _Object]
    parts: dict[str, dict[int, bytes]]
    """Identifier of an upload -> its parts by number."""
    numbers: Iterator[int]
    lock: threading.Lock

    def handle_request(self) -> None:
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

    def answer(self, key: str, query: _Query, body: bytes) -> _Answer:
        if self.command == "PUT" and "uploadId" in query:
            self.parts[query["uploadId"]][int(query["partNumber"])] = body
            return _Answer(200, headers={"ETag": '"part"'})
        if self.command == "PUT":
            return self.put(key, body)
        if self.command == "POST":
            return self.upload(key, query)
        if self.command == "DELETE":
            return _Answer(204 if self.objects.pop(key, None) else 404)
        return self.get(key) if key else self.list(query.get("prefix", ""))

    def get(self, key: str) -> _Answer:
        stored = self.objects.get(key)
        if stored is None:
            return _Answer(404)
        if self.headers.get("If-Match", stored.etag) != stored.etag:
            return _Answer(412)
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if span is None:
            return _Answer(200, stored.content, stored.headers())
        start = int(span[1])
        body = stored.content[start : int(span[2]) + 1 if span[2] else None]
        place = f"bytes {start}-{start + len(body) - 1}/{len(stored.content)}"
        return _Answer(206, body, stored.headers() | {"Content-Range": place})

    def list(self, prefix: str) -> _Answer:
        names = sorted(name for name in self.objects if name.startswith(prefix))
        rows = "".join(_LISTED.format(name, len(self.objects[name].content)) for name in names)
        return _Answer(200, f"<ListBucketResult>{rows}</ListBucketResult>".encode())

    def put(self, key: str, content: bytes) -> _Answer:
        current = self.objects[key].generation if key in self.objects else 0
        if self.headers.get("x-goog-if-generation-match", str(current)) != str(current):
            return _Answer(412)
        digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
        self.objects[key] = _Object(content, next(self.numbers), f'"{digest}"')
        return _Answer(200, headers=self.objects[key].headers())

    def upload(self, key: str, query: _Query) -> _Answer:
        if "uploads" in query:
            upload = str(next(self.numbers))
            self.parts[upload] = {}
            xml = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            return _Answer(200, xml.encode())
        self.put(key, b"".join(part for _, part in sorted(self.parts.pop(query["uploadId"]).items())))
        xml = f"<CompleteMultipartUploadResult><ETag>{self.objects[key].etag}</ETag></CompleteMultipartUploadResult>"
        return _Answer(200, xml.encode(), self.objects[key].headers())


@contextlib.contextmanager
def gcs_server() -> Iterator[str]:
    """Run a server without objects, whose buckets are all the same; yield its address."""
    state = {"objects": {}, "parts": {}, "numbers": itertools.count(1), "lock": threading.Lock()}
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), state)) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
