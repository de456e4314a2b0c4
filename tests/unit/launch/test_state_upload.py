"""The uploads of a job: after each commit point, through an outage, and none after a later start of the job."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.state_dir import JobState
from rstar2_train.api.validation import load
from rstar2_train.launch.local import upload
from rstar2_train.launch.local.preflight import PreflightError
from rstar2_train.launch.local.upload import check, fetch_state, open_upload, publish_state
from rstar2_train.launch.state_upload import StateUpload, UploadTimes
from rstar2_train.storage.folder import LocalFolder
from rstar2_train.storage.job_state import BucketState, fetch_newest
from rstar2_train.storage.retries import PATIENCE_SECONDS
from rstar2_train.storage.store import Content, ObjectStore, StorageUnavailable
from tests.support.full_disk import fill, remount, small_disk
from tests.support.good_manifest import changed

TIMES = UploadTimes(request=0, poll=0.01, interval=1000, longest_wait=0.02, finish=0.2)


class SwitchedStore(LocalFolder):
    """A store that can stop answering."""

    is_down = False

    def __getattribute__(self, name: str) -> Any:
        if name in ("read", "upload", "put_if_absent", "put_if_unchanged") and self.is_down:
            raise StorageUnavailable("503 SlowDown: busy")
        return super().__getattribute__(name)


def job_with(url: str | None) -> AgenticRLJob:
    return load(changed("spec.storage", {"url": url} if url else {}))


def checkpoint(state: JobState, step: int) -> None:
    folder = state.stage("sft").checkpoints / f"step-{step:06d}"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(str(step))


def published_steps(store: ObjectStore, folder: Path) -> list[str]:
    copy = JobState(folder)
    copy.root.mkdir(exist_ok=True)
    fetch_newest(store, copy)
    checkpoints = copy.stage("sft").checkpoints
    return sorted(path.name for path in checkpoints.iterdir()) if checkpoints.exists() else []


@pytest.fixture
def state(tmp_path: Path) -> JobState:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "job.json").write_text("{}")
    return JobState(tmp_path / "state")


def upload_to(store: ObjectStore, state: JobState, lines: list[str]) -> StateUpload:
    bucket = BucketState(store, state)
    bucket.open()
    return StateUpload(bucket, job_with(None), state, warn=lines.append, advice="Publish it later.", times=TIMES)


async def until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def test_upload_follows_checkpoints_through_an_outage(state: JobState, tmp_path: Path) -> None:
    """An outage is reported once, with the server's words; after it, the newest state is published: nothing is lost."""
    store, lines = SwitchedStore(tmp_path / "bucket"), list[str]()
    upload = upload_to(store, state, lines)
    upload.check()

    async def play() -> None:
        following = asyncio.create_task(upload.follow(lambda error: pytest.fail(str(error))))
        checkpoint(state, 1)
        await until(lambda: published_steps(store, tmp_path / "copy") == ["step-000001"])
        store.is_down = True
        checkpoint(state, 2)
        await until(lambda: lines)
        assert upload.health() == {"bucket": "StorageUnavailable"}
        checkpoint(state, 3)
        await asyncio.sleep(0.1)
        store.is_down = False
        await until(lambda: len(lines) == 2)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    asyncio.run(play())
    assert published_steps(store, tmp_path / "copy") == ["step-000001", "step-000002", "step-000003"]
    assert "StorageUnavailable: 503 SlowDown: busy" in lines[0] and "has the state of the job again" in lines[1]
    assert upload.health() == {"bucket": "ready"}


