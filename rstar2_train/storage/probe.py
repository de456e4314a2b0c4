"""Tries the operations that publications need, on objects of its own, which it deletes."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path

from rstar2_train.storage.store import ObjectChanged, ObjectExists, ObjectStore, StorageError, StorageRejected

PROBE_PREFIX = "rstar2-probe"
LARGE_BYTES = 17 * 2**20
"""Larger than one part of an upload."""


def require_conditions(store: ObjectStore) -> None:
    """Raise StorageRejected for a server whose conditions are not those of publications.

    On one that ignores them a fenced process could publish. One that counts deleted objects takes no job again.
    """
    name = f"{_new_prefix()}/small"
    etag, error = _create(store, name)
    error = error or _replace(store, name, etag)
    store.delete(name)
    error = f"{error}: use a server with conditional writes" if error else _recreate(store, name)
    if error:
        raise StorageRejected(f"{store.address}: {error}")


def _new_prefix() -> str:
    return f"{PROBE_PREFIX}/{uuid.uuid4().hex}"


def _create(store: ObjectStore, name: str) -> tuple[str, str]:
    """Create an object; return its ETag, and the fault of a second creation, an empty text if there is none."""
    etag = store.put_if_absent(name, b"1")
    try:
        store.put_if_absent(name, b"2")
    except ObjectExists:
        return etag, ""
    return etag, "the server ignores If-None-Match: two writers would replace each other's objects"


def _replace(store: ObjectStore, name: str, etag: str) -> str:
    """Replace an object; return the fault of a replacement of its older version; empty: none."""
    store.put_if_unchanged(name, b"3", etag)
    try:
        store.put_if_unchanged(name, b"4", etag)
    except ObjectChanged:
        return ""
    return "the server ignores If-Match: two writers would replace each other's objects"


def _recreate(store: ObjectStore, name: str) -> str:
    """Create a deleted object again and delete it; return the fault, an empty text if there is none."""
    try:
        store.put_if_absent(name, b"5")
    except ObjectExists:
        return "a deleted object counts as existing: use a bucket without versions, or its job cannot start again"
    store.delete(name)
    return ""


def probe(store: ObjectStore) -> list[tuple[str, str]]:
    """Return each operation and why it failed, an empty text if it works. After a failure the rest is not tried."""
    prefix = _new_prefix()
    small, large = f"{prefix}/small", f"{prefix}/large"
    etag = ""

    def create() -> str:
        nonlocal etag
        etag, error = _create(store, small)
        return error

    def replace() -> str:
        return _replace(store, small, etag)

    def upload() -> str:
        with tempfile.NamedTemporaryFile() as file:
            file.truncate(LARGE_BYTES)
            store.upload(large, Path(file.name))
        size = store.stat(large).size
        return "" if size == LARGE_BYTES else f"the object has {size} bytes of {LARGE_BYTES}"

    def read() -> str:
        content = store.read(large, start=LARGE_BYTES - 10, end=LARGE_BYTES - 5)
        whole = store.read(small).body
        return "" if (content.body, whole) == (bytes(5), b"3") else "the server returns other bytes than were written"

    def listing() -> str:
        names = [item.name for item in store.list(prefix)]
        return "" if names == [large, small] else f"the listing has {names}"

    def delete() -> str:
        store.delete(large)
        store.delete(small)
        return _recreate(store, small)

    operations: list[tuple[str, Callable[[], str]]] = [
        ("put if absent", create),
        ("put if unchanged", replace),
        ("upload in parts", upload),
        ("read a range", read),
        ("list", listing),
        ("delete", delete),
    ]
    results = []
    for name, operation in operations:
        try:
            error = operation()
        except StorageError as failure:
            error = str(failure)
        results.append((name, error))
        if error:
            break
    return results
