"""Writes publications: a set of objects that readers get complete or not at all, without rename and without listing.

    upload the objects below a prefix of the attempt's own  ->  put the manifest if absent  ->  move the index by ETag

The move of the index is the only step that a reader notices. A process that stops before it leaves objects that
nothing names. The index also holds the attempt that may move it: `claim` fences every attempt before it.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from rstar2_train.storage.manifest import (
    BLOCK_BYTES,
    INDEX,
    MAX_OBJECTS,
    IndexEntry,
    ObjectRecord,
    PublicationIndex,
    PublicationManifest,
    seal,
)
from rstar2_train.storage.store import ObjectChanged, ObjectExists, ObjectStore, StorageError, check_name
from rstar2_train.storage.verified_read import read_index, read_manifest

MAX_MOVES = 1000
"""Moves of the index by others that one change tolerates before it fails."""


class Fenced(StorageError):
    """A later attempt has claimed the publications: this process must not write any more."""


class AlreadyPublished(StorageError):
    """Another process has published under this name."""


class PublicationWriter:
    """The right of one process of an attempt to publish."""

    def __init__(self, store: ObjectStore, attempt: int) -> None:
        """Name the process; no request is sent. `attempt`: number of the attempt, higher than those before."""
        self.attempt = attempt
        self.writer = uuid.uuid4().hex
        self._store = store

    def claim(self) -> PublicationIndex:
        """Fence all other processes of this attempt and of those before; return the index. Raises Fenced."""
        return self._move(lambda index: index, claims=True)

    def publish(self, name: str, files: Mapping[str, Path]) -> IndexEntry:
        """Publish files, which must not change meanwhile. Raises Fenced, AlreadyPublished.

        `files`: name of the object -> file. Nothing is visible before all objects are complete.
        """
        if len(files) > MAX_OBJECTS:
            raise ValueError(f"{name}: {len(files)} objects; a publication has at most {MAX_OBJECTS}")
        records = [record(check_name(key), path) for key, path in files.items()]
        manifest = PublicationManifest(publication=name, attempt=self.attempt, writer=self.writer, objects=records)
        for key, path in files.items():
            self._store.upload(f"{manifest.folder}/{key}", path)
        body = seal(manifest)
        entry = IndexEntry(name=name, attempt=self.attempt, writer=self.writer, sha256=hashlib.sha256(body).hexdigest())
        self._store.put_if_absent(entry.manifest, body)

        def add(index: PublicationIndex) -> PublicationIndex:
            for other in index.publications:
                if other.name == name and other != entry:
                    raise AlreadyPublished(f"{self._store.address}: {name} was published by attempt {other.attempt}")
            if entry in index.publications:  # by a move of this call whose answer was lost
                return index
            return index.model_copy(update={"publications": [*index.publications, entry]})

        self._move(add)
        return entry

    def retain(self, names: Collection[str]) -> None:
        """Withdraw all publications except `names`, then delete their objects. Raises Fenced.

        A process that stops in between leaves objects that nothing names.
        """

        def select(index: PublicationIndex) -> PublicationIndex:
            kept = [entry for entry in index.publications if entry.name in names]
            return index.model_copy(update={"publications": kept})

        before, _ = read_index(self._store)
        self._move(select)
        for entry in before.publications:
            if entry.name in names:
                continue
            manifest = read_manifest(self._store, entry)
            for stored in manifest.objects:
                self._store.delete(f"{manifest.folder}/{stored.name}")
            self._store.delete(entry.manifest)

    def _move(
        self, change: Callable[[PublicationIndex], PublicationIndex], *, claims: bool = False
    ) -> PublicationIndex:
        """Replace the index by a changed one, again if another process moves it meanwhile; return the new index."""
        for _ in range(MAX_MOVES):
            index, etag = read_index(self._store)
            if etag and (index.attempt > self.attempt or (not claims and self._is_fenced(index))):
                raise Fenced(
                    f"{self._store.address}: attempt {index.attempt} has claimed the publications; this process is of "
                    f"attempt {self.attempt}"
                )
            moved = change(index).model_copy(update={"attempt": self.attempt, "writer": self.writer})
            if etag and moved == index:
                return index
            try:
                if etag:
                    self._store.put_if_unchanged(INDEX, seal(moved), etag)
                else:
                    self._store.put_if_absent(INDEX, seal(moved))
            except (ObjectChanged, ObjectExists):
                continue
            return moved
        raise ObjectChanged(f"{self._store.address}/{INDEX}: other processes replaced it {MAX_MOVES} times")

    def _is_fenced(self, index: PublicationIndex) -> bool:
        return index.attempt == self.attempt and index.writer != self.writer


def record(name: str, path: Path) -> ObjectRecord:
    """Return name, size and digests of a file."""
    size, digests = 0, []
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            size += len(block)
            digests.append(hashlib.sha256(block).hexdigest())
    return ObjectRecord(name=name, size=size, sha256=digests)
