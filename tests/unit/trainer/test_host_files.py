"""Files of ranks on hosts without a common disk; test_bucket_pods.py has such hosts as processes of Ray."""

from __future__ import annotations

import dataclasses
import errno
import os
import pickle
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.api.contracts import StageFailed
from rstar2_train.api.state_dir import JobState
from rstar2_train.api.storage import StorageSpec
from rstar2_train.storage import host_bucket, publication, verified_read
from rstar2_train.storage.folder import LocalFolder
from rstar2_train.storage.host_bucket import HostBucket
from rstar2_train.storage.host_objects import read_host_objects
from rstar2_train.storage.job_state import BucketState, fetch_newest
from rstar2_train.storage.manifest import PodStart, RemoteFile
from rstar2_train.storage.publication import Fenced
from rstar2_train.storage.source import fetch_source
from rstar2_train.storage.state_files import is_shard
from rstar2_train.storage.store import AccessDenied, CorruptObject, StorageUnavailable
from rstar2_train.trainer import checkpoint, host_files
from rstar2_train.trainer.host_files import HostFiles
from rstar2_train.trainer.trainer_group import TrainerGroup
from rstar2_train.trainer.types import TrainConfig
from rstar2_train.utils.disk import DiskRefused
from rstar2_train.utils.files import file_sha256

