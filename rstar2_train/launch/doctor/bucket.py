"""The operations of a bucket that jobs need, tried on objects below a prefix, which are deleted again."""

from __future__ import annotations

from rstar2_train.api.sources import BucketSource
from rstar2_train.api.storage import StorageSpec
from rstar2_train.launch.doctor.findings import Finding, ok
from rstar2_train.storage.probe import probe
from rstar2_train.storage.source import open_source
from rstar2_train.storage.store import StorageRejected

REMEDIES = {
    "put if absent": "credentials with the right to write, and a server with If-None-Match: docs/storage.md",
    "put if unchanged": "a server with If-Match: docs/storage.md",
    "upload in parts": "the right to upload in parts (s3:AbortMultipartUpload too)",
    "read a range": "the right to read (s3:GetObject)",
    "list": "the right to list (s3:ListBucket)",
    "delete": "the right to delete (s3:DeleteObject)",
}
PATIENCE_SECONDS = 10.0
"""Seconds for the retries of one operation."""


def examine(source: BucketSource, settings: StorageSpec) -> list[Finding]:
    """Return a finding for each operation, the last one for the first that fails."""
    try:
        bucket = open_source(source, settings, patience=PATIENCE_SECONDS, prefix=source.key)
    except StorageRejected as error:
        return [Finding("bucket", "missing", str(error), "correct the address: docs/storage.md")]
    return [
        ok(name, bucket.address) if not error else Finding(name, "missing", error, REMEDIES[name])
        for name, error in probe(bucket)
    ]
