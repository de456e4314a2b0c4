"""Files of ranks on hosts without a common disk; test_bucket_pods.py sends them between processes through Ray."""

from __future__ import annotations

import dataclasses
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
from rstar2_train.storage.folder import LocalFolder
from rstar2_train.storage.host_bucket import HostBucket
from rstar2_train.storage.job_state import BucketState, fetch_newest
from rstar2_train.storage.manifest import PodStart
from rstar2_train.storage.publication import Fenced
from rstar2_train.storage.store import AccessDenied, StorageUnavailable
from rstar2_train.trainer import checkpoint, host_files
from rstar2_train.trainer.host_files import HostFiles
from rstar2_train.trainer.trainer_group import TrainerGroup
from rstar2_train.trainer.types import TrainConfig
from rstar2_train.utils.files import file_sha256

START = PodStart(uid="u", program="launch", stage="sft", attempt=1)
CHECKPOINT = "stages/sft/checkpoints/step-000002"
SHARED = {"config.json": b"{}", "part/model.safetensors": os.urandom(3 * host_files.BLOCK_BYTES // 2), "empty": b""}


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

    def other_hosts(self) -> list[int]:
        return list(range(len(self.disks)))

    def other_ranks(self) -> list[int]:
        return self.other_hosts()

    def run_background(self, function: Callable[..., Any], args: Sequence[tuple[Any, ...]]) -> list[Any]:
        own = pickle.loads(pickle.dumps(function))
        results = []
        for root, (path, *rest) in zip([*self.disks, self.here], args, strict=True):
            results.append(own(root / path.relative_to(self.here), *rest))
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

    count = 3

    def call_background(self, method: str, folder: Path) -> list[dict[str, tuple[int, str]]]:
        assert method == "write_checkpoint"
        parts = []
        for rank, root in enumerate([*self.disks, self.here]):
            file = root / folder.relative_to(self.here) / f"rank-{rank}"
            file.write_bytes(os.urandom(100))
            parts.append({file.name: (100, file_sha256(file))})
        return parts

    def call(self, method: str, folder: Path, argument: Any) -> list[str | None]:
        if method == "restore":
            return []
        roots = [*self.disks, self.here]
        return [checkpoint.find_damage(root / folder.relative_to(self.here), argument) for root in roots]


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def read(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_provide_copies_a_folder_once(tmp_path: Path) -> None:
    """Each other host gets the content, again only after a change; a checkpoint is deleted there after its use."""
    hosts = OtherHosts(tmp_path, 2)
    files, model = HostFiles(hosts, hosts.bucket), hosts.here / "model"
    write(model, SHARED)
    files.provide(model)
    assert [read(disk / "model") for disk in hosts.disks] == [SHARED, SHARED]
    sent = len(hosts.calls)
    files.provide(model)
    assert len(hosts.calls) == sent
    (model / "part/model.safetensors").write_bytes(b"short")
    with files.provided(model):
        assert [read(disk / "model") for disk in hosts.disks] == [SHARED | {"part/model.safetensors": b"short"}] * 2
    assert not any((disk / "model").exists() for disk in hosts.disks)
    files.provide(model / "config.json")
    assert read(hosts.disks[1] / "model") == {"config.json": b"{}"}


def test_provide_leaves_claims_alone(tmp_path: Path) -> None:
    """A path outside of the own disk is on a claim of all hosts: nothing is sent and, above all, nothing deleted."""
    hosts = OtherHosts(tmp_path, 2)
    write(tmp_path / "claim", SHARED)
    for files in (HostFiles(hosts, hosts.bucket), HostFiles(hosts, None)):
        files.provide(tmp_path / "claim")
        with files.provided(tmp_path / "claim"):
            pass
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
    """A state has the files of all hosts, of which this host has only its own; a restore on this host brings all."""
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
    HostFiles(hosts, hosts.bucket).complete(hosts.here / CHECKPOINT)
    assert {
        f"{name}/{file}": content for file, content in read(hosts.here / CHECKPOINT).items()
    }.items() >= ranks.items()
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


def test_group_restores_a_checkpoint_of_several_hosts(tmp_path: Path) -> None:
    """The best checkpoint of the same attempt, which has no file of the other hosts here, is read by all ranks."""
    ranks = OtherRanks(tmp_path, 2)
    state, folder = publisher(ranks), ranks.here / CHECKPOINT
    group = TrainerGroup(ranks=3, config=TrainConfig(), bucket=ranks.bucket, start_ranks=lambda **_: ranks)  # type: ignore[arg-type]
    group.write_checkpoint(folder, step=2, extra={})
    assert not (folder / "rank-0").exists()
    state.publish()
    assert group.restore(folder).step == 2
    assert checkpoint.verify(folder).ranks == 3 and not any((disk / CHECKPOINT).exists() for disk in ranks.disks)


def test_upload_survives_a_restart_on_the_same_disk(tmp_path: Path) -> None:
    """A program that starts again on a folder that is ahead of the bucket still has the objects of its checkpoint."""
    hosts = OtherHosts(tmp_path, 2)
    publisher(hosts).publish()
    write_checkpoint(hosts)
    publisher(hosts).publish()
    assert len(restored(hosts, tmp_path / "copy")) == 4
