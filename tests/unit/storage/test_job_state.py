"""The state of a job in a bucket: a start on any folder continues from the newest state, and no state is lost."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest

from rstar2_train.api.state_dir import JobState
from rstar2_train.storage import state_files as published_files
from rstar2_train.storage.folder import LocalFolder
from rstar2_train.storage.host_objects import HOST_OBJECTS, write_host_objects
from rstar2_train.storage.job_state import BucketState, fetch_newest, read_origin
from rstar2_train.storage.manifest import MAX_ATTEMPT, PodStart
from rstar2_train.storage.publication import Fenced, PublicationWriter
from rstar2_train.storage.state_files import is_published, snapshot, state_files
from rstar2_train.storage.store import CorruptObject, ObjectMissing, StorageRejected, StorageUnavailable
from rstar2_train.storage.verified_read import read_index
from rstar2_train.utils.files import write_atomically

T = TypeVar("T")
PUBLISHED = {
    "job.json": "{}",
    "track/journal.jsonl": "1\n2\n",
    "stages/sft/attempt.json": "1",
    "stages/sft/checkpoints/step-000002/.metadata": "index",
    "stages/sft/checkpoints/step-000002/__0_0.distcp": "weights",
    "stages/model/trajectories/step-000001.groups": "a",
    "buckets/s3/team/.rstar2-source-0123456789abcdef": "[]",
}
ONLY_HERE = {
    "lock": "1",
    "logs/engine-0.log": "log",
    "mlflow.db": "sqlite",
    "buckets/s3/team/model/weights": "downloaded",
    "stages/sft/checkpoints/.aside-step-000003-0/__0_0.distcp": "torn",
    "stages/sft/.outcome.json.77": "torn",
}


class CountingStore(LocalFolder):
    """A store that counts its operations, and fails from one of them on."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.calls: Counter[str] = Counter()
        self.fails_at = 0

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name not in ("stat", "read", "put_if_absent", "put_if_unchanged", "upload", "delete"):
            return value
        self.calls[name] += 1
        if self.fails_at and self.calls.total() >= self.fails_at:
            raise StorageUnavailable("the server does not answer")
        return value


def write(root: Path, files: dict[str, str]) -> JobState:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return JobState(root)


def read(root: Path) -> dict[str, str]:
    return {name: (root / name).read_text() for name in state_files(root)}


def opened(store: LocalFolder, state: JobState) -> BucketState:
    state.root.mkdir(parents=True, exist_ok=True)
    bucket = BucketState(store, state)
    bucket.open()
    return bucket


def lose_objects(store: LocalFolder) -> None:
    """Delete the contents of all files, as a rule of the bucket can."""
    for item in list(store.list("attempts")):
        if "/objects/" in item.name:
            store.delete(item.name)


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    return CountingStore(tmp_path / "bucket" / "job")


def test_state_empty_folder_is_restored(store: CountingStore, tmp_path: Path) -> None:
    """Every file that a restart reads comes back with its content; files of the machine and torn ones do not."""
    bucket = opened(store, write(tmp_path / "a", PUBLISHED | ONLY_HERE))
    bucket.publish()
    state = JobState(tmp_path / "b")
    state.root.mkdir()
    assert BucketState(store, state).open()
    assert read(state.root) == PUBLISHED
    assert {path.name for path in state.root.iterdir()} == {"job.json", "track", "stages", "buckets", ".bucket.json"}
    assert not (tmp_path / "a" / ".publication").exists()


