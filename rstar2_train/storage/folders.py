"""Folders that one process publishes and others copy to their own disks, such as the weight versions for engines.

    writer: FolderPublisher.publish ─> publication      (the entry travels to the readers by another way)
    reader: FolderCache.copies ─> manifest of the entry ─> verified blocks

A reader gets the entry from the writer, so it reads no index. A copy is named by the digest of its manifest: a name
never has other content. The folders of a job belong to the pod that has claimed the job's state: a late pod of an
earlier attempt claims, publishes and deletes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from rstar2_train.storage.manifest import IndexEntry, PodStart, PublicationIndex
from rstar2_train.storage.publication import Fenced, PublicationWriter, last_number
from rstar2_train.storage.store import ObjectStore, StorageRejected
from rstar2_train.storage.verified_read import fetch, read_index, read_manifest
from rstar2_train.utils.files import FileVersion, delete, file_versions

KEPT_ORDERS = 2
"""Orders before the present one whose copies stay: a program may still read them."""


@dataclass(frozen=True, slots=True)
class JobClaim:
    """The claim of a pod on the state of its job."""

    store: ObjectStore
    """The job's objects."""
    start: PodStart

    def check(self) -> None:
        """Raise Fenced if another pod has claimed the state since. Raises StorageError."""
        index, _ = read_index(self.store)
        if index.start != self.start:
            owner = f"{index.start}" if index.start else "no pod"
            raise Fenced(f"{self.store.address}: the state of the job belongs to {owner}, not to {self.start}")


class FolderPublisher:
    """The folders that one process has published. The first publication claims the store, and fences all earlier
    processes."""

    def __init__(self, store: ObjectStore, claim: JobClaim | None = None) -> None:
        """`store`: of these folders alone; `claim`: of their job, None: they belong to no job. No request is sent."""
        self._store = store
        self._claim = claim
        self._writer: PublicationWriter | None = None
        self._number = 0
        self._published: dict[Path, tuple[dict[str, FileVersion], IndexEntry]] = {}
        self._lock = threading.Lock()
        """Held by an operation: that of a cancelled caller may still run."""

    def publish(self, folder: Path, *, uploaded: Callable[[], None] = lambda: None) -> IndexEntry:
        """Publish the files of a folder, unless it was published and has not changed since; return the entry.

        Hidden files are left out. `uploaded`: called after each upload; an exception of it ends the publication.
        Raises Fenced if a later process has claimed the store or the job, StorageError, OSError.
        """
        with self._lock:
            files = _files(folder)
            versions = file_versions(files)
            known = self._published.get(folder)
            if known is not None and known[0] == versions:
                return known[1]
            if not files:
                raise StorageRejected(f"{folder} has no files to publish")
            self._check_claim()
            writer = self._opened()
            self._number += 1  # a name is used once, also by a try that fails
            entry = writer.publish(f"folder-{self._number:06d}", files, uploaded=uploaded)
            self._published[folder] = versions, entry
            return entry

    def retain(self, folders: Collection[Path]) -> None:
        """Withdraw all publications except those of `folders`, and delete what only they have.

        Nothing before the first publication: what earlier processes left is deleted by the claim. Raises as `publish`.
        """
        with self._lock:
            if self._writer is None:
                return
            self._check_claim()
            kept = {folder: known for folder, known in self._published.items() if folder in folders}
            self._writer.retain({entry.name for _, entry in kept.values()})
            self._published = kept

    def _opened(self) -> PublicationWriter:
        if self._writer is None:
            index, _ = read_index(self._store)
            writer = PublicationWriter(self._store, index.attempt + 1)
            index = writer.claim(self._claimed)
            self._number = last_number(index)
            writer.sweep()
            self._writer = writer
        return self._writer

    def _claimed(self, index: PublicationIndex) -> PublicationIndex:
        """Return the claimed index. Checks the job's claim after the read of the index: if a later pod claims both
        meanwhile, the index has another version, and the check is repeated."""
        self._check_claim()
        return index

    def _check_claim(self) -> None:
        if self._claim is not None:
            self._claim.check()


class FolderCache:
    """Copies of published folders on this machine's disk."""

    def __init__(self, store: ObjectStore, root: Path) -> None:
        """`root`: folder of the copies alone; those of an earlier process are verified before they are used."""
        self._store = store
        self._root = root
        self._complete: set[Path] = set()
        self._orders: list[frozenset[Path]] = []
        """The last orders, the newest last."""
        self._lock = threading.Lock()

    def copies(self, entries: Sequence[IndexEntry]) -> list[Path]:
        """Return the copies of published folders; download the missing files, by parallel reads of blocks.

        Deletes the copies that neither this order nor the KEPT_ORDERS before it name. Raises StorageError, OSError.
        """
        with self._lock:
            folders = [self._root / entry.sha256 for entry in entries]
            order = frozenset(folders)
            self._orders = [*(other for other in self._orders if other != order), order][-KEPT_ORDERS - 1 :]
            self._prune()
            for entry, folder in zip(entries, folders, strict=True):
                if folder not in self._complete:
                    for torn in folder.rglob(".*"):  # of an interrupted download: no published file is hidden
                        torn.unlink()
                    fetch(self._store, read_manifest(self._store, entry).objects, folder)
                    self._complete.add(folder)
            return folders

    def _prune(self) -> None:
        wanted = frozenset[Path]().union(*self._orders)
        self._complete &= wanted
        for folder in self._root.iterdir() if self._root.is_dir() else ():
            if folder not in wanted:
                delete(folder)


def _files(folder: Path) -> dict[str, Path]:
    """Return the files of a folder by their names relative to it."""
    names = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {
        name.as_posix(): path for name, path in names.items() if not any(part.startswith(".") for part in name.parts)
    }
