"""The interface of an object store, its errors, and the rules of names. Pure.

Implemented by bucket.py and folder.py. Every operation is atomic: a reader gets an object complete or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

MAX_NAME_CHARACTERS = 900
"""A key of S3 has at most 1,024 bytes, of which the prefix needs some."""
_COMPONENT = re.compile(r"[A-Za-z0-9_.@+=,-]+", re.ASCII)


class StorageError(Exception):
    """An operation failed. The message names the object, and has the server's own words."""


class ObjectMissing(StorageError):
    """No object has the name, or the bucket does not exist."""


class ObjectExists(StorageError):
    """put_if_absent: an object has the name already."""


class ObjectChanged(StorageError):
    """put_if_unchanged, or a read of one version: the object has another ETag."""


class AccessDenied(StorageError):
    """The credentials are missing or rejected, or lack a permission."""


class StorageRejected(StorageError):
    """The server rejects the request, and would reject it again."""


class StorageUnavailable(StorageError):
    """The server did not answer correctly within the time for retries."""


class CorruptObject(StorageError):
    """The content contradicts its digest, or breaks a rule of its form."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """Name, size and version of an object."""

    name: str
    size: int
    """Bytes."""
    etag: str
    """Identifier of the version."""


@dataclass(frozen=True, slots=True)
class Content:
    """Bytes of an object, and the version that they belong to."""

    body: bytes
    etag: str
    size: int
    """Bytes of the whole object."""


SOURCE_RECORD = ".rstar2-source-"
"""Start of the name of a file of this machine with the digests of a download (source.py)."""


class ObjectStore(Protocol):
    """Objects under one prefix."""

    address: str
    """URL or path, for messages."""
    server: str
    """Address of the server; empty: the vendor's own, or none."""

    def stat(self, name: str) -> StoredObject:
        """Return size and version. Raises ObjectMissing."""

    def read(self, name: str, *, start: int = 0, end: int | None = None, etag: str = "", limit: int = 0) -> Content:
        """Return the bytes from `start` to before `end`; end None: to the last.

        `etag`: the version to read, else ObjectChanged is raised; empty: the current one. `limit`: bytes above which
        CorruptObject is raised before the body is read; 0: none. Raises ObjectMissing.
        """

    def put_if_absent(self, name: str, body: bytes) -> str:
        """Create an object; return its ETag. Raises ObjectExists.

        An object with the same body counts as created by this call, whose first answer may have been lost. A writer
        that must know whether it was first writes a unique value into the body.
        """

    def put_if_unchanged(self, name: str, body: bytes, etag: str) -> str:
        """Replace the version `etag`; return the new ETag. Raises ObjectChanged, unless the body is already `body`."""

    def upload(self, name: str, file: Path) -> None:
        """Create or replace an object by a file, in parts if it is large."""

    def delete(self, name: str) -> None:
        """Delete an object if it exists."""

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """Yield the objects below a prefix, sorted by name. For people, and for the files of a source."""


def check_name(name: str) -> str:
    """Return a valid name of an object. Raises CorruptObject.

    Relative, without `..`, `.` or empty components; letters, digits and `_.@+=,-`, which every store takes unchanged.
    """
    components = name.split("/")
    valid = all(_COMPONENT.fullmatch(part) and part not in (".", "..") for part in components)
    if not valid or len(name) > MAX_NAME_CHARACTERS:
        raise CorruptObject(f"{name[:200]!r} is not a valid name of an object")
    return name