@pytest.mark.parametrize(
    "name",
    [
        "children.json",  # a start terminates the processes in it
        "lock",
        ".bucket.json",
        ".publication/job.json",
        "logs/engine-0.log",
        "redis/appendonly.aof",
        "mlflow.db",
        "stages/.hidden/outcome.json",
        "stages/sft/.outcome.json.77",
        "buckets/s3/team/model/weights",
    ],
)
def test_state_hostile_name_is_not_restored(name: str, store: CountingStore, tmp_path: Path) -> None:
    """A manifest with a file that no state has is refused by name, by a run and by a reader; nothing is written."""
    file = tmp_path / "content"
    file.write_text("[]")
    PublicationWriter(store, 1).publish("state-000001", {"job.json": file, name: file})
    for start in (lambda state: BucketState(store, state).open(), lambda state: fetch_newest(store, state)):
        state = JobState(tmp_path / "cache")
        state.root.mkdir(exist_ok=True)
        with pytest.raises(CorruptObject, match=name.replace(".", r"\.")):
            start(state)
        assert list(state.root.iterdir()) == []


def test_state_names_are_those_of_the_folder(tmp_path: Path) -> None:
    """The rule for one name and the walk through a folder agree."""
    state = write(tmp_path / "a", PUBLISHED | ONLY_HERE)
    assert (
        {name for name in PUBLISHED | ONLY_HERE if is_published(name)} == set(state_files(state.root)) == set(PUBLISHED)
    )


def test_state_unchanged_files_are_uploaded_once(store: CountingStore, tmp_path: Path) -> None:
    """A publication uploads new content only, also after a restart on another machine; a renamed file costs nothing."""
    state = write(tmp_path / "a", PUBLISHED)
    bucket = opened(store, state)
    bucket.publish()
    assert store.calls["upload"] == len(set(PUBLISHED.values()))
    write(state.root, {"track/journal.jsonl": "1\n2\n3\n", "stages/sft/outcome.json": "1"})
    bucket.publish()
    assert store.calls["upload"] == len(set(PUBLISHED.values())) + 1
    again = opened(store, JobState(tmp_path / "b"))
    again.publish()
    assert store.calls["upload"] == len(set(PUBLISHED.values())) + 1


def test_state_publication_does_not_read_the_bucket(store: CountingStore, tmp_path: Path) -> None:
    """A process knows the index that it wrote last; the conditional write detects another one."""
    state = write(tmp_path / "a", PUBLISHED)
    bucket = opened(store, state)
    for number in range(4):
        store.calls.clear()
        write(state.root, {"progress.json": f"step {number}", f"stages/sft/trajectories/{number}.parquet": f"{number}"})
        bucket.publish()
    assert store.calls.pop("read") == 2  # of the folder, by its conditional writes
    assert store.calls == {"upload": 2, "put_if_absent": 1, "put_if_unchanged": 2, "delete": 2}


def test_state_folder_that_is_ahead_is_kept(store: CountingStore, tmp_path: Path) -> None:
    """kill -9 between a checkpoint and its publication loses nothing on the same machine."""
    state = write(tmp_path / "a", PUBLISHED)
    opened(store, state).publish()
    write(state.root, {"stages/sft/checkpoints/step-000004/__0_0.distcp": "later"})
    bucket = BucketState(store, state)
    assert not bucket.open()
    assert "stages/sft/checkpoints/step-000004/__0_0.distcp" in read(state.root)
    bucket.publish()
    assert read(opened(store, JobState(tmp_path / "b"))._state.root) == read(state.root)


def test_state_folder_that_is_behind_is_replaced(store: CountingStore, tmp_path: Path) -> None:
    """The job ran on another machine since: its state counts, and files of the old one do not survive."""
    here = write(tmp_path / "a", PUBLISHED | {"mlflow.db": "sqlite", "lock": "1", "weights/v1/x": "old"})
    opened(store, here).publish()
    write(here.root, {"stages/sft/checkpoints/step-000003/__0_0.distcp": "never published"})
    write_host_objects(here.root / "stages/sft/checkpoints/step-000003", [])
    other = JobState(tmp_path / "b")
    bucket = opened(store, other)
    shutil.rmtree(other.root / "stages/sft/checkpoints/step-000002")
    write(other.root, {"stages/sft/checkpoints/step-000009/__0_0.distcp": "newest"})
    bucket.publish()
    assert BucketState(store, here).open()
    assert read(here.root) == read(other.root)
    assert (here.root / "lock").exists() and not (here.root / "mlflow.db").exists()
    assert not (here.root / "weights").exists()
    assert not list(here.root.glob(f"stages/sft/checkpoints/*/{HOST_OBJECTS}"))


