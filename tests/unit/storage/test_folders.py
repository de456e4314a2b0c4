"""Published folders: copied once and verified, deleted when no reader needs them, and never those of a late writer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rstar2_train.storage.folder import LocalFolder
from rstar2_train.storage.folders import KEPT_ORDERS, FolderCache, FolderPublisher, JobClaim
from rstar2_train.storage.manifest import PodStart
from rstar2_train.storage.publication import Fenced, PublicationWriter
from rstar2_train.storage.store import CorruptObject, ObjectMissing, StorageRejected, StorageUnavailable, StoredObject
from rstar2_train.storage.verified_read import read_index
from tests.unit.storage.test_job_state import CountingStore

FILES = {"config.json": "{}", "deep/weights.safetensors": "abc"}


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    return CountingStore(tmp_path / "bucket")


def version(root: Path, number: int, **files: str) -> Path:
    """Write the folder of a version."""
    folder = root / "weights" / f"{number:06d}"
    for name, text in {**FILES, "number": str(number), **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def content(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def test_folder_is_copied_once(store: CountingStore, tmp_path: Path) -> None:
    """A copy has the files that are not hidden. A folder that did not change costs no request on either side."""
    folder = version(tmp_path, 1)
    (folder / ".cache").mkdir()
    (folder / ".cache" / "lock").write_text("")
    publisher, cache = FolderPublisher(store), FolderCache(store, tmp_path / "disk")
    entry = publisher.publish(folder)
    (copy,) = cache.copies([entry])
    assert content(copy) == {**FILES, "number": "1"}
    store.calls.clear()
    assert publisher.publish(folder) == entry and cache.copies([entry]) == [copy]
    assert not store.calls
    (folder / "number").write_text("changed")
    assert content(cache.copies([publisher.publish(folder)])[0])["number"] == "changed"
    assert content(copy)["number"] == "1"  # another copy: a name never has other content


def test_unchanged_files_are_not_uploaded_again(store: CountingStore, tmp_path: Path) -> None:
    """A version shares the content of those before it."""
    publisher = FolderPublisher(store)
    publisher.publish(version(tmp_path, 1))
    store.calls.clear()
    publisher.publish(version(tmp_path, 2))
    assert store.calls["upload"] == 1


def test_cache_keeps_the_last_orders(store: CountingStore, tmp_path: Path) -> None:
    """The copies of the present order and of those before it stay; the rest is deleted, also of an earlier process."""
    publisher, cache = FolderPublisher(store), FolderCache(store, tmp_path / "disk")
    base = publisher.publish(version(tmp_path, 0))
    entries = [publisher.publish(version(tmp_path, number)) for number in range(1, 6)]
    for entry in entries:
        cache.copies([base, entry])
        cache.copies([base, entry])  # the same order again is no other order
    kept = [base, *entries[-KEPT_ORDERS - 1 :]]
    assert {path.name for path in (tmp_path / "disk").iterdir()} == {entry.sha256 for entry in kept}
    FolderCache(store, tmp_path / "disk").copies([entries[-1]])
    assert [path.name for path in (tmp_path / "disk").iterdir()] == [entries[-1].sha256]


def test_copy_of_an_earlier_process_is_verified(store: CountingStore, tmp_path: Path) -> None:
    """After a restart a damaged or torn copy is downloaded again, and only what is damaged."""
    entry = FolderPublisher(store).publish(version(tmp_path, 1))
    (copy,) = FolderCache(store, tmp_path / "disk").copies([entry])
    (copy / "number").write_text("2")
    (copy / ".weights.safetensors.77").write_text("torn")
    store.calls.clear()
    assert FolderCache(store, tmp_path / "disk").copies([entry]) == [copy]
    assert content(copy) == {**FILES, "number": "1"} and store.calls == {"read": 2}


def test_retain_deletes_other_folders(store: CountingStore, tmp_path: Path) -> None:
    """Withdrawn folders leave no object; a reader of one fails by name, and so does one of a damaged object."""
    publisher = FolderPublisher(store)
    first, second = version(tmp_path, 1), version(tmp_path, 2)
    entries = [publisher.publish(first), publisher.publish(second)]
    publisher.retain({second})
    cache = FolderCache(store, tmp_path / "disk")
    with pytest.raises(ObjectMissing):
        cache.copies(entries[:1])
    assert content(cache.copies(entries[1:])[0]) == content(second)
    for file in (tmp_path / "bucket").rglob("objects/*"):
        file.write_text("x")
    with pytest.raises(CorruptObject):
        FolderCache(store, tmp_path / "other").copies(entries[1:])
    publisher.retain(())
    assert [item.name for item in store.list()] == ["index.json"]


def test_later_publisher_fences_and_cleans(store: CountingStore, tmp_path: Path) -> None:
    """A late process publishes nothing. Its folders stay until the later one deletes them: engines may still read."""
    early, late = FolderPublisher(store), FolderPublisher(store)
    old = early.publish(version(tmp_path, 1))
    newer = version(tmp_path, 2)
    entry = late.publish(newer)
    assert entry.name > old.name
    with pytest.raises(Fenced):
        early.publish(version(tmp_path, 3))
    assert content(FolderCache(store, tmp_path / "disk").copies([old])[0])["number"] == "1"
    late.retain({newer})
    assert read_index(store)[0].publications == [entry]


def test_late_publisher_deletes_no_upload(tmp_path: Path) -> None:
    """A process that a later one fences while it cleans deletes no object that the later one uploads meanwhile."""
    newer, uploads = version(tmp_path, 2), list[str]()

    class Slow(LocalFolder):
        def list(self, prefix: str = "") -> Iterator[StoredObject]:
            """Let another process claim the store and upload an object before the listing."""
            late = PublicationWriter(LocalFolder(tmp_path / "bucket"), 9)
            late.claim()
            self.upload(f"attempts/9-{late.writer}/objects/{'0' * 64}", newer / "number")
            uploads.extend(item.name for item in super().list(prefix))
            return iter([*super().list(prefix)])

    with pytest.raises(Fenced):
        FolderPublisher(Slow(tmp_path / "bucket")).publish(version(tmp_path, 1))
    assert uploads and set(uploads) <= {item.name for item in LocalFolder(tmp_path / "bucket").list()}


def test_claim_of_a_replaced_pod_is_repeated(store: CountingStore, tmp_path: Path) -> None:
    """A pod that another one replaces between the check of the job and the claim of the folders claims nothing."""
    job = LocalFolder(tmp_path / "job")
    starts = [PodStart(uid="one", program="launch", stage="rl", attempt=number) for number in (1, 2)]
    live: list[FolderPublisher] = []

    class Paused(LocalFolder):
        def put_if_absent(self, name: str, body: bytes) -> str:
            if not live:
                claim_job(job, starts[1])
                live.append(FolderPublisher(store, JobClaim(job, starts[1])))
                live[0].publish(version(tmp_path, 2))
            return super().put_if_absent(name, body)

    claim_job(job, starts[0])
    early = FolderPublisher(Paused(tmp_path / "bucket"), JobClaim(job, starts[0]))
    with pytest.raises(Fenced, match="belongs to attempt 2 of stage rl of job one, not to attempt 1"):
        early.publish(version(tmp_path, 1))
    live[0].publish(version(tmp_path, 3))


def claim_job(job: LocalFolder, start: PodStart) -> None:
    writer = PublicationWriter(job, read_index(job)[0].attempt + 1)
    writer.claim(lambda index: index.claimed(start))


def test_interrupted_publication_is_repeated(store: CountingStore, tmp_path: Path) -> None:
    """A publication whose requests fail at any point is repeated, and is then complete."""
    folder, at, done = version(tmp_path, 1), 0, False
    while not done:
        at += 1
        own = CountingStore(tmp_path / f"bucket-{at}")
        publisher, own.fails_at = FolderPublisher(own), at
        try:
            publisher.publish(folder)
            done = True
        except StorageUnavailable:
            own.fails_at = 0
            (copy,) = FolderCache(own, tmp_path / f"disk-{at}").copies([publisher.publish(folder)])
            assert content(copy) == content(folder)
            publisher.retain(())
            again = FolderPublisher(own)
            again.publish(version(tmp_path, 2))  # deletes what the first try left
            again.retain(())
            assert [item.name for item in LocalFolder(tmp_path / f"bucket-{at}").list()] == ["index.json"]
    assert at > 5


def test_empty_folder_is_refused(store: CountingStore, tmp_path: Path) -> None:
    """A folder without files is no version."""
    with pytest.raises(StorageRejected, match="has no files"):
        FolderPublisher(store).publish(tmp_path)
