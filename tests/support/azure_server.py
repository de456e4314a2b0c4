"""The part of Azure's Blob service that obstore uses.

The rules are those of https://learn.microsoft.com/rest/api/storageservices: a write is conditional by If-None-Match (an
existing blob: 409) and If-Match (another ETag, or no blob: 412), blocks become a blob by their list, and deletions
arrive as a batch whose answer has one status per blob.
"""

from __future__ import annotations

import contextlib
import re
from urllib.parse import unquote

from tests.support.cloud_server import Answer, CloudHandler, CloudObject, Query, cloud_server

_LISTED = (
    "<Blob><Name>{}</Name><Properties><Last-Modified>Thu, 01 Jan 2026 00:00:00 GMT</Last-Modified>"
    "<Etag>{}</Etag><Content-Length>{}</Content-Length><Content-Type>application/octet-stream</Content-Type>"
    "</Properties></Blob>"
)
_HTTP = "HTTP/1.1"
_DELETED = re.compile(r"Content-ID: (\d+)\r\n\r\nDELETE /[^/ ]+/(\S+) " + _HTTP)


class _Handler(CloudHandler):
    def answer(self, key: str, query: Query, body: bytes) -> Answer:
        if self.command == "PUT" and query.get("comp") == "block":
            self.parts.setdefault(key, {})[query["blockid"]] = body
            return Answer(201)
        if self.command == "PUT":
            return self.put(key, query, body)
        if self.command == "POST":
            return self.delete_batch(body.decode())
        if not key:
            return self.list(query.get("prefix", ""))
        return self.get(key) if key in self.objects else _error(404, "BlobNotFound")

    def list(self, prefix: str) -> Answer:
        rows = [_LISTED.format(name, stored.etag, len(stored.content)) for name, stored in self.listed(prefix)]
        return Answer(200, f"<EnumerationResults><Blobs>{''.join(rows)}</Blobs></EnumerationResults>".encode())

    def put(self, key: str, query: Query, body: bytes) -> Answer:
        current = self.objects.get(key)
        if current is not None and self.headers.get("If-None-Match") == "*":
            return _error(409, "BlobAlreadyExists")
        wanted = self.headers.get("If-Match")
        if wanted is not None and (current is None or current.etag != wanted):
            return _error(412, "ConditionNotMet")
        if query.get("comp") == "blocklist":
            blocks = self.parts.pop(key)
            body = b"".join(blocks[block] for block in re.findall("<Uncommitted>(.+?)</", body.decode()))
        elif self.headers.get("x-ms-blob-type") != "BlockBlob":
            return _error(400, "MissingRequiredHeader")
        number = next(self.numbers)
        self.objects[key] = CloudObject(body, number, f'"0x{number:015X}"')
        return Answer(201, headers=self.headers_of(self.objects[key]))

    def delete_batch(self, body: str) -> Answer:
        parts = "".join(self.delete(*deletion) for deletion in _DELETED.findall(body))
        return Answer(202, f"{parts}--answer--\r\n".encode(), {"Content-Type": "multipart/mixed; boundary=answer"})

    def delete(self, number: str, key: str) -> str:
        status = "202 Accepted" if self.objects.pop(unquote(key), None) else "404 The specified blob does not exist."
        return f"--answer\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\n{_HTTP} {status}\r\n\r\n\r\n"


def _error(status: int, code: str) -> Answer:
    body = f'<?xml version="1.0" encoding="utf-8"?><Error><Code>{code}</Code></Error>'
    return Answer(status, body.encode(), {"x-ms-error-code": code})


def azure_server() -> contextlib.AbstractContextManager[str]:
    """Run a server of Azure's API without blobs; the block gets its address."""
    return cloud_server(_Handler)
