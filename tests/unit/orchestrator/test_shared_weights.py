"""Weights through a bucket: the engine's copies equal the trainer's versions, and an outage costs only time."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rstar2_train.api.contracts import StageFailed
from rstar2_train.inference.engine_errors import EngineRejected
from rstar2_train.inference.weight_update import BucketUpdate, DeltaUpdate, FolderUpdate
from rstar2_train.orchestrator import shared_weights
from rstar2_train.orchestrator.context import StageContext, SuspendRequested
from rstar2_train.orchestrator.rollout_session import RolloutSession
from rstar2_train.orchestrator.shared_weights import SharedWeights
from rstar2_train.storage.folder import LocalFolder
from rstar2_train.storage.folders import FolderCache
from rstar2_train.storage.pod_starts import launch_start
from rstar2_train.storage.publication import PublicationWriter
from rstar2_train.storage.store import AccessDenied, CorruptObject, StorageUnavailable
from rstar2_train.storage.verified_read import read_index
from rstar2_train.weights.adapter_check import verify_adapter
from rstar2_train.weights.host_copy import HostCopy
from tests.support.stage_attempt import NewAttempt
from tests.unit.orchestrator.test_weight_transports import LORA, FakeGroup, session_of


class Disk:
    """An engine with a disk of its own: it copies the folders of each update, and records the moved updates."""

    def __init__(self, bucket: LocalFolder, folder: Path) -> None:
        self.cache = FolderCache(bucket, folder)
        self.updates: list[Any] = []
        self.refusals = 0

    async def push(self, update: Any, *, keep_requests: bool = False) -> list[str]:
        assert isinstance(update, BucketUpdate)
        folders = update.update.folders
        copies = self.cache.copies([update.published[folder] for folder in folders])
        self.updates.append(update.update.moved(dict(zip(folders, copies, strict=True))))
        if self.refusals:
            self.refusals -= 1
            raise EngineRejected("rank-0000.shards is damaged")
        return ["engine"]


@pytest.fixture
def bucket(tmp_path: Path) -> LocalFolder:
    return LocalFolder(tmp_path / "bucket" / "demo" / "engine_weights")


@pytest.fixture
def attempt(new_attempt: NewAttempt, tmp_path: Path) -> Any:
    """Return a function that creates an attempt whose engines have disks of their own."""

    def create(**spec: Any) -> StageContext:
        ctx = new_attempt(storage={"url": f"file://{tmp_path}/bucket"}, **spec)
        ctx.endpoints = dataclasses.replace(ctx.endpoints, bucket=True)
        claim(ctx, tmp_path)
        return ctx

    return create


def claim(ctx: StageContext, tmp_path: Path) -> None:
    """Claim the state of the job, as the pod of an attempt does before it starts the orchestrator."""
    job, start = LocalFolder(tmp_path / "bucket" / "demo"), launch_start(ctx.job, ctx.stage.name, ctx.attempt)
    PublicationWriter(job, read_index(job)[0].attempt + 1).claim(lambda index: index.claimed(start))


def connected(ctx: StageContext, bucket: LocalFolder, tmp_path: Path) -> tuple[RolloutSession, Disk]:
    """Return a session whose only engine has a disk of its own."""
    session, disk = session_of(ctx), Disk(bucket, tmp_path / "disk")
    session._pool.push = disk.push  # type: ignore[method-assign]
    return session, disk


async def test_engine_copies_follow_the_trainer(attempt: Any, bucket: LocalFolder, tmp_path: Path) -> None:
    """After each step a host copy of the engine equals the trainer's weights. The bucket has no version without use."""
    ctx = attempt(rollout={"weightTransport": "Delta", "weightSnapshotEvery": 2})
    group: Any = FakeGroup(tmp_path / "model")
    session, disk = connected(ctx, bucket, tmp_path)
    copy = HostCopy()
    await session.weights.push_folder(group.model_dir, "start")
    assert (disk.updates[0].folder / "config.json").read_bytes() == (group.model_dir / "config.json").read_bytes()
    for number in range(5):
        if number == 3:
            disk.refusals = 1  # a snapshot follows
        await session.weights.push(group, f"v{number}")
        update: DeltaUpdate = disk.updates[-1]
        assert all(path.is_relative_to(tmp_path / "disk") for path in update.chain)
        copy.update(update.chain)
        assert np.array_equal(copy.arrays["w"], group.bits)
        group.update()
    assert len(read_index(bucket)[0].publications) == 2  # of v4, and of the version before it
    await session.weights.close()
    assert [item.name for item in bucket.list()] == ["index.json"]