def test_state_of_an_earlier_start_is_fenced(store: CountingStore, tmp_path: Path) -> None:
    """A run that wakes up after another start publishes nothing, and deletes nothing."""
    old = write(tmp_path / "a", PUBLISHED)
    first = opened(store, old)
    first.publish()
    second = opened(store, JobState(tmp_path / "b"))
    before = {item.name for item in store.list()}
    write(old.root, {"job.json": "other"})
    with pytest.raises(Fenced, match="attempt 2 has claimed"):
        first.publish()
    index, _ = read_index(store)
    assert [entry.attempt for entry in index.publications] == [1]
    assert before <= {item.name for item in store.list()}
    second.publish()
    third = JobState(tmp_path / "c")
    opened(store, third)
    assert read(third.root) == PUBLISHED


def test_state_of_another_run_is_refused(store: CountingStore, tmp_path: Path) -> None:
    """A folder with a state of its own is not overwritten; it may fill an empty bucket, which moves the job there."""
    here = write(tmp_path / "a", PUBLISHED)
    opened(store, here).publish()
    other = write(tmp_path / "b", {"job.json": "other"})
    with pytest.raises(StorageRejected, match=r"of runs without spec\.storage\.url: delete one of them"):
        BucketState(store, other).open()
    second = CountingStore(tmp_path / "second")
    opened(second, here).publish()  # to another bucket
    assert read(opened(second, JobState(tmp_path / "c"))._state.root) == PUBLISHED
    with pytest.raises(StorageRejected, match=f"one of {second.address}"):
        BucketState(store, here).open()
    assert (other.root / "job.json").read_text() == "other"


def test_state_published_during_a_claim_is_not_mixed(tmp_path: Path) -> None:
    """A folder without origin moves into an empty bucket only: another start may fill it until the claim succeeds."""
    state, other = write(tmp_path / "a", {"job.json": "1"}), write(tmp_path / "b", {"job.json": "2"})

    class Raced(LocalFolder):
        def put_if_absent(self, name: str, body: bytes) -> str:
            """Let the other start publish before the claim of this one."""
            if not (tmp_path / "bucket").exists():
                opened(LocalFolder(tmp_path / "bucket"), other).publish()
            return super().put_if_absent(name, body)

    with pytest.raises(StorageRejected, match=r"of runs without spec\.storage\.url: delete one of them"):
        BucketState(Raced(tmp_path / "bucket"), state).open()
    assert read(state.root) == {"job.json": "1"}
    assert read(opened(LocalFolder(tmp_path / "bucket"), JobState(tmp_path / "c"))._state.root) == {"job.json": "2"}


@pytest.mark.parametrize("moves", [True, False])
def test_state_partial_folder_is_not_published(moves: bool, store: CountingStore, tmp_path: Path) -> None:
    """A folder without its checkpoints is no state for an empty bucket, be it another one or one that was emptied."""
    opened(store, write(tmp_path / "a", PUBLISHED)).publish()
    copy = JobState(tmp_path / "copy")
    copy.root.mkdir()
    assert fetch_newest(store, copy, checkpoints=False)
    if not moves:
        shutil.rmtree(tmp_path / "bucket")
    empty = LocalFolder(tmp_path / "second") if moves else store
    with pytest.raises(StorageRejected, match=r"was not restored completely from .*: delete the folder"):
        BucketState(empty, copy).open()
    assert not list(empty.list())


