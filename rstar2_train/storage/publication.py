"""Writes publications: a set of objects that readers get complete or not at all, without rename and without listing.

    upload the new objects below a prefix of the process's own -> put the manifest if absent -> move the index by ETag

The move of the index is the only step that a reader notices. A process that stops before it leaves objects that
nothing names. The index also holds the attempt that may move it: `claim` fences every attempt before it. After that no
other process deletes an object that the index names, so a publication may share objects with earlier ones.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from rstar2_train.storage.manifest import (
    ATTEMPTS,
    BLOCK_BYTES,
    INDEX,
    MAX_ATTEMPT,
    MAX_OBJECTS,
    IndexEntry,
    ObjectRecord,
    PublicationIndex,
    PublicationManifest,
    PublishedObject,
    home,
    is_own_name,
    seal,
)
from rstar2_train.storage.store import (
    CorruptObject,
    ObjectChanged,
    ObjectExists,
    ObjectStore,
    StorageError,
    StorageRejected,
    check_name,
)
from rstar2_train.storage.verified_read import read_index, read_manifest

MAX_MOVES = 1000
"""Moves of the index by others that one change tolerates before it fails."""
Content = tuple[int, tuple[str, ...]]
"""Size and digests of an object."""


class Fenced(StorageError):
    """A later attempt has claimed the publications: this process must not write any more."""


class AlreadyPublished(StorageError):
    """Another process has published under this name."""


class PublicationWriter:
    """The right of one process of an attempt to publish. Not thread-safe."""

    def __init__(self, store: ObjectStore, attempt: int) -> None:
        """Name the process; no request is sent. `attempt`: number of the attempt, higher than those before."""
        self.attempt = attempt
        self.writer = uuid.uuid4().hex
        self._home = home(attempt, self.writer)
        self._store = store
        self._manifests: dict[IndexEntry, PublicationManifest] = {}
        self._uploaded: dict[Content, PublishedObject] = {}
        """Objects that this process has uploaded."""
        self._written: set[str] = set()
        """Objects and manifests in the store that no visible publication may name: of a publication that failed or was
        withdrawn. Names of visible ones are removed by `retain`."""
        self.lost: frozenset[str] = frozenset()
        """Objects that visible publications name and the store does not have any more, as of the last sweep."""
        self._has_claimed = False
        self._known: tuple[PublicationIndex, str] | None = None
        """The index after the last move of this process, and its ETag. Another process may have replaced it since."""

    def claim(self, change: Callable[[PublicationIndex], PublicationIndex] = lambda index: index) -> PublicationIndex:
        """Fence all other processes of this attempt and of those before; return the index. Raises Fenced.

        `change`: returns the claimed index; an exception of it prevents the claim.
        """
        index = self._move(change, claims=True)
        self._has_claimed = True
        return index

    def publish(
        self,
        name: str,
        files: Mapping[str, Path],
        *,
        digest: Callable[[str, Path], ObjectRecord] | None = None,
        stored: Sequence[PublishedObject] = (),
        uploaded: Callable[[], None] = lambda: None,
    ) -> IndexEntry:
        """Publish files, which must not change meanwhile. Raises Fenced, AlreadyPublished, StorageError.

        `files`: name of the object -> file. `digest`: returns the record of a file; default: `record`. An object that
        a visible publication has is not uploaded again. Nothing is visible before all objects are complete. `stored`:
        objects in the store that the publication has too, except those with the name of a file. `uploaded`: called
        after each upload; an exception of it ends the publication.
        """
        objects = [item for item in stored if item.name not in files]
        if (count := len(files) + len(objects)) > MAX_OBJECTS:
            raise StorageRejected(f"{name}: {count:,} files; a publication has at most {MAX_OBJECTS:,}")
        known = self._visible_objects() | self._uploaded
        for key, path in files.items():
            own = (digest or record)(check_name(key), path)
            content: Content = own.size, tuple(own.sha256)
            home = known[content].home if content in known else self._home
            published = PublishedObject(**own.model_dump(), home=home)
            if content not in known:
                self._written.add(published.key)
                self._store.upload(published.key, path)
                known[content] = self._uploaded[content] = published
                uploaded()
            objects.append(published)
        manifest = PublicationManifest(publication=name, attempt=self.attempt, writer=self.writer, objects=objects)
        body = seal(manifest)
        entry = IndexEntry(name=name, attempt=self.attempt, writer=self.writer, sha256=hashlib.sha256(body).hexdigest())
        self._written.add(entry.manifest)
        self._store.put_if_absent(entry.manifest, body)

        def add(index: PublicationIndex) -> PublicationIndex:
            for other in index.publications:
                if other.name == name and other != entry:
                    raise AlreadyPublished(f"{self._store.address}: {name} was published by attempt {other.attempt}")
            if entry in index.publications:  # by a move of this call whose answer was lost
                return index
            return index.model_copy(update={"publications": [*index.publications, entry]})

        self._move(add)
        self._manifests[entry] = manifest
        return entry

    def newest(self, count: int) -> set[str]:
        """Return the names of the newest visible publications."""
        return {entry.name for entry in self._index()[0].publications[-count:]}

    def retain(self, names: Collection[str]) -> None:
        """Withdraw all publications except `names`, then delete the objects that only they have. Raises Fenced.

        Objects of this process's failed publications are deleted too: the next try uploads their content again. A
        process that stops in between leaves objects that nothing names.
        """

        def select(index: PublicationIndex) -> PublicationIndex:
            kept = [entry for entry in index.publications if entry.name in names]
            return index.model_copy(update={"publications": kept})

        before, _ = self._index()
        withdrawn = [entry for entry in before.publications if entry.name not in names]
        kept = [entry for entry in before.publications if entry.name in names]
        unused = (self._written | self._names(withdrawn)) - self._names(kept)
        if withdrawn:
            self._move(select)
        # Before the deletion, which may fail halfway: the next one continues it.
        self._written = unused
        self._uploaded = {content: stored for content, stored in self._uploaded.items() if stored.key not in unused}
        for entry in withdrawn:
            self._manifests.pop(entry, None)
        for key in sorted(unused):
            self._store.delete(key)
            self._written.discard(key)

    def sweep(self, held: Callable[[], Collection[str]] = set) -> int:
        """Delete what other processes have left and no publication names; return the number of objects.

        `held`: returns objects that other hosts have uploaded, or will, for a later publication of this process. The
        listing only finds objects to delete, of which a fenced process can make none visible any more, and objects that
        were deleted by others: their content is uploaded again. Names that no writer gives are other people's. Raises
        Fenced, also without a claim.
        """
        listed = list(self._store.list(ATTEMPTS))  # before the check: a later process uploads only after its claim
        index, _ = read_index(self._store)
        if (index.attempt, index.writer) != (self.attempt, self.writer):
            raise self._fenced(index)
        named = self._names(index.publications)
        own = f"{ATTEMPTS}/{self._home}/"
        self.lost = frozenset(named.difference(item.name for item in listed))
        unused = [item.name for item in listed if is_own_name(item.name) and not item.name.startswith(own)]
        used = named | set(held())  # after the listing: an object is held before its upload starts
        unused = [name for name in unused if name not in used]
        for name in unused:
            self._store.delete(name)
        return len(unused)

    def _index(self) -> tuple[PublicationIndex, str]:
        """Return the index and its ETag, as this process knows them: a move of an outdated one fails."""
        if self._known is None:
            self._known = read_index(self._store)
        return self._known

    def _visible_objects(self) -> dict[Content, PublishedObject]:
        """Return the objects of the visible publications; none if this process has no claim."""
        index, _ = self._index()
        if (index.attempt, index.writer) != (self.attempt, self.writer):
            return {}
        return {
            (stored.size, tuple(stored.sha256)): stored
            for entry in index.publications
            for stored in self._manifest(entry).objects
            if stored.key not in self.lost
        }

    def _names(self, entries: Collection[IndexEntry]) -> set[str]:
        """Return the names of the objects and the manifests of publications."""
        objects = {stored.key for entry in entries for stored in self._manifest(entry).objects}
        return objects | {entry.manifest for entry in entries}

    def _manifest(self, entry: IndexEntry) -> PublicationManifest:
        if entry not in self._manifests:
            self._manifests[entry] = read_manifest(self._store, entry)
        return self._manifests[entry]

    def _move(
        self, change: Callable[[PublicationIndex], PublicationIndex], *, claims: bool = False
    ) -> PublicationIndex:
        """Replace the index by a changed one, again if another process moves it meanwhile; return the new index."""
        for _ in range(MAX_MOVES):
            index, etag = self._index()
            self._known = None  # unless this move succeeds
            if etag:
                self._check(index, claims=claims)
            elif self._has_claimed:
                raise Fenced(f"{self._store.address}/{INDEX} was deleted: it named the owner of the publications")
            moved = change(index).model_copy(update={"attempt": self.attempt, "writer": self.writer})
            if moved.attempt > MAX_ATTEMPT:
                raise CorruptObject(f"{self._store.address}/{INDEX}: attempt {moved.attempt} is above {MAX_ATTEMPT}")
            if etag and moved == index:
                self._known = index, etag
                return index
            try:
                if etag:
                    etag = self._store.put_if_unchanged(INDEX, seal(moved), etag)
                else:
                    etag = self._store.put_if_absent(INDEX, seal(moved))
            except (ObjectChanged, ObjectExists):
                continue
            self._known = moved, etag
            return moved
        raise ObjectChanged(f"{self._store.address}/{INDEX}: other processes replaced it {MAX_MOVES} times")

    def _check(self, index: PublicationIndex, *, claims: bool) -> None:
        """Raise Fenced if a later attempt, or another process of this one, has claimed the publications."""
        is_other = index.attempt == self.attempt and index.writer != self.writer
        if index.attempt > self.attempt or (is_other and not claims):
            raise self._fenced(index)

    def _fenced(self, index: PublicationIndex) -> Fenced:
        return Fenced(
            f"{self._store.address}: attempt {index.attempt} has claimed the publications; this process is of attempt "
            f"{self.attempt}"
        )


def last_number(index: PublicationIndex) -> int:
    """Return the highest number of a publication TEXT-NUMBER; 0 if there is none. A name without a number has none."""
    numbers = (entry.name.rpartition("-")[2] for entry in index.publications)
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def record(name: str, path: Path) -> ObjectRecord:
    """Return name, size and digests of a file."""
    size, digests = 0, []
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            size += len(block)
            digests.append(hashlib.sha256(block).hexdigest())
    return ObjectRecord(name=name, size=size, sha256=digests)