START = PodStart(uid="u", program="launch", stage="sft", attempt=1)
CHECKPOINT = "stages/sft/checkpoints/step-000002"
SHARED = {"config.json": b"{}", "part/model.safetensors": os.urandom(3 * host_files.BLOCK_BYTES // 2), "empty": b""}
SMALL = SHARED | {"part/model.safetensors": b"tensors"}


class OtherHosts:
    """Hosts whose disks are folders of this machine: their path for `/here/x` is `/host-N/x`. A rank runs on each, and
    one more on this host."""

    def __init__(self, folder: Path, count: int) -> None:
        self.here = folder / "here"
        self.disks = [folder / f"host-{number}" for number in range(count)]
        self.bucket = HostBucket(self.here, StorageSpec(url=f"file://{folder}/bucket"), "job", START, patience=0)
        self.store = LocalFolder(folder / "bucket" / "job")
        self.calls: list[str] = []
        self.uploaded: Callable[[], None] = lambda: None
        """Called after the upload of each rank."""

        self.fetched: list[tuple[int, set[str]]] = []
        """Ranks that read files from the bucket, and the names of these."""

    @property
    def count(self) -> int:
        return len(self.disks) + 1

    def host_ranks(self) -> list[list[int]]:
        return [[len(self.disks)], *([rank] for rank in range(len(self.disks)))]

    def run_background(self, function: Callable[..., Any], args: Sequence[tuple[Any, ...]]) -> list[Any]:
        own = pickle.loads(pickle.dumps(function))
        results = []
        for rank, (root, (path, *rest)) in enumerate(zip([*self.disks, self.here], args, strict=True)):
            results.append(own(root / path.relative_to(self.here), *rest))
            if function.__name__ == "fetch" and rest[0].files:
                self.fetched.append((rank, {file.name for file in rest[0].files}))
            if function.__name__ == "upload":
                self.uploaded()
        return results

    def start_file_call(self, rank: int, function: Callable[..., Any], *args: Any) -> Any:
        self.calls.append(function.__name__)
        path, *rest = args
        assert path.is_relative_to(self.here), "only files of the own disk travel"
        return lambda: function(self.disks[rank] / path.relative_to(self.here), *rest)

    def file_result(self, reference: Any) -> Any:
        return reference()


class OtherRanks(OtherHosts):
    """Ranks on these hosts whose part of a checkpoint is a file of random bytes."""

    def call_background(self, method: str, folder: Path) -> list[dict[str, tuple[int, str]]]:
        assert method == "write_checkpoint"
        parts = []
        for rank, root in enumerate([*self.disks, self.here]):
            file = root / folder.relative_to(self.here) / f"rank-{rank}"
            file.write_bytes(os.urandom(100))
            parts.append({file.name: (100, file_sha256(file))})
            if root == self.here:
                (file.parent / checkpoint.INDEX).write_text("index")
                parts[-1][checkpoint.INDEX] = (5, file_sha256(file.parent / checkpoint.INDEX))
        return parts

    needed: Sequence[Sequence[str]] = ()
    """Files that the restore of each rank reads."""

    def call(self, method: str, folder: Path, reset: bool, size: int = 0) -> list[Any]:
        roots = [root / folder.relative_to(self.here) for root in (*self.disks, self.here)]
        assert all((root / checkpoint.INDEX).read_text() == "index" for root in roots)
        if method == "restore":
            assert all((root / name).exists() for root, names in zip(roots, self.needed, strict=True) for name in names)
        return [{name: [0] for name in names} for names in self.needed]

    def call_each(self, method: str, args: list[Any]) -> list[str | None]:
        roots = [*self.disks, self.here]
        return [
            checkpoint.find_damage(root / folder.relative_to(self.here), *rest)
            for root, (folder, *rest) in zip(roots, args, strict=True)
        ]


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def read(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_provide_reads_a_folder_from_the_bucket_once(tmp_path: Path) -> None:
    """Each other host gets the content, again only after a change, and none of it from this host."""
    hosts = OtherHosts(tmp_path, 2)
    files, model = HostFiles(hosts, hosts.bucket), hosts.here / "models/base"
    write(model, SMALL | {".cache/x": b"only here"})
    state = publisher(hosts)
    state.publish()
    files.provide(model)
    assert [read(disk / "models/base") for disk in hosts.disks] == [SMALL, SMALL]
    files.provide(model)
    assert hosts.fetched == [(0, set(SMALL)), (1, set(SMALL))] and set(hosts.calls) == {"delete"}
    (model / "part/model.safetensors").write_bytes(b"short")
    with pytest.raises(StageFailed, match=r"part/model.safetensors is not the file of the newest state"):
        files.provide(model)
    state.publish()
    files.provide(model)
    assert [read(disk / "models/base") for disk in hosts.disks] == [SMALL | {"part/model.safetensors": b"short"}] * 2
    files.provide(model / "config.json")
    assert read(hosts.disks[1] / "models/base") == SMALL | {"part/model.safetensors": b"short"}


def test_provide_reads_a_source_from_its_own_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each host reads it there with the digests of this host's download: another content is refused."""
    hosts = OtherHosts(tmp_path, 2)
    source = LocalFolder(tmp_path / "source")
    write(tmp_path / "source", {f"base/{name}": content for name, content in SMALL.items()} | {"roc.py": b"def f(): 0"})
    monkeypatch.setattr(host_bucket, "open_source", lambda *_, **__: source)
    files, folder = HostFiles(hosts, hosts.bucket), hosts.here / "buckets/s3/team"
    for key in ("base", "roc.py"):
        fetch_source(source, key, folder, is_plain=False)
        files.provide(folder / key)
    assert [read(disk / "buckets/s3/team/base") for disk in hosts.disks] == [SMALL, SMALL]
    assert (hosts.disks[0] / "buckets/s3/team/roc.py").read_bytes() == b"def f(): 0"
    write(tmp_path / "source", {"roc.py": b"def f(): 1"})
    with pytest.raises(StageFailed, match=r"source/roc.py \(roc.py\): block 0 contradicts its SHA-256"):
        HostFiles(hosts, hosts.bucket).provide(folder / "roc.py")


def test_provide_leaves_claims_alone(tmp_path: Path) -> None:
    """A path outside of the own disk is on a claim of all hosts: nothing is sent and, above all, nothing deleted."""
    hosts = OtherHosts(tmp_path, 2)
    write(tmp_path / "claim", SHARED)
    for files in (HostFiles(hosts, hosts.bucket), HostFiles(hosts, None)):
        files.provide(tmp_path / "claim")
    assert not hosts.calls and read(tmp_path / "claim") == SHARED


def test_gathered_brings_the_files_of_all_hosts(tmp_path: Path) -> None:
    """The folder of this host has all files afterwards, and the others none, also after an error of a rank."""
    hosts = OtherHosts(tmp_path, 2)
    files, folder = HostFiles(hosts, hosts.bucket), hosts.here / ".aside-1"
    folder.mkdir(parents=True)
    with files.gathered(folder):
        write(folder, {"rank-0": b"0"})
        for number, disk in enumerate(hosts.disks):
            write(disk / ".aside-1", {f"host-{number}/{name}": content for name, content in SHARED.items()})
    written = {f"host-{number}/{name}": content for number in (0, 1) for name, content in SHARED.items()}
    assert read(folder) == {"rank-0": b"0"} | written
    with pytest.raises(FileExistsError, match=r"rank-0 was written on two hosts"), files.gathered(folder):
        write(hosts.disks[1] / ".aside-1", {"rank-0": b"1"})
    with pytest.raises(RuntimeError), files.gathered(folder):
        raise RuntimeError
    assert not any((disk / ".aside-1").exists() for disk in hosts.disks)
    assert read(folder)["rank-0"] == b"0"


def publisher(hosts: OtherHosts, attempt: int = 1) -> BucketState:
    """Claim the state for an attempt whose pod 0 is this host."""
    state = JobState(hosts.here)
    write(state.root, {"job.json": b"{}"})
    bucket = BucketState(hosts.store, state)
    bucket.open(START.model_copy(update={"attempt": attempt}))
    return bucket


def write_checkpoint(hosts: OtherHosts, name: str = CHECKPOINT, content: bytes = b"") -> None:
    """Let the rank of each host write its file of a checkpoint, and let the other hosts upload theirs."""
    files, folder = HostFiles(hosts, hosts.bucket), (hosts.here / name).with_name(".aside-1")
    folder.mkdir(parents=True)
    try:
        with files.created(folder):
            for number, disk in enumerate([*hosts.disks, hosts.here]):
                write(disk / folder.relative_to(hosts.here), {f"rank-{number}": content + name.encode() * (number + 1)})
            files.upload(folder, [[f"rank-{number}"] for number in range(len(hosts.disks) + 1)])
        write(folder, {"manifest.json": b"{}"})
        folder.rename(hosts.here / name)
    except BaseException:
        shutil.rmtree(folder)
        raise


def objects(hosts: OtherHosts) -> set[str]:
    """Return the names of all contents in the bucket."""
    return {item.name for item in hosts.store.list("attempts") if "/objects/" in item.name}


def restored(hosts: OtherHosts, folder: Path) -> dict[str, bytes]:
    """Return the files of the newest state."""
    folder.mkdir()
    fetch_newest(hosts.store, JobState(folder))
    return read(folder / "stages")


def test_upload_leaves_the_files_of_other_hosts_there(tmp_path: Path) -> None:
    """A state has the files of all hosts, of which this host has only its own; a reader of the state gets all."""
    hosts = OtherHosts(tmp_path, 2)
    state = publisher(hosts)
    write_checkpoint(hosts)
    assert set(read(hosts.here / CHECKPOINT)) == {"rank-2", "manifest.json", ".host-objects.json"}
    assert not any((disk / "stages/sft/checkpoints/.aside-1").exists() for disk in hosts.disks)
    assert set(hosts.calls) == {"make_folder", "delete"}, "no block travels"
    state.publish()
    name = CHECKPOINT.removeprefix("stages/")
    ranks = {f"{name}/rank-{number}": CHECKPOINT.encode() * (number + 1) for number in range(3)}
    assert restored(hosts, tmp_path / "copy") == ranks | {f"{name}/manifest.json": b"{}"}
    before = objects(hosts)
    state.publish()
    assert objects(hosts) == before, "the files are not uploaded again"


def test_upload_of_a_pruned_checkpoint_is_deleted(tmp_path: Path) -> None:
    """States may skip a checkpoint. A publication deletes its objects, and none of a checkpoint in progress."""
    hosts = OtherHosts(tmp_path, 2)
    state, checkpoints = publisher(hosts), (hosts.here / CHECKPOINT).parent
    write_checkpoint(hosts)
    state.publish()
    published = objects(hosts)
    write_checkpoint(hosts, "stages/sft/checkpoints/step-000004")
    shutil.rmtree(checkpoints / "step-000004")
    assert len(objects(hosts) - published) == 2
    hosts.uploaded = state.publish
    write_checkpoint(hosts, "stages/sft/checkpoints/step-000006")
    assert len(objects(hosts) - published) == 2, "of the last checkpoint alone"
    state.publish()
    assert len(restored(hosts, tmp_path / "copy")) == 8


@pytest.mark.parametrize(
    ("error", "reason", "retryable"),
    [
        (StorageUnavailable("no answer"), "StorageUnavailable", True),
        (AccessDenied("403 ExpiredToken"), "StorageUnavailable", True),
        (OSError("the disk is broken"), "", False),
    ],
)
def test_upload_that_fails_leaves_no_checkpoint(tmp_path: Path, error: Exception, reason: str, retryable: bool) -> None:
    """The checkpoint does not become visible, the error names the cause, and the next one has all files."""
    hosts = OtherHosts(tmp_path, 2)
    state = publisher(hosts)

    def fail() -> None:
        raise error

    hosts.uploaded = fail
    with pytest.raises(StageFailed if reason else OSError, match=str(error)) as failure:
        write_checkpoint(hosts)
    if isinstance(failure.value, StageFailed):
        assert (failure.value.reason, failure.value.retryable) == (reason, retryable)
    state.publish()
    assert not restored(hosts, tmp_path / "without")
    hosts.uploaded = lambda: None
    write_checkpoint(hosts)
    state.publish()
    assert len(restored(hosts, tmp_path / "copy")) == 4


def test_upload_of_a_fenced_attempt_is_never_visible(tmp_path: Path) -> None:
    """A later attempt starts during the upload: no state names the objects, and the later one deletes them.

    A host of a replaced attempt then uploads nothing more.
    """
    hosts, later = OtherHosts(tmp_path / "old", 2), OtherHosts(tmp_path / "new", 2)
    start = START.model_copy(update={"attempt": 2})
    later.store, later.bucket = hosts.store, dataclasses.replace(hosts.bucket, cache=later.here, start=start)
    stale, live = publisher(hosts), list[BucketState]()

    def replace() -> None:
        if not live:
            live.append(publisher(later, attempt=2))

    hosts.uploaded = replace
    write_checkpoint(hosts, content=b"stale")
    before = objects(hosts)
    assert before
    with pytest.raises(StageFailed, match="belongs to attempt 2 of stage sft") as failure:
        write_checkpoint(hosts, "stages/sft/checkpoints/step-000004")
    assert failure.value.reason == "StaleAttempt" and objects(hosts) == before
    with pytest.raises(Fenced):
        stale.publish()
    write_checkpoint(later)
    live[0].publish()
    assert not any(content.startswith(b"stale") for content in read(tmp_path / "old/bucket").values())
    assert len(restored(hosts, tmp_path / "copy")) == 4


def group_of(ranks: OtherRanks) -> TrainerGroup:
    return TrainerGroup(ranks=3, config=TrainConfig(), bucket=ranks.bucket, start_ranks=lambda **_: ranks)  # type: ignore[arg-type]


@pytest.mark.parametrize("published", [True, False])
def test_group_restores_a_checkpoint_of_several_hosts(tmp_path: Path, published: bool) -> None:
    """The best checkpoint of the same attempt, also one that no state has yet: each host reads what its ranks need.

    Nothing of it stays on the other hosts, or in the bucket, and no block travels.
    """
    ranks = OtherRanks(tmp_path, 2)
    state, folder = publisher(ranks), ranks.here / CHECKPOINT
    group_of(ranks).write_checkpoint(folder, step=2, extra={})
    own = set(read(folder))
    if published:
        state.publish()
    before = objects(ranks)
    ranks.calls, ranks.needed = [], (["rank-0"], ["rank-0", "rank-2"], ["rank-1", "rank-2"])
    assert group_of(ranks).restore(folder).step == 2
    index = {checkpoint.INDEX}
    assert ranks.fetched == [(0, index), (1, index), (2, index), (0, {"rank-0"}), (1, {"rank-0", "rank-2"}),
                             (2, {"rank-1", "rank-2"})]  # fmt: skip
    assert set(ranks.calls) == {"delete"} and set(read(folder)) == own
    assert not any((disk / CHECKPOINT).exists() for disk in ranks.disks)
    state.publish()
    assert objects(ranks) == before if published else before < objects(ranks)
    assert len(restored(ranks, tmp_path / "copy")) == 5


def resumed(ranks: OtherRanks, folder: Path) -> OtherRanks:
    """Publish a checkpoint, and return the hosts of the next attempt, whose pod 0 has no file of tensors."""
    state = publisher(ranks)
    group_of(ranks).write_checkpoint(ranks.here / CHECKPOINT, step=2, extra={})
    state.publish()
    others = OtherRanks(folder, 2)
    others.store, others.bucket = ranks.store, dataclasses.replace(ranks.bucket, cache=others.here)
    BucketState(others.store, JobState(others.here)).open(START, on_demand=lambda name: "rank-" in name)
    assert set(read(others.here / CHECKPOINT)) == {"manifest.json", ".metadata", ".host-objects.json"}
    return others


def test_group_resumes_without_the_shards_in_pod_0(tmp_path: Path) -> None:
    """Other ranks need other files; a file is compared on each host that has it. The next states keep all files."""
    others = resumed(OtherRanks(tmp_path / "old", 2), tmp_path / "new")
    others.needed = (["rank-0", "rank-1"], ["rank-1", "rank-2"], ["rank-2"])
    assert group_of(others).restore(others.here / CHECKPOINT).step == 2
    assert others.fetched[3:] == [(0, {"rank-0", "rank-1"}), (1, {"rank-1", "rank-2"}), (2, {"rank-2"})]
    state = publisher(others)
    before = objects(others)
    state.publish()
    assert before <= objects(others)
    assert len(restored(others, tmp_path / "copy")) == 5
    assert is_shard(f"{CHECKPOINT}/__0_0.distcp") and not is_shard(f"{CHECKPOINT}/.metadata")


def test_group_finds_damage_of_a_file_that_only_other_hosts_need(tmp_path: Path) -> None:
    """The disk of pod 0 has damaged a shard. Its ranks do not read it, but find that: other hosts may read it."""
    ranks = OtherRanks(tmp_path, 2)
    publisher(ranks)
    group_of(ranks).write_checkpoint(ranks.here / CHECKPOINT, step=2, extra={})
    (ranks.here / CHECKPOINT / "rank-2").write_bytes(b"x" * 100)
    ranks.needed = (["rank-0"], ["rank-1"], [])
    with pytest.raises(checkpoint.CheckpointInvalid, match=r"damaged checkpoint: the SHA-256 of .*here.*rank-2"):
        group_of(ranks).restore(ranks.here / CHECKPOINT)


def test_fetch_reads_the_blocks_that_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other blocks are a hole, and the disk needs space for the blocks alone; each block is compared."""
    for module in (verified_read, publication):
        monkeypatch.setattr(module, "BLOCK_BYTES", 4)
    store = LocalFolder(tmp_path / "store")
    write(tmp_path / "store", {"key": b"aaaabbbbccccdd"})
    whole = RemoteFile(**publication.record("file", tmp_path / "store/key").model_dump(), key="key")
    for blocks, moved, content in (
        ([1, 3], 8, b"\0\0\0\0bbbb\0\0\0\0dd"),
        ([], 0, bytes(14)),
        (None, 14, b"aaaabbbbccccdd"),
    ):
        part = whole.model_copy(update={"blocks": blocks})
        assert verified_read.fetch(store, [part], tmp_path / "copy") == moved
        assert (tmp_path / "copy/file").read_bytes() == content
    write(tmp_path / "store", {"key": b"aaaaxxxxccccdd"})
    assert verified_read.fetch(store, [whole.model_copy(update={"blocks": [0]})], tmp_path / "other") == 4
    with pytest.raises(CorruptObject, match="block 1 contradicts its SHA-256"):
        verified_read.fetch(store, [whole.model_copy(update={"blocks": [1]})], tmp_path / "other")


@pytest.mark.parametrize("fault", ["damaged", "missing", "unavailable", "disk", "manifest"])
def test_group_read_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """No host uses a file with another digest; each failure has its reason, and is retried if that can help."""
    others = resumed(OtherRanks(tmp_path / "old", 2), tmp_path / "new")
    others.needed = (["rank-0"], ["rank-1"], ["rank-2"])
    shard = next(item for item in read_host_objects(others.here / CHECKPOINT) if item.name == "rank-1")
    stored = tmp_path / "old/bucket/job" / shard.key
    error, message, reason, retryable = {
        "damaged": (StageFailed, "block 0 contradicts its SHA-256", "BadConfiguration", False),
        "missing": (StageFailed, shard.key, "BadConfiguration", False),
        "unavailable": (StageFailed, "cannot be read from spec.storage.url: no answer", "StorageUnavailable", True),
        "disk": (DiskRefused, "No space left on the disk", "", False),
        "manifest": (checkpoint.CheckpointInvalid, "damaged checkpoint: the SHA-256 of .*rank-1", "BadData", False),
    }[fault]
    if fault == "damaged":
        stored.write_bytes(b"x" * 100)
    elif fault == "missing":
        stored.unlink()
    elif fault == "unavailable":
        monkeypatch.setattr(LocalFolder, "read", fails_for(shard.key, StorageUnavailable("no answer")))
    elif fault == "disk":
        monkeypatch.setattr(verified_read, "write_blocks", fails_for("rank-1", OSError(errno.ENOSPC, "full")))
    else:
        manifest = others.here / CHECKPOINT / "manifest.json"
        files = checkpoint.read_manifest(others.here / CHECKPOINT, {f"rank-{rank}": 100 for rank in range(3)}).files
        manifest.write_text(manifest.read_text().replace(files["rank-1"][1], "0" * 64))
        BucketState(others.store, JobState(others.here)).open(START)
    with pytest.raises(error, match=message) as failure:
        group_of(others).restore(others.here / CHECKPOINT)
    if isinstance(failure.value, StageFailed):
        assert (failure.value.reason, failure.value.retryable) == (reason, retryable)
    assert not any((disk / CHECKPOINT).exists() for disk in others.disks)
    assert not (others.here / CHECKPOINT / "rank-2").exists()


def fails_for(name: str, error: Exception) -> Callable[..., Any]:
    """Return a function that fails if an argument has a name at its end, and else works as that of the module."""
    real = LocalFolder.read if isinstance(error, StorageUnavailable) else verified_read.write_blocks

    def call(*args: Any, **options: Any) -> Any:
        if any(str(arg).endswith(name) for arg in args):
            raise error
        return real(*args, **options)

    return call


def test_upload_survives_a_restart_on_the_same_disk(tmp_path: Path) -> None:
    """A program that starts again on a folder that is ahead of the bucket still has the objects of its checkpoint."""
    hosts = OtherHosts(tmp_path, 2)
    publisher(hosts).publish()
    write_checkpoint(hosts)
    publisher(hosts).publish()
    assert len(restored(hosts, tmp_path / "copy")) == 4