def test_state_restore_fails_at_every_operation(store: CountingStore, tmp_path: Path) -> None:
    """The server stops answering at operation 1, 2, 3, ... of a start: the next start has the whole state."""
    opened(store, write(tmp_path / "a", PUBLISHED)).publish()
    for at in range(1, 100):
        state = write(tmp_path / f"cache-{at}", {"lock": "1"})
        store.fails_at = store.calls.total() + at
        try:
            BucketState(store, state).open()
            completed = True
        except StorageUnavailable:
            completed = False
        store.fails_at = 0
        if completed:
            assert at > 10
            return
        opened(store, state)
        assert read(state.root) == PUBLISHED and read_origin(state) is not None
    pytest.fail("a start needs more than 100 operations")


def test_state_publication_fails_at_every_operation(store: CountingStore, tmp_path: Path) -> None:
    """A publication that fails at operation n is repeated, and then complete; the bucket keeps two of them."""
    state = write(tmp_path / "a", PUBLISHED)
    bucket = opened(store, state)
    for at in range(1, 100):
        write(state.root, {"track/journal.jsonl": f"{at}\n", "stages/sft/checkpoints/step-000002/x": str(at)})
        store.fails_at = store.calls.total() + at
        try:
            bucket.publish()
            completed = True
        except StorageUnavailable:
            completed = False
        store.fails_at = 0
        bucket.publish()
        copy = JobState(tmp_path / f"copy-{at}")
        copy.root.mkdir()
        fetch_newest(store, copy)
        assert read(copy.root) == read(state.root)
        if completed:
            assert at > 8 and len(read_index(store)[0].publications) == 2
            opened(store, state)  # sweeps what failed publications left
            named = len(set(read(state.root).values()))
            assert len([item for item in store.list() if "/objects/" in item.name]) <= named + 2
            return
    pytest.fail("a publication needs more than 100 operations")


def test_state_reader_gets_the_newest(store: CountingStore, tmp_path: Path) -> None:
    """A reader claims nothing: the run continues. Its folder follows the newest publication."""
    copy = JobState(tmp_path / "copy")
    copy.root.mkdir()
    with pytest.raises(ObjectMissing, match="no state of this job"):
        fetch_newest(store, copy)
    state = write(tmp_path / "a", PUBLISHED)
    bucket = opened(store, state)
    for text in ("one", "two", "two"):
        write(state.root, {"report.json": text})
        bucket.publish()
        assert fetch_newest(store, copy)
        assert read(copy.root) == read(state.root)
    assert not fetch_newest(store, copy)
    assert not fetch_newest(store, state)  # that of the run itself


KEPT = ("stages/sft/kept-0", "kept-1", "stages/sft/kept-2")


class Writer:
    """Replaces a file by one in another folder, twice, and appends to the journal: one write after each read."""

    def __init__(self, root: Path, *, first: int) -> None:
        """`first`: number of the read after which it starts."""
        self._writes, self._left = self._write(root), first

    def _write(self, root: Path) -> Iterator[None]:
        for number, (old, new) in enumerate(pairwise(KEPT)):
            write_atomically(root / new, "")
            yield
            (root / old).unlink()
            yield
            write_atomically(root / "progress.json", str(number))
            yield
            with (root / "track/journal.jsonl").open("a") as file:
                file.write(f"{number}\n")
            yield

    def after_read(self, item: T) -> T:
        """Return the item that was read."""
        self._left -= 1
        if self._left <= 0:
            next(self._writes, None)
        return item


