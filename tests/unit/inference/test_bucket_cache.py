"""The first model of an engine with a disk of its own, and the copies of weights that its server returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.state_dir import ENGINE_WEIGHTS, JobState
from rstar2_train.inference.bucket_cache import FolderCopies, cache_environment, fetch_model
from rstar2_train.storage.folder import LocalFolder
from rstar2_train.storage.folders import FolderPublisher
from rstar2_train.storage.job_state import BucketState
from rstar2_train.storage.store import ObjectMissing
from tests.support.engine import engine_job

SOURCE, MODEL = "generated://tiny/base", "generated/tiny-seed-0/base"


@pytest.fixture
def job(tmp_path: Path) -> AgenticRLJob:
    """Return a job whose bucket has a state with a model and a checkpoint."""
    job = engine_job()
    job.spec.storage.url = f"file://{tmp_path}/bucket"
    state = JobState(tmp_path / "trainer")
    for name in ("job.json", f"{MODEL}/config.json", f"{MODEL}/model.safetensors", "stages/rl/checkpoints/step/shard"):
        (state.root / name).parent.mkdir(parents=True, exist_ok=True)
        (state.root / name).write_text(name)
    bucket = BucketState(LocalFolder(tmp_path / "bucket" / job.metadata.name), state)
    bucket.open()
    bucket.publish()
    return job


def files(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def test_engine_fetches_only_its_model(job: AgenticRLJob, tmp_path: Path) -> None:
    """An engine has no use for checkpoints. A model that no state has is named; one of the image is not fetched."""
    disk = tmp_path / "disk"
    fetch_model(job, SOURCE, disk / MODEL, disk)
    assert files(disk) == {f"{MODEL}/config.json", f"{MODEL}/model.safetensors"}
    with pytest.raises(ObjectMissing, match="no files below generated/other"):
        fetch_model(job, SOURCE, disk / "generated/other", disk)
    fetch_model(job, "/models/base", Path("/models/base"), disk)


def test_engine_server_returns_copies_or_the_reason(job: AgenticRLJob, tmp_path: Path) -> None:
    """The reply has the paths of copies below the engine's disk. A missing publication cannot succeed later."""
    job_file = tmp_path / "job.json"
    job_file.write_text(job.model_dump_json())
    copies = FolderCopies(cache_environment(job_file, tmp_path / "disk"))
    publisher = FolderPublisher(LocalFolder(tmp_path / "bucket" / job.metadata.name / ENGINE_WEIGHTS))
    entry = publisher.publish(tmp_path / "trainer" / MODEL)
    reply: Any = copies.reply({"folders": [entry.model_dump()]})
    (folder,) = map(Path, reply["folders"])
    assert reply["ok"] and folder.is_relative_to(tmp_path / "disk/weights")
    assert files(folder) == {"config.json", "model.safetensors"}
    unknown = entry.model_copy(update={"sha256": "0" * 64, "name": "folder-000009"})
    reply = copies.reply({"folders": [unknown.model_dump()]})
    assert (reply["ok"], reply["retry"]) == (False, False) and "folder-000009" in reply["why"]
    with pytest.raises(ValueError, match="sha256"):
        copies.reply({"folders": [entry.model_dump() | {"sha256": "../../etc"}]})


def test_engine_server_without_bucket_refuses(job: AgenticRLJob) -> None:
    """An engine that was started for a claim reads no bucket."""
    reply = FolderCopies({}).reply({"folders": []})
    assert (reply["ok"], reply["retry"]) == (False, False) and "without --bucket" in reply["why"]


def test_engine_full_disk_can_be_retried(job: AgenticRLJob, tmp_path: Path) -> None:
    """A disk that takes no files is a failure of the engine, not of the version."""
    job_file = tmp_path / "job.json"
    job_file.write_text(job.model_dump_json())
    (tmp_path / "disk").write_text("no folder")
    copies = FolderCopies(cache_environment(job_file, tmp_path / "disk"))
    entry = FolderPublisher(LocalFolder(tmp_path / "bucket" / job.metadata.name / ENGINE_WEIGHTS)).publish(
        tmp_path / "trainer" / MODEL
    )
    reply = copies.reply({"folders": [entry.model_dump()]})
    assert (reply["ok"], reply["retry"]) == (False, True)
