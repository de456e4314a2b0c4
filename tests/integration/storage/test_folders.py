"""Weights and the state of a job on a real server: faults of its line, and an outage, change nothing but the time."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from rstar2_train.api.state_dir import JobState
from rstar2_train.api.validation import load
from rstar2_train.launch.state_upload import StateUpload, UploadTimes
from rstar2_train.storage.folders import FolderCache, FolderPublisher
from rstar2_train.storage.job_state import BucketState, fetch_newest
from rstar2_train.storage.manifest import BLOCK_BYTES
from rstar2_train.storage.store import ObjectStore
from tests.integration.storage.conftest import opened
from tests.support.good_manifest import changed
from tests.support.s3_proxy import FAULTS, S3Proxy
from tests.support.s3_server import s3_server

TIMES = UploadTimes(request=0.2, poll=0.02, interval=1000, longest_wait=0.1, finish=30)


def test_folder_of_many_blocks_is_copied(store: ObjectStore, tmp_path: Path) -> None:
    """A file of several blocks, the last one short, arrives as it was; the end leaves no object."""
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(random.Random(0).randbytes(2 * BLOCK_BYTES + 77))
    (folder / "config.json").write_text("{}")
    publisher = FolderPublisher(store)
    (copy,) = FolderCache(store, tmp_path / "disk").copies([publisher.publish(folder)])
    for name in ("model.safetensors", "config.json"):
        assert (copy / name).read_bytes() == (folder / name).read_bytes()
    publisher.retain(())
    assert [item.name for item in store.list()] == ["index.json"]


def test_folders_through_a_faulty_line_are_exact(proxy: S3Proxy, bucket: str, tmp_path: Path) -> None:
    """With a fault in a third of the requests of both sides every version arrives exactly."""
    luck = random.Random(1)
    proxy.before = lambda request: luck.choice(FAULTS[:-1]) if luck.random() < 0.3 else ""
    publisher = FolderPublisher(opened(proxy.url, bucket))
    cache = FolderCache(opened(proxy.url, bucket), tmp_path / "disk")
    for number in range(5):
        folder = tmp_path / f"{number:06d}"
        folder.mkdir()
        (folder / "rank-0000.shards").write_bytes(luck.randbytes(100_000))
        (copy,) = cache.copies([publisher.publish(folder)])
        assert (copy / "rank-0000.shards").read_bytes() == (folder / "rank-0000.shards").read_bytes()
        publisher.retain({folder})


async def test_outage_of_the_server_loses_nothing(tmp_path: Path) -> None:
    """While the server is stopped the job continues; when it is back, all of the state is in the bucket."""
    state, lines = JobState(tmp_path / "state"), list[str]()
    state.root.mkdir()
    (state.root / "job.json").write_text("{}")

    def checkpoint(step: int) -> None:
        folder = state.stage("sft").checkpoints / f"step-{step:06d}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(str(step))

    async def until(condition: str) -> None:
        async with asyncio.timeout(60):
            while not any(condition in line for line in lines):
                await asyncio.sleep(0.02)

    with s3_server(tmp_path / "s3") as server:
        store = opened(server.url, server.bucket("team"), patience=TIMES.request)
        published = BucketState(store, state)
        published.open()
        upload = StateUpload(
            published, load(changed("spec.storage", {})), state, warn=lines.append, advice="", times=TIMES
        )
        upload.check()
        following = asyncio.create_task(upload.follow(lambda error: pytest.fail(str(error))))
    for step in (1, 2):
        checkpoint(step)
        await until("StorageUnavailable")
    assert upload.health() == {"bucket": "StorageUnavailable"}
    with s3_server(tmp_path / "s3", port=server.port):
        await until("has the state of the job again")
        following.cancel()
        assert await asyncio.to_thread(upload.finish) == ""
        copy = JobState(tmp_path / "copy")
        copy.root.mkdir()
        fetch_newest(store, copy)
    assert sorted(path.name for path in copy.stage("sft").checkpoints.iterdir()) == ["step-000001", "step-000002"]