def test_snapshot_is_a_state_of_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer works between any two reads: a copy always has one of its files, and whole lines of the journal."""
    names, copy, writers = published_files.state_files, published_files._copy, list[Writer]()
    monkeypatch.setattr(published_files, "state_files", lambda root: map(writers[-1].after_read, names(root)))
    monkeypatch.setattr(published_files, "_copy", lambda *file: writers[-1].after_read(copy(*file)))
    monkeypatch.setattr(published_files, "_PAUSE_SECONDS", 0)
    for first in range(30):
        root = write(tmp_path / f"{first}", PUBLISHED | {KEPT[0]: ""}).root
        writers.append(Writer(root, first=first))
        copied, _ = snapshot(root, tmp_path / f"copy-{first}")
        assert len({*KEPT} & {*copied}) in (1, 2)
        assert copied["track/journal.jsonl"].read_text().endswith("\n")


def test_file_next_to_the_stages_is_published(store: CountingStore, tmp_path: Path) -> None:
    """A file that a person puts into the folder of the stages is published and restored."""
    bucket = opened(store, write(tmp_path / "here", {"job.json": "{}", "stages/notes.txt": "mine"}))
    bucket.publish()
    other = JobState(tmp_path / "there")
    opened(store, other)
    assert read(other.root) == {"job.json": "{}", "stages/notes.txt": "mine"}


def test_lost_objects_are_uploaded_again(store: CountingStore, tmp_path: Path) -> None:
    """Objects that a rule of the bucket deleted are uploaded by the first publication after the next start."""
    state = write(tmp_path / "here", PUBLISHED)
    opened(store, state).publish()
    lose_objects(store)
    other = JobState(tmp_path / "there")
    other.root.mkdir()
    with pytest.raises(ObjectMissing, match="a person or a rule that expires objects deleted it"):
        fetch_newest(store, other)
    opened(store, state).publish()
    assert fetch_newest(store, other)
    assert read(other.root) == PUBLISHED


def test_lost_objects_of_unneeded_files_are_refused(store: CountingStore, tmp_path: Path) -> None:
    """A pod that restores some files does not publish a state whose other files are lost."""
    opened(store, write(tmp_path / "here", PUBLISHED)).publish()
    lose_objects(store)
    other = JobState(tmp_path / "there")
    other.root.mkdir()
    with pytest.raises(ObjectMissing, match="the newest state misses 7 objects, such as"):
        BucketState(store, other).open(wanted=lambda _: False)


def test_folder_of_another_server_is_refused(store: CountingStore, tmp_path: Path) -> None:
    """The same address on another server is another state: the start fails and changes nothing."""
    state = write(tmp_path / "here", PUBLISHED)
    store.server = "http://first:9000"
    opened(store, state).publish()
    other = CountingStore(tmp_path / "second" / "job")
    other.address, other.server = store.address, "http://second:9000"
    opened(other, write(tmp_path / "there", {"job.json": "other"})).publish()
    with pytest.raises(StorageRejected, match=r"at http://first:9000: delete one of them"):
        opened(other, state)
    assert read(state.root) == PUBLISHED


def test_deleted_index_ends_its_writer(store: CountingStore, tmp_path: Path) -> None:
    """A process whose index was deleted can't know its owner: it publishes nothing."""
    state = write(tmp_path / "here", {"job.json": "1"})
    first = opened(store, state)
    first.publish()
    store.delete("index.json")
    with pytest.raises(Fenced, match=r"index\.json was deleted"):
        first.publish()
    assert read_index(store)[1] == ""


def test_objects_of_others_stay(tmp_path: Path) -> None:
    """A start deletes no object that no publication can have: of a job below this one, or of a person."""
    root = tmp_path / "bucket"
    nested = LocalFolder(root / "job" / "attempts")
    opened(nested, write(tmp_path / "nested", {"job.json": "nested"})).publish()
    (root / "job" / "attempts" / "my notes.txt").write_text("mine")
    store = LocalFolder(root / "job")
    for content in "12":
        opened(store, write(tmp_path / "here", {"job.json": content})).publish()
    opened(store, JobState(tmp_path / "here"))
    assert (root / "job" / "attempts" / "my notes.txt").exists()
    copy = JobState(tmp_path / "copy")
    copy.root.mkdir()
    assert fetch_newest(nested, copy) and read(copy.root) == {"job.json": "nested"}


