"""The bucket of a job, as its hosts use it: each uploads what its ranks wrote, and reads the files that they need.

    upload:   orchestrator: new_home ─> record of each host ─> host_objects.py      then each host: upload
    read:     orchestrator: offered ─> names, sizes, digests and objects            then each host: fetch

Nothing is visible before pod 0 publishes a state that names the objects, which only the last claim can do.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rstar2_train.api.sources import BucketSource
from rstar2_train.api.storage import StorageSpec
from rstar2_train.storage.folders import JobClaim
from rstar2_train.storage.host_objects import read_host_objects, write_host_objects
from rstar2_train.storage.job_state import published_objects
from rstar2_train.storage.manifest import ObjectRecord, PodStart, PublishedObject, RemoteFile, home
from rstar2_train.storage.publication import record
from rstar2_train.storage.retries import PATIENCE_SECONDS
from rstar2_train.storage.source import downloads, open_source, open_store
from rstar2_train.storage.state_files import is_checkpoint, is_published
from rstar2_train.storage.store import CorruptObject, ObjectMissing, ObjectStore
from rstar2_train.storage.verified_read import PARALLEL_READS, fetch, has_content
from rstar2_train.utils.files import delete

_SOURCES = "buckets"
"""Folder of the files that a host reads from the bucket of a `source` field."""
_SHARED = ".aside-shared-"
"""Start of the name of a hidden folder with the record of objects that only a read needs: no cleaning deletes them."""


@dataclass(frozen=True, slots=True)
class RemoteFiles:
    """Files of a folder, and the objects with their content. Travels to the hosts in place of the files."""

    files: tuple[RemoteFile, ...]
    source: BucketSource | None = None
    """The bucket of a `source` field; None: the bucket of the job's state."""

    def only(self, blocks: Mapping[str, list[int] | None]) -> RemoteFiles:
        """Return some of the files, with some of their blocks; None: all."""
        files = (file.model_copy(update={"blocks": blocks[file.name]}) for file in self.files if file.name in blocks)
        return RemoteFiles(tuple(files), self.source)


@dataclass(frozen=True, slots=True)
class HostBucket:
    """The bucket of one attempt. Travels to the hosts, whose credentials are in their own environment."""

    cache: Path
    """Folder of the job's files, which every host has on a disk of its own."""
    settings: StorageSpec
    job: str
    start: PodStart
    patience: float = PATIENCE_SECONDS
    """Seconds for the retries of one operation."""

    def new_home(self) -> str:
        """Return a new prefix for the objects of one checkpoint: no cleaning of other objects is about them.

        Raises Fenced if a later pod has claimed the state of the job, StorageError.
        """
        JobClaim(self._store(), self.start).check()
        return home(self.start.attempt, uuid.uuid4().hex)

    def upload(self, folder: Path, objects: Sequence[PublishedObject]) -> None:
        """Upload files of a folder. Raises StorageError, OSError."""
        store = self._store()
        for stored in objects:
            store.upload(stored.key, folder / stored.name)

    @contextlib.contextmanager
    def offered(self, path: Path) -> Iterator[RemoteFiles]:
        """Yield the objects of a folder or file of this host, for the reads of other hosts inside the block.

        The files of a checkpoint that no publication has yet are uploaded for the block. Raises Fenced if a later pod
        has claimed the state of the job, CorruptObject if a file is not that of the newest state, StorageError.
        """
        if path.is_relative_to(self.cache / _SOURCES):
            yield self._of_source(path)
            return
        stored, missing = self._stored(path)
        if missing and not is_checkpoint(path.relative_to(self.cache).as_posix()):
            raise CorruptObject(f"{path / missing[0]} is not the file of the newest state in the bucket")
        with self._uploaded(path, missing) as uploaded:
            yield RemoteFiles(tuple(map(_remote, [*stored, *uploaded])))

    def fetch(self, folder: Path, remote: RemoteFiles) -> int:
        """Write files into a folder of this host, each compared with its digests; return the bytes of the missing ones.

        Raises StorageError, OSError: DiskRefused if they do not fit on the disk.
        """
        if not remote.files:
            return 0
        if remote.source is None:
            return fetch(self._store(), remote.files, folder)
        return fetch(open_source(remote.source, self.settings, patience=self.patience), remote.files, folder)

    def _stored(self, path: Path) -> tuple[list[PublishedObject], list[str]]:
        """Return the objects of the files of a folder, or of a file, and the names of those that have none."""
        root = path if path.is_dir() else path.parent
        start = root.relative_to(self.cache).as_posix() + "/"
        held = {stored.name: stored for stored in read_host_objects(root)}
        own = {name for file in _files(path) if is_published(start + (name := file.relative_to(root).as_posix()))}
        below = [stored for stored in published_objects(self._store()) if stored.name.startswith(start)]
        known = {stored.name.removeprefix(start): stored for stored in below} | held
        both = sorted(own & known.keys())
        with ThreadPoolExecutor(PARALLEL_READS) as pool:
            equal = list(pool.map(lambda name: has_content(root / name, known[name]), both))
        same = {name for name, is_equal in zip(both, equal, strict=True) if is_equal}
        objects = [known[name].model_copy(update={"name": name}) for name in sorted(same | (held.keys() - own))]
        return objects, sorted(own - same)

    @contextlib.contextmanager
    def _uploaded(self, folder: Path, names: Sequence[str]) -> Iterator[list[PublishedObject]]:
        """Upload files of a folder for the block; a later publication deletes the objects."""
        if not names:
            yield []
            return
        prefix = self.new_home()
        objects = [PublishedObject(**item.model_dump(), home=prefix) for item in record_files(folder, names)]
        held = folder.with_name(f"{_SHARED}{folder.name}")
        write_host_objects(held, objects)
        try:
            self.upload(folder, objects)
            yield objects
        finally:
            delete(held)

    def _of_source(self, path: Path) -> RemoteFiles:
        scheme, bucket = path.relative_to(self.cache / _SOURCES).parts[:2]
        folder = self.cache / _SOURCES / scheme / bucket
        root = path if path.is_dir() else path.parent
        files = tuple(
            RemoteFile(**item.model_dump(exclude={"name"}), name=file.relative_to(root).as_posix(), key=name)
            for name, item in downloads(folder).items()
            if (file := folder / name).is_relative_to(path)
        )
        if not files:
            raise ObjectMissing(f"{path}: no record of its download")
        return RemoteFiles(files, BucketSource(scheme, bucket, ""))

    def _store(self) -> ObjectStore:
        return open_store(self.settings, self.job, patience=self.patience)


def record_files(folder: Path, names: Sequence[str]) -> list[ObjectRecord]:
    """Return names, sizes and digests of files of a folder. Raises OSError."""
    return [record(name, folder / name) for name in names]


def _remote(stored: PublishedObject) -> RemoteFile:
    return RemoteFile(**stored.model_dump(exclude={"home"}), key=stored.key)


def _files(path: Path) -> list[Path]:
    return [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
