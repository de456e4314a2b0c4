"""Uploads and reads of the trainer pods other than pod 0, with a real S3 server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path

import pytest

from rstar2_train.api.state_dir import JobState
from rstar2_train.api.storage import StorageSpec
from rstar2_train.storage.host_bucket import HostBucket, record_files
from rstar2_train.storage.host_objects import write_host_objects
from rstar2_train.storage.job_state import BucketState, fetch_newest
from rstar2_train.storage.manifest import BLOCK_BYTES, PodStart, PublishedObject
from rstar2_train.storage.source import open_store
from tests.support.s3_proxy import Fault, S3Proxy

SHARD = "__1_0.distcp"
CHECKPOINT = "stages/sft/checkpoints/step-000001"


@pytest.mark.parametrize("fault", ["503", "reset", "lost-answer"])
def test_host_requests_are_repeated(fault: Fault, proxy: S3Proxy, bucket: str, tmp_path: Path) -> None:
    """After failed requests, also of one of several parts, the published checkpoint has the shard of the other pod, and
    a third pod reads it."""
    here, host, copy = (tmp_path / name for name in ("here", "host", "copy"))
    for folder in (here / CHECKPOINT, host, copy):
        folder.mkdir(parents=True)
    (host / SHARD).write_bytes(content := os.urandom(BLOCK_BYTES + 1000))
    start = PodStart(uid="u", program="launch", stage="sft", attempt=1)
    settings = StorageSpec(url=f"s3://{bucket}/team", endpoint_url=proxy.url)
    store = open_store(settings, "job", patience=60)
    pod_0 = BucketState(store, JobState(here))
    pod_0.open(start)
    job = HostBucket(here, settings, "job", start, patience=60)
    home = job.new_home()
    objects = [PublishedObject(**item.model_dump(), home=home) for item in record_files(host, [SHARD])]
    write_host_objects(here / CHECKPOINT, objects)
    (here / CHECKPOINT / "manifest.json").write_text("{}")

    faults: Iterator[Fault] = chain([fault] * 3, repeat(""))
    proxy.before = lambda request: next(faults)
    job.upload(host, objects)
    assert next(faults) == "", "the faults have been met"
    pod_0.publish()
    fetch_newest(store, JobState(copy))
    assert (copy / CHECKPOINT / SHARD).read_bytes() == content
    with job.offered(here / CHECKPOINT) as remote:
        faults = chain([fault] * 3, repeat(""))
        assert job.fetch(tmp_path / "third", remote.only({SHARD: None})) == len(content)
        assert job.fetch(tmp_path / "part", remote.only({SHARD: [1]})) == BLOCK_BYTES
    assert next(faults) == "" and (tmp_path / "third" / SHARD).read_bytes() == content
    assert (tmp_path / "part" / SHARD).read_bytes() == bytes(BLOCK_BYTES) + content[BLOCK_BYTES:]