def test_fetch_repairs_a_changed_copy(store: CountingStore, tmp_path: Path) -> None:
    """A copy with a changed, a missing and an additional file is brought back to the newest state."""
    opened(store, write(tmp_path / "here", PUBLISHED)).publish()
    copy = JobState(tmp_path / "copy")
    copy.root.mkdir()
    assert fetch_newest(store, copy)
    assert not fetch_newest(store, copy)
    (copy.root / "job.json").write_text("[]")
    (copy.root / "stages/sft/attempt.json").unlink()
    assert fetch_newest(store, copy)
    assert read(copy.root) == PUBLISHED


@pytest.mark.parametrize("name", ["analysis", ".publication", ".job.json.PID"])
def test_state_link_out_of_the_folder_is_deleted(name: str, store: CountingStore, tmp_path: Path) -> None:
    """A start and a publication write and delete nothing behind a symbolic link, and remove it."""
    opened(store, write(tmp_path / "here", PUBLISHED)).publish()
    outside = write(tmp_path / "outside", {"job.json": "other", "file": "other"}).root
    copy = JobState(tmp_path / "copy")
    copy.root.mkdir()
    link = copy.root / name.replace("PID", str(os.getpid()))
    link.symlink_to(outside / "file" if "PID" in name else outside)
    opened(store, copy).publish()
    assert read(copy.root) == PUBLISHED and not link.is_symlink()
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"job.json": "other", "file": "other"}


def test_fetch_of_a_part_is_not_repeated(store: CountingStore, tmp_path: Path) -> None:
    """Files of a command next to a copy without checkpoints stay, until the bucket has a newer state."""
    bucket = opened(store, write(tmp_path / "here", PUBLISHED))
    bucket.publish()
    copy = write(tmp_path / "copy", {"analysis/index.html": "page"})
    assert fetch_newest(store, copy, checkpoints=False)
    copy = write(tmp_path / "copy", {"analysis/index.html": "page"})
    assert not fetch_newest(store, copy, checkpoints=False) and copy.analysis.exists()
    write(tmp_path / "here", {"report.json": "new"})
    bucket.publish()
    assert fetch_newest(store, copy, checkpoints=False)
    assert fetch_newest(store, copy) and read(copy.root) == PUBLISHED | {"report.json": "new"}


def test_damaged_outcome_is_named(store: CountingStore, tmp_path: Path) -> None:
    """An outcome that is none ends the start of a pod with its name, before the claim."""
    opened(store, write(tmp_path / "here", {"job.json": "{}", "stages/sft/outcome.json": '{"x": 1}'})).publish()
    before = read_index(store)[0]
    start = PodStart(uid="u", namespace="team", program="launch", stage="sft", attempt=1)
    other = JobState(tmp_path / "there")
    other.root.mkdir()
    with pytest.raises(CorruptObject, match=r"stages/sft/outcome\.json of state-000001 is no outcome of a stage"):
        BucketState(store, other).open(start)
    assert read_index(store)[0] == before


def test_largest_attempt_is_refused(store: CountingStore) -> None:
    """A claim never writes an index that no process can read."""
    PublicationWriter(store, MAX_ATTEMPT).claim()
    with pytest.raises(CorruptObject, match="is above"):
        PublicationWriter(store, MAX_ATTEMPT + 1).claim()
    assert read_index(store)[0].attempt == MAX_ATTEMPT


def test_name_without_number_is_no_obstacle(store: CountingStore, tmp_path: Path) -> None:
    """A publication whose name has no number, by another program, is restored and followed by the next number."""
    (file := tmp_path / "job.json").write_text("{}")
    writer = PublicationWriter(store, 1)
    writer.claim()
    writer.publish("hello", {"job.json": file})
    state = JobState(tmp_path / "here")
    opened(store, state).publish()
    assert [entry.name for entry in read_index(store)[0].publications] == ["hello", "state-000001"]