def test_upload_defect_is_reported(state: JobState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of no known kind ends neither the uploads nor the run in silence."""
    store, lines = SwitchedStore(tmp_path / "bucket"), list[str]()
    upload = upload_to(store, state, lines)
    upload.check()

    def fail(*_: object) -> None:
        raise IndexError("no such part")

    with monkeypatch.context() as patch:
        patch.setattr(BucketState, "publish", fail)
        assert "IndexError: no such part" in upload.finish()
    assert "StorageUnavailable: IndexError: no such part. Training continues" in lines[0]
    assert upload.finish() == ""


def test_upload_outage_at_the_end_keeps_the_folder(state: JobState, tmp_path: Path) -> None:
    """The end of a run waits for the bucket for a bounded time; the same command publishes the state later."""
    store, lines = SwitchedStore(tmp_path / "bucket"), list[str]()
    upload = upload_to(store, state, lines)
    upload.check()
    checkpoint(state, 1)
    store.is_down = True
    message = upload.finish()
    assert "503 SlowDown: busy" in message and message.endswith("Publish it later.")
    store.is_down = False
    assert published_steps(store, tmp_path / "copy") == []
    again = upload_to(store, state, lines)
    assert again.finish() == ""
    assert published_steps(store, tmp_path / "copy") == ["step-000001"]


def test_upload_from_a_full_disk_loses_nothing(state: JobState, tmp_path: Path) -> None:
    """A full or read-only disk is named, and is no outage of the bucket, which keeps the state. With space again the
    upload continues."""
    (state.root / "kept.bin").write_bytes(bytes(3 * 2**20))
    job, lines = job_with(f"file://{tmp_path}/runs"), list[str]()
    publish_state(job, state)
    with small_disk(tmp_path / "disk", mebibytes=2) as disk:
        other = JobState(disk / "job")
        other.root.mkdir()
        with pytest.raises(PreflightError, match=rf"^error: only 1 MiB are free under {disk}/job, 4 MiB are needed"):
            open_upload(job, other, warn=lines.append)
        remount(disk, "size=8m")
        upload = open_upload(job, other, warn=lines.append)
        assert upload is not None
        checkpoint(other, 1)
        for is_full, refusal in ((True, "No space left on the disk"), (False, "the disk of .* is read-only")):
            if is_full:
                fill(disk)
            else:
                remount(disk, "ro")
            with pytest.raises(PreflightError, match=f"error: {refusal}"):
                check(upload)
            remount(disk, "rw,size=16m")
            upload.check()
        assert published_steps(LocalFolder(tmp_path / "runs" / job.metadata.name), tmp_path / "copy") == ["step-000001"]


def test_upload_at_the_end_may_take_longer_than_an_outage(state: JobState, tmp_path: Path) -> None:
    """The minutes of an outage count from its first failure: a long upload that fails once is repeated."""

    class Slow(LocalFolder):
        failures = 1

        def upload(self, name: str, file: Path) -> None:
            if self.failures:
                self.failures -= 1
                time.sleep(2 * TIMES.finish)
                raise StorageUnavailable("503 SlowDown: busy")
            super().upload(name, file)

    assert upload_to(Slow(tmp_path / "bucket"), state, []).finish() == ""


def test_upload_of_a_fenced_run_fails_it(state: JobState, tmp_path: Path) -> None:
    """A second start of the job on another machine stops the first run, which publishes nothing any more."""
    store, lines, failures = LocalFolder(tmp_path / "bucket"), list[str](), list[str]()
    upload = upload_to(store, state, lines)
    upload.check()
    other = JobState(tmp_path / "other")
    other.root.mkdir()
    upload_to(store, other, lines).check()
    checkpoint(state, 1)
    asyncio.run(upload.follow(lambda error: failures.append(str(error))))
    assert len(failures) == 1 and "the job was started again" in failures[0]
    assert "publishes nothing" in upload.finish()
    assert published_steps(store, tmp_path / "copy") == []


def test_upload_folder_url_moves_a_job(state: JobState, tmp_path: Path) -> None:
    """A run without URL becomes one with it, and continues on another machine; a torn restore is refused without it."""
    job, lines = job_with(f"file://{tmp_path}/runs"), list[str]()
    assert open_upload(job_with(None), state, warn=lines.append) is None
    upload = open_upload(job, state, warn=lines.append)
    assert upload is not None and lines == []
    upload.check()
    other = JobState(tmp_path / "other")
    other.root.mkdir()
    assert open_upload(job, other, warn=lines.append) is not None
    assert (other.root / "job.json").exists() and "was restored from" in lines[0]
    (other.root / ".bucket.json").write_text('{"address": "s3://team/runs"}')
    with pytest.raises(PreflightError, match="was not restored completely"):
        open_upload(job_with(None), other, warn=lines.append)


def test_upload_damaged_bucket_is_a_preflight_error(state: JobState, tmp_path: Path) -> None:
    """A job does not start if its bucket cannot be read."""
    job = job_with(f"file://{tmp_path}/runs")
    (tmp_path / "runs" / job.metadata.name).mkdir(parents=True)
    (tmp_path / "runs" / job.metadata.name / "index.json").write_text("x")
    with pytest.raises(PreflightError, match=r"spec\.storage\.url: .*index\.json: the document contradicts"):
        open_upload(job, state, warn=print)


def test_fetch_state_downloads_the_newest(state: JobState, tmp_path: Path) -> None:
    """`rstar2 fetch` fills a folder for the commands that read it; a job without URL has nothing to fetch."""
    job, copy = job_with(f"file://{tmp_path}/runs"), JobState(tmp_path / "copy")
    copy.root.mkdir()
    with pytest.raises(PreflightError, match="no state of this job was ever published"):
        fetch_state(job, copy)
    upload = open_upload(job, state, warn=print)
    assert upload is not None
    checkpoint(state, 1)
    upload.check()
    assert fetch_state(job, copy).startswith("downloaded from")
    assert fetch_state(job, copy).startswith("has the newest state")
    assert (copy.stage("sft").checkpoints / "step-000001/manifest.json").read_text() == "1"
    with pytest.raises(PreflightError, match=r"spec\.storage\.url is not set"):
        fetch_state(job_with(None), copy)


def test_publish_state_moves_a_folder_into_an_empty_bucket(state: JobState, tmp_path: Path) -> None:
    """`rstar2 publish` fills an empty bucket, and continues its own; another state there is never replaced."""
    job, empty = job_with(f"file://{tmp_path}/runs"), JobState(tmp_path / "empty")
    empty.root.mkdir()
    with pytest.raises(PreflightError, match="has no state of a job"):
        publish_state(job, empty)
    for step in (1, 2):
        checkpoint(state, step)
        assert publish_state(job, state).startswith("published in")
        copy = tmp_path / f"copy-{step}"
        assert published_steps(LocalFolder(tmp_path / "runs" / job.metadata.name), copy)[-1] == f"step-00000{step}"
    other = JobState(tmp_path / "other")
    other.root.mkdir()
    (other.root / "job.json").write_text("{}")
    for late in (other, JobState(tmp_path / "copy-1")):
        (late.root / "job.json").touch()
        with pytest.raises(PreflightError, match="does not continue"):
            publish_state(job, late)
    with pytest.raises(PreflightError, match=r"spec\.storage\.url is not set"):
        publish_state(job_with(None), state)


@pytest.mark.parametrize("command", [publish_state, fetch_state])
def test_transfer_is_as_patient_as_a_pod(
    command: Any, state: JobState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing repeats the commands, so a transfer is as patient as a pod. A wrong address fails within seconds."""
    calls: list[float] = []

    class Recording(LocalFolder):
        def __init__(self, patience: float) -> None:
            super().__init__(tmp_path / "bucket")
            self.patience = patience

        def read(self, name: str, **options: Any) -> Content:
            calls.append(self.patience)
            return super().read(name, **options)

    opened = upload_to(LocalFolder(tmp_path / "bucket"), state, [])
    opened.check()
    monkeypatch.setattr(upload, "open_store", lambda settings, name, patience: Recording(patience))
    command(job_with("s3://team/runs"), state)
    assert calls[0] <= 20 and len(calls) > 1 and set(calls[1:]) == {PATIENCE_SECONDS}


def test_fetch_state_without_checkpoints_is_completed_by_a_run(state: JobState, tmp_path: Path) -> None:
    """The other files suffice for reports and models. A run never takes such a folder for a whole state."""
    job, copy = job_with(f"file://{tmp_path}/runs"), JobState(tmp_path / "copy")
    copy.root.mkdir()
    checkpoint(state, 1)
    model = state.stage("sft").model / "model.safetensors"
    model.parent.mkdir()
    model.write_text("weights")
    publish_state(job, state)
    for message in ("downloaded from", "has the newest state"):
        assert fetch_state(job, copy, checkpoints=False).startswith(message)
        assert (copy.stage("sft").model / "model.safetensors").read_text() == "weights"
        assert (copy.root / "job.json").exists() and not copy.stage("sft").checkpoints.exists()
    with pytest.raises(PreflightError, match="was not restored completely"):
        open_upload(job_with(None), copy, warn=print)
    assert open_upload(job, copy, warn=print) is not None
    assert (copy.stage("sft").checkpoints / "step-000001/manifest.json").exists()