async def test_engine_gets_the_base_of_an_adapter_once(attempt: Any, bucket: LocalFolder, tmp_path: Path) -> None:
    """The copies of base and adapter pass the engine's checks; the base is uploaded and copied with the first one."""
    session, disk = connected(attempt(trainer=LORA), bucket, tmp_path)
    group: Any = FakeGroup(tmp_path / "model")
    for number in range(4):
        await session.weights.push(group, f"v{number}")
        assert verify_adapter(disk.updates[-1].order) == {"model.layers.0.mlp.up_proj": (4, 6)}
        group.update()
    assert len({update.base.folder for update in disk.updates}) == 1
    assert len({update.order.folder for update in disk.updates}) == 4
    assert len(read_index(bucket)[0].publications) == 3  # the base, and the last two adapters


async def test_engines_with_the_trainers_disk_need_no_bucket(attempt: Any, tmp_path: Path) -> None:
    """`rstar2 run` with a URL passes paths, as without."""
    ctx = attempt()
    ctx.endpoints = dataclasses.replace(ctx.endpoints, bucket=False)
    session, pushed = session_of(ctx), []

    async def push(update: Any, *, keep_requests: bool) -> None:
        pushed.append(update)

    session._pool.push = push  # type: ignore[method-assign,assignment]
    await session.weights.push_folder(tmp_path, "start")
    await session.weights.close()
    assert pushed == [FolderUpdate.make(tmp_path, "start")]
    assert not (tmp_path / "bucket" / "demo" / "engine_weights").exists()


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """Return errors; each operation of a store raises the first of them until the list is empty."""
    errors: list[Exception] = []

    class Broken(LocalFolder):
        def __getattribute__(self, name: str) -> Any:
            if name in ("read", "upload", "put_if_absent", "put_if_unchanged") and errors:
                raise errors.pop(0) if len(errors) > 1 else errors[0]
            return super().__getattribute__(name)

    def store(settings: Any, name: str, **_: Any) -> LocalFolder:
        return Broken(Path(settings.url.removeprefix("file://")) / name)

    monkeypatch.setattr(shared_weights, "open_store", store)
    return errors


class BlockedStore(LocalFolder):
    """A store whose first upload waits, and then fails if it shall."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.started, self.released = threading.Event(), threading.Event()
        self.error: Exception | None = None
        self.uploads = 0

    def upload(self, name: str, file: Path) -> None:
        self.uploads += 1
        if self.uploads == 1:
            self.started.set()
            self.released.wait(60)
            if self.error is not None:
                raise self.error
        super().upload(name, file)


@pytest.fixture
def blocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BlockedStore:
    """The store of the weights."""
    stores = {name: BlockedStore(tmp_path / "bucket" / name) for name in ("demo", "demo/engine_weights")}
    monkeypatch.setattr(shared_weights, "open_store", lambda settings, name, **_: stores[name])
    return stores["demo/engine_weights"]


async def test_suspension_does_not_wait_for_an_upload(attempt: Any, blocked: BlockedStore, tmp_path: Path) -> None:
    """A stop request ends the session during an upload, because the checkpoint follows; no other file is uploaded."""
    ctx: StageContext = attempt()
    session = session_of(ctx)
    (_model(tmp_path) / "weights").write_text("1")

    async def stop() -> None:
        await asyncio.to_thread(blocked.started.wait, 60)
        ctx.stopping.set()

    try:
        stopping = asyncio.create_task(stop())
        async with asyncio.timeout(30):
            with pytest.raises(SuspendRequested):
                async with session:
                    await session.weights.push_folder(tmp_path / "model", "start")
            await stopping
    finally:
        blocked.released.set()
    await session.weights.close()  # waits for the thread of the upload
    assert blocked.uploads == 1


async def test_patience_counts_from_the_start_of_an_outage(attempt: Any, blocked: BlockedStore, tmp_path: Path) -> None:
    """A long upload that fails once is repeated: the bucket answered until then."""
    shared = SharedWeights(attempt(), patience=0.5)
    blocked.error = StorageUnavailable("503 SlowDown: busy")
    asyncio.get_running_loop().call_later(1, blocked.released.set)
    assert (await shared.share(FolderUpdate.make(_model(tmp_path), "v1"))).version == "v1"


async def test_cancelled_push_ends_the_report_of_an_outage(
    attempt: Any, broken: list[Exception], tmp_path: Path
) -> None:
    """No later request reports that the bucket answers again."""
    ctx: StageContext = attempt()
    broken.append(StorageUnavailable("503 SlowDown: busy"))
    sharing = asyncio.create_task(SharedWeights(ctx).share(FolderUpdate.make(_model(tmp_path), "v1")))
    async with asyncio.timeout(30):
        while not ctx.progress.unreachable:
            await asyncio.sleep(0.01)
    sharing.cancel()
    await asyncio.gather(sharing, return_exceptions=True)
    assert not ctx.progress.unreachable


async def test_outage_delays_the_push(attempt: Any, broken: list[Exception], tmp_path: Path) -> None:
    """A push waits for the bucket; the progress has the server's words meanwhile. A stop request ends the wait."""
    ctx: StageContext = attempt()
    shared = SharedWeights(ctx)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    update = FolderUpdate.make(tmp_path / "model", "v1")
    broken.append(StorageUnavailable("503 SlowDown: busy"))
    sharing = asyncio.create_task(ctx.unless_stopped(shared.share(update)))
    async with asyncio.timeout(30):
        while ctx.progress.unreachable != {"storage": "503 SlowDown: busy"}:
            await asyncio.sleep(0.01)
        broken.clear()
        assert (await sharing).version == "v1"
    assert not ctx.progress.unreachable
    broken.append(StorageUnavailable("503 SlowDown: busy"))
    (tmp_path / "model" / "config.json").write_text("other")
    sharing = asyncio.create_task(ctx.unless_stopped(shared.share(update)))
    async with asyncio.timeout(30):
        while not ctx.progress.unreachable:
            await asyncio.sleep(0.01)
        ctx.stopping.set()
        with pytest.raises(SuspendRequested):
            await sharing
        await shared.close()  # only logs that the weights stay


