"""The part of Google's XML API that obstore uses.

The rules are those of https://cloud.google.com/storage/docs/xml-api: a write is conditional by the generation of the
object (0: absent), a read by its ETag.
"""

from __future__ import annotations

import contextlib
import hashlib

from tests.support.cloud_server import Answer, CloudHandler, CloudObject, Query, cloud_server

_LISTED = "<Contents><Key>{}</Key><Size>{}</Size><LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"


class _Handler(CloudHandler):
    def answer(self, key: str, query: Query, body: bytes) -> Answer:
        if self.command == "PUT" and "uploadId" in query:
            self.parts[query["uploadId"]][query["partNumber"]] = body
            return Answer(200, headers={"ETag": '"part"'})
        if self.command == "PUT":
            return self.put(key, body)
        if self.command == "POST":
            return self.upload(key, query)
        if self.command == "DELETE":
            return Answer(204 if self.objects.pop(key, None) else 404)
        return self.get(key) if key else self.list(query.get("prefix", ""))

    def headers_of(self, stored: CloudObject) -> dict[str, str]:
        return super().headers_of(stored) | {"x-goog-generation": str(stored.generation)}

    def list(self, prefix: str) -> Answer:
        rows = "".join(_LISTED.format(name, len(stored.content)) for name, stored in self.listed(prefix))
        return Answer(200, f"<ListBucketResult>{rows}</ListBucketResult>".encode())

    def put(self, key: str, content: bytes) -> Answer:
        current = self.objects[key].generation if key in self.objects else 0
        if self.headers.get("x-goog-if-generation-match", str(current)) != str(current):
            return Answer(412)
        digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
        self.objects[key] = CloudObject(content, next(self.numbers), f'"{digest}"')
        return Answer(200, headers=self.headers_of(self.objects[key]))

    def upload(self, key: str, query: Query) -> Answer:
        if "uploads" in query:
            upload = str(next(self.numbers))
            self.parts[upload] = {}
            xml = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            return Answer(200, xml.encode())
        parts = self.parts.pop(query["uploadId"])
        self.put(key, b"".join(parts[number] for number in sorted(parts, key=int)))
        xml = f"<CompleteMultipartUploadResult><ETag>{self.objects[key].etag}</ETag></CompleteMultipartUploadResult>"
        return Answer(200, xml.encode(), self.headers_of(self.objects[key]))


def gcs_server() -> contextlib.AbstractContextManager[str]:
    """Run a server of Google's API without objects; the block gets its address."""
    return cloud_server(_Handler)
