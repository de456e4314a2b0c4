"""A local folder as an object store: the same rules as a bucket, by link, rename and one lock.

The folder may be on a volume of several nodes that has hard links and locks of flock, such as NFS 4.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rstar2_train.storage.store import (
    Content,
    CorruptObject,
    ObjectChanged,
    ObjectExists,
    ObjectMissing,
    StoredObject,
    check_name,
)
from rstar2_train.utils.files import sync_to_disk

HIDDEN = ".rstar2-uploads"
"""Folder of incomplete files and of the lock. Its files are not objects."""


class LocalFolder:
    """The objects of a folder."""

    def __init__(self, root: Path) -> None:
        """Open a folder, which is created with the first object."""
        self.address, self.server = str(root), ""
        self._root = root

    def stat(self, name: str) -> StoredObject:
        """Return size and version. Raises ObjectMissing."""
        missing = ObjectMissing(f"{self.address}/{name}: no such object")
        try:
            status = self._path(name).stat()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise missing from error
        if not stat.S_ISREG(status.st_mode):
            raise missing
        return StoredObject(name, status.st_size, _etag(status))

    def read(self, name: str, *, start: int = 0, end: int | None = None, etag: str = "", limit: int = 0) -> Content:
        """Return the bytes from `start` to before `end` (store.ObjectStore)."""
        try:
            with self._path(name).open("rb") as file:
                status = os.fstat(file.fileno())
                if etag and _etag(status) != etag:
                    raise ObjectChanged(f"{self.address}/{name}: the object was replaced")
                size = max(0, (status.st_size if end is None else min(end, status.st_size)) - start)
                if limit and size > limit:
                    raise CorruptObject(f"{self.address}/{name} has {size:,} bytes; allowed: {limit:,}")
                file.seek(start)
                return Content(file.read(size), _etag(status), status.st_size)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise ObjectMissing(f"{self.address}/{name}: no such object") from error

    def put_if_absent(self, name: str, body: bytes) -> str:
        """Create an object; return its ETag. Raises ObjectExists (store.ObjectStore)."""
        with self._incomplete() as temporary:
            _write(temporary, body)
            target = self._folder_of(name)
            try:
                os.link(temporary, target)
            except FileExistsError as error:
                current = self.read(name)
                if current.body == body:
                    return current.etag
                raise ObjectExists(f"{self.address}/{name}: the object exists") from error
            sync_to_disk(target.parent)
            return _etag(target.stat())

    def put_if_unchanged(self, name: str, body: bytes, etag: str) -> str:
        """Replace the version `etag`; return the new ETag. Raises ObjectChanged (store.ObjectStore)."""
        with self._incomplete() as temporary, self._locked():
            try:
                current = self.read(name)
            except ObjectMissing as error:
                raise ObjectChanged(f"{self.address}/{name} was deleted") from error
            if current.etag != etag:
                if current.body == body:
                    return current.etag
                raise ObjectChanged(f"{self.address}/{name}: the object was replaced")
            _write(temporary, body)
            target = self._path(name)
            temporary.replace(target)
            sync_to_disk(target.parent)
            return _etag(target.stat())

    def upload(self, name: str, file: Path) -> None:
        """Create or replace an object by a copy of a file."""
        with self._incomplete() as temporary:
            shutil.copyfile(file, temporary)
            sync_to_disk(temporary)
            target = self._folder_of(name)
            temporary.replace(target)
            sync_to_disk(target.parent)

    def delete(self, name: str) -> None:
        """Delete an object if it exists."""
        self._path(name).unlink(missing_ok=True)

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """Yield the objects below a prefix, sorted by name; also files of others, whose names are no valid ones."""
        folder = self._root / prefix
        for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
            name = path.relative_to(self._root)
            try:
                status = path.stat()
            except FileNotFoundError:  # deleted meanwhile
                continue
            if stat.S_ISREG(status.st_mode) and name.parts[0] != HIDDEN:
                yield StoredObject(name.as_posix(), status.st_size, _etag(status))

    def _path(self, name: str) -> Path:
        if check_name(name).split("/")[0] == HIDDEN:
            raise CorruptObject(f"{name!r} is not a valid name of an object")
        return self._root / name

    def _folder_of(self, name: str) -> Path:
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    @contextmanager
    def _incomplete(self) -> Iterator[Path]:
        """Yield the path of a new file, which is removed if it was not renamed."""
        (self._root / HIDDEN).mkdir(parents=True, exist_ok=True)
        path = self._root / HIDDEN / uuid.uuid4().hex
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._root / HIDDEN / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _etag(status: os.stat_result) -> str:
    return f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"


def _write(path: Path, body: bytes) -> None:
    with path.open("wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