@pytest.mark.parametrize(
    ("error", "reason", "retryable"),
    [
        (StorageUnavailable("no answer"), "StorageUnavailable", True),
        (AccessDenied("403 ExpiredToken"), "StorageUnavailable", True),
        (CorruptObject("index.json is damaged"), "BadConfiguration", False),
    ],
)
async def test_lasting_failure_ends_the_stage(
    attempt: Any, broken: list[Exception], tmp_path: Path, error: Exception, reason: str, retryable: bool
) -> None:
    """Without an answer, or with expired keys, the attempt fails and is retried; other errors are not retried."""
    broken.append(error)
    with pytest.raises(StageFailed, match=str(error)) as failure:
        await SharedWeights(attempt(), patience=0).share(FolderUpdate.make(_model(tmp_path), "v1"))
    assert (failure.value.reason, failure.value.retryable) == (reason, retryable)


@pytest.mark.parametrize("published", [True, False])
async def test_push_of_a_replaced_attempt_fails(
    attempt: Any, bucket: LocalFolder, tmp_path: Path, published: bool
) -> None:
    """An orchestrator that another one has replaced publishes and deletes no weights, also with its first version."""
    early, late = attempt(), attempt()
    late.attempt = 2
    old, live = SharedWeights(early), SharedWeights(late)
    update = FolderUpdate.make(_model(tmp_path), "v1")
    if published:
        await old.share(update)
    claim(late, tmp_path)
    await live.share(update)
    before = {item.name for item in bucket.list()}
    (update.folder / "config.json").write_text("other")
    with pytest.raises(StageFailed, match="belongs to attempt 2 of stage") as failure:
        await old.share(update)
    assert failure.value.reason == "StaleAttempt"
    await old.prune(update)
    await old.close()
    assert {item.name for item in bucket.list()} == before
    await live.share(update)


async def test_close_without_a_version_sends_no_request(attempt: Any, broken: list[Exception], tmp_path: Path) -> None:
    """An attempt that has published nothing claims nothing at its end."""
    broken.append(StorageUnavailable("503 SlowDown: busy"))
    shared = SharedWeights(attempt(), patience=0)
    with pytest.raises(StageFailed):
        await shared.share(FolderUpdate.make(_model(tmp_path), "v1"))
    broken.clear()
    await shared.close()
    assert not (tmp_path / "bucket" / "demo" / "engine_weights").exists()


def _model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder
