"""The state of one job in a bucket: its folder is a cache, and the newest publication is the truth.

    open:     claim (fences every earlier start) -> restore the newest publication, unless the folder is ahead of it
    publish:  snapshot of the folder -> publication, with uploads of new content -> retention

A file in the folder names the process that used it last. So a start knows whether the folder is ahead of the bucket
(that process published last), or behind it (the job ran on another machine since).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from rstar2_train.api.contracts import Outcome
from rstar2_train.api.state_dir import JobState
from rstar2_train.storage.host_objects import delete_host_objects, held_keys, host_objects, leave_objects
from rstar2_train.storage.manifest import (
    IndexEntry,
    ObjectRecord,
    PodStart,
    PublicationIndex,
    PublicationManifest,
    PublishedObject,
)
from rstar2_train.storage.publication import Fenced, PublicationWriter, last_number, record
from rstar2_train.storage.retries import Result
from rstar2_train.storage.state_files import MACHINE_FILES, is_checkpoint, is_published, snapshot, state_files
from rstar2_train.storage.store import CorruptObject, ObjectMissing, ObjectStore, StorageError, StorageRejected
from rstar2_train.storage.verified_read import fetch, has_contents, read_index, read_manifest, read_range
from rstar2_train.utils.disk import named_disk
from rstar2_train.utils.files import delete, write_atomically

KEPT = 2
"""Publications that stay visible: a reader of the one before the newest can finish."""
SNAPSHOT = ".publication"
"""Folder of the copy that is being uploaded, inside the state folder."""
ORIGIN_FILE = ".bucket.json"
_KEPT_HERE = frozenset({"lock", "logs", "children.json"})
"""Files of the machine that a restore keeps."""
_READER, _FOLDER_RUN = "reader", "folder"
"""Writers of a folder that only readers have used, and of a folder that a run without a bucket has used."""
_READS = 20
"""Reads of the newest publication, which retention may withdraw meanwhile. Each continues the one before."""


Wanted = Callable[[str], bool]
"""Whether a process needs the file of a state folder with this name."""


class Origin(BaseModel):
    """Where the files of a state folder come from."""

    model_config = ConfigDict(frozen=True)

    address: str
    """Address of the job's objects."""
    server: str | None = None
    """Address of the server; empty: the vendor's own; None: an older version did not write it."""
    writer: str = ""
    """The process that used the folder last; empty: files are missing, because a restore was interrupted or partial."""
    publication: str = ""
    """SHA-256 of the manifest that the folder had when that process started, or of a partial copy; empty: none."""

    def __str__(self) -> str:
        """Return address and server."""
        return f"{self.address} at {self.server}" if self.server else self.address

    def is_of(self, store: ObjectStore) -> bool:
        """Return whether the files come from these objects of this server."""
        return self.address == store.address and self.server in (None, store.server)


class StageDone(StorageError):
    """The stage of a pod has ended well: its attempt has nothing to do, and claims nothing."""


class BucketState:
    """The state of one job in a bucket. Its folder is locked by the caller. Not thread-safe."""

    def __init__(self, store: ObjectStore, state: JobState) -> None:
        """`store`: the job's objects; `state`: the folder that is their cache."""
        self._store = store
        self._state = state
        self._writer: PublicationWriter | None = None
        self._number = 0
        self._digests: dict[tuple[int, int, int], ObjectRecord] = {}
        self._unrestored: list[PublishedObject] = []
        """Files that are only in the bucket, because this process does not need them."""
        self._has_host_objects = False
        """Whether other hosts upload files of checkpoints."""
        self.address = store.address

    def open(
        self, start: PodStart | None = None, *, wanted: Wanted | None = None, on_demand: Wanted = lambda _: False
    ) -> bool:
        """Fence earlier starts of the job, and bring the folder to the newest publication or a later state.

        `start`: the pod of a cluster; None: a run on one machine, which is always the latest start. `wanted`: whether
        this process needs a file; None: all. The others are not restored, and stay a part of each publication.
        `on_demand`: whether a shard of a checkpoint stays in the bucket until a host needs it (host_bucket.py).

        Returns whether files were restored. Raises StorageRejected if the folder belongs to another run or the state to
        a job of another namespace, Fenced if a later pod has started, StageDone, StorageError.
        """
        origin = read_origin(self._state)
        writer = PublicationWriter(self._store, read_index(self._store)[0].attempt + 1)
        index = writer.claim(lambda index: self._claimed(index, start, origin))
        newest = _newest(index)
        behind = newest is not None and not _is_ahead(origin, newest)
        if newest is not None and behind:
            manifest = read_manifest(self._store, newest)
            self._unrestored = [stored for stored in manifest.objects if wanted is not None and not wanted(stored.name)]
            rest = _without(manifest, self._unrestored)
            later = [stored for stored in rest.objects if on_demand(stored.name)]
            restore(self._store, _without(rest, later), self._state)
            leave_objects(self._state.root, later)
        if not self._unrestored:  # else the next process restores the folder again
            digest = newest.sha256 if newest else ""
            _write_origin(self._state, self._store, writer=writer.writer, publication=digest)
        writer.sweep(self._held_keys)
        remote = [*self._unrestored, *host_objects(self._state.root)]
        if lost := sorted(stored.key for stored in remote if stored.key in writer.lost):
            raise ObjectMissing(
                f"{self.address}: the newest state misses {len(lost)} objects, such as {lost[0]}: restore "
                "them from the bucket's older versions, and remove the rule that expires objects"
            )
        self._number = last_number(index)
        self._writer = writer
        return behind

    def publish(self) -> None:
        """Publish the folder as it is now. Uploads only content that no visible publication has.

        Raises Fenced if the job was started again since, StorageError, OSError.
        """
        assert self._writer is not None, "open the state first"
        self._number += 1  # a name is used once, also by a try that fails
        target = self._state.root / SNAPSHOT
        try:
            with named_disk(self._state.root):
                files, uploaded = snapshot(self._state.root, target)
            stored = [*self._unrestored, *uploaded]
            self._writer.publish(f"state-{self._number:06d}", files, digest=self._digest, stored=stored)
        finally:
            shutil.rmtree(target, ignore_errors=True)
        self._writer.retain(self._writer.newest(KEPT))
        self._has_host_objects = self._has_host_objects or bool(uploaded)
        if self._has_host_objects:  # those of checkpoints that were pruned before a publication
            self._writer.sweep(self._held_keys)

    def _held_keys(self) -> set[str]:
        return held_keys(self._state.root)

    def _claimed(self, index: PublicationIndex, start: PodStart | None, origin: Origin | None) -> PublicationIndex:
        """Return the index with the claim of a pod. Raises StorageRejected, Fenced, StageDone."""
        newest = _newest(index)
        check_folder(self._store, self._state, newest, origin)
        if start is None:
            return index
        if namespace := index.other_namespace(start):
            raise StorageRejected(
                f"{self.address} has the state of the job of this name in namespace {namespace}: set another url. To "
                "move that job here, copy its state to the other url by `rstar2 fetch` and `rstar2 publish`"
            )
        if refusal := index.refusal(start):
            raise Fenced(f"{self.address}: {refusal}")
        if start.stage is not None and newest is not None:
            outcome = _outcome(self._store, newest, self._state, start.stage)
            if outcome is not None and outcome.ended_well:
                raise StageDone(f"{self.address}: stage {start.stage} has ended: {outcome.reason}")
        return index.claimed(start)

    def _digest(self, name: str, path: Path) -> ObjectRecord:
        """Return the record of a file; a file that has not changed since the last publication is not read again."""
        status = path.stat()
        key = status.st_ino, status.st_mtime_ns, status.st_size
        if status.st_nlink == 1:  # a copy, whose inode is reused
            return record(name, path)
        known = self._digests.get(key)
        if known is None:
            known = self._digests[key] = record(name, path)
        return known.model_copy(update={"name": name})


def check_folder(store: ObjectStore, state: JobState, newest: IndexEntry | None, origin: Origin | None) -> None:
    """Raise StorageRejected if folder and bucket have different states, or the folder has a part of a state alone."""
    if newest is None and origin is not None and not origin.writer:
        raise StorageRejected(
            f"{state.root} was not restored completely from {origin.address}, and {store.address} has no state of this "
            "job to complete it: delete the folder"
        )
    if newest is None or not state.job_file.exists():
        return
    if origin is None or not origin.is_of(store):
        other = f"of {origin}" if origin else "of runs without spec.storage.url"
        raise StorageRejected(
            f"{store.address} has a state of this job, and {state.root} has one {other}: delete one of them, or pass "
            "another folder with --state"
        )


def read_origin(state: JobState) -> Origin | None:
    """Return the origin of a state folder; None if it was never in a bucket."""
    try:
        return Origin.model_validate_json((state.root / ORIGIN_FILE).read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise CorruptObject(f"{state.root / ORIGIN_FILE} is damaged: delete {state.root}") from error


def fetch_newest(store: ObjectStore, state: JobState, *, checkpoints: bool = True) -> bool:
    """Bring a folder, which no job writes, to the newest publication; return whether files were restored.

    A folder that is ahead of the bucket is kept. Without `checkpoints` it is not a whole state: a run restores the
    rest. Raises ObjectMissing if nothing was published, StorageRejected.
    """

    def bring(newest: IndexEntry) -> bool:
        origin = read_origin(state)
        check_folder(store, state, newest, origin)
        ahead = _is_ahead(origin, newest)
        if ahead and origin is not None and origin.writer != _READER:
            return False
        manifest = read_manifest(store, newest)
        if not checkpoints:
            manifest = _without(manifest, [stored for stored in manifest.objects if is_checkpoint(stored.name)])
        is_copy = origin is not None and origin.publication == newest.sha256
        if is_copy and has_contents(state.root, manifest.objects):  # which a person may have changed
            return False
        restore(store, manifest, state)
        _write_origin(state, store, publication=newest.sha256, writer=_READER if checkpoints else "")
        return True

    return _with_newest(store, bring)


def leave_bucket(state: JobState) -> None:
    """Note that a run without a bucket uses the folder: a later fetch keeps its files. Nothing for other folders.

    Raises StorageRejected if the folder has a part of a state.
    """
    origin = read_origin(state)
    if origin is None:
        return
    if not origin.writer:
        raise StorageRejected(
            f"{state.root} was not restored completely from {origin.address}: repeat `rstar2 fetch`, set "
            "spec.storage.url, or delete the folder"
        )
    if origin.writer == _READER:
        _put_origin(state, origin.model_copy(update={"writer": _FOLDER_RUN}))


def is_ahead(store: ObjectStore, state: JobState) -> bool:
    """Return whether a folder has the newest publication or a later state; also if nothing was ever published."""
    newest = _newest(read_index(store)[0])
    return newest is None or _is_ahead(read_origin(state), newest)


def fetch_part(store: ObjectStore, root: Path, *, wanted: Callable[[str], bool]) -> int:
    """Download the wanted files of the newest publication, by their names; return their number.

    `root`: the state folder on this machine, of which other files may be missing. Raises as `fetch_newest`.
    """

    def download(newest: IndexEntry) -> int:
        manifest = read_manifest(store, newest)
        rest = [stored for stored in manifest.objects if not wanted(stored.name)]
        part = _without(manifest, rest)
        fetch(store, part.objects, root)
        return len(part.objects)

    return _with_newest(store, download)


def published_outcome(store: ObjectStore, state: JobState, stage: str) -> Outcome | None:
    """Return the outcome of a stage in the newest publication; None if there is none. `state`: names its file."""
    if _newest(read_index(store)[0]) is None:
        return None
    return _with_newest(store, lambda newest: _outcome(store, newest, state, stage))


def published_objects(store: ObjectStore) -> list[PublishedObject]:
    """Return the objects of the newest publication; none if nothing was published."""
    if _newest(read_index(store)[0]) is None:
        return []
    return _with_newest(store, lambda newest: list(read_manifest(store, newest).objects))


def _outcome(store: ObjectStore, entry: IndexEntry, state: JobState, stage: str) -> Outcome | None:
    name = state.stage(stage).outcome_file.relative_to(state.root).as_posix()
    for stored in read_manifest(store, entry).objects:
        if stored.name == name:
            try:
                return Outcome.model_validate_json(read_range(store, stored, 0, stored.size))
            except ValidationError as error:
                raise CorruptObject(f"{store.address}: {name} of {entry.name} is no outcome of a stage") from error
    return None


def _without(manifest: PublicationManifest, objects: Sequence[PublishedObject]) -> PublicationManifest:
    """Return a manifest without some of its objects."""
    names = {stored.name for stored in objects}
    return manifest.model_copy(update={"objects": [stored for stored in manifest.objects if stored.name not in names]})


def _with_newest(store: ObjectStore, read: Callable[[IndexEntry], Result]) -> Result:
    """Return the result of a read of the newest publication; repeat it if the publication is withdrawn meanwhile."""
    for number in range(_READS):
        newest = _newest(read_index(store)[0])
        if newest is None:
            raise ObjectMissing(f"{store.address}: no state of this job was ever published")
        try:
            return read(newest)
        except ObjectMissing as error:
            if not _is_withdrawn(store, newest):
                raise ObjectMissing(
                    f"{error}. The newest state needs it: a person or a rule that expires objects deleted it"
                ) from error
            if number == _READS - 1:
                raise ObjectMissing(
                    f"{error}. Newer states replaced {_READS} states while they were read: read faster, or when the "
                    "job has ended"
                ) from error
    raise AssertionError


def restore(store: ObjectStore, manifest: PublicationManifest, state: JobState) -> None:
    """Replace the files of a folder by those of a publication. An interrupted restore is repeated by the next start.

    Raises CorruptObject for a name that no publication has, such as the list of processes that a start terminates.
    """
    for stored in manifest.objects:
        if not is_published(stored.name):
            raise CorruptObject(f"{store.address}: the manifest names {stored.name}, which is not a file of a state")
    names = {stored.name for stored in manifest.objects}
    with named_disk(state.root):
        _write_origin(state, store)
        for name in list(state_files(state.root)):
            if name not in names:
                (state.root / name).unlink()
        for name in MACHINE_FILES - _KEPT_HERE:
            delete(state.root / name)
        delete_host_objects(state.root)
    fetch(store, manifest.objects, state.root)
    os.sync()


def _is_ahead(origin: Origin | None, newest: IndexEntry) -> bool:
    """Return whether a folder has the newest publication, or a later state of the process that published it."""
    if origin is None or not origin.writer:
        return False
    return newest.sha256 == origin.publication or newest.writer == origin.writer


def _newest(index: PublicationIndex) -> IndexEntry | None:
    return index.publications[-1] if index.publications else None


def _is_withdrawn(store: ObjectStore, entry: IndexEntry) -> bool:
    index: PublicationIndex = read_index(store)[0]
    return entry not in index.publications


def _write_origin(state: JobState, store: ObjectStore, *, writer: str = "", publication: str = "") -> None:
    _put_origin(state, Origin(address=store.address, server=store.server, writer=writer, publication=publication))


def _put_origin(state: JobState, origin: Origin) -> None:
    write_atomically(state.root / ORIGIN_FILE, origin.model_dump_json())
