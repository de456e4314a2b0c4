"""An engine without a common disk with the trainer: its weights are those of the bucket, or it keeps its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rstar2_train.api.contracts import ExitCode, Outcome
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.sources import resolved_sources
from rstar2_train.api.state_dir import ENGINE_WEIGHTS, JobState
from rstar2_train.evaluation.records import read_evaluation
from rstar2_train.inference.engine_errors import EngineRejected
from rstar2_train.inference.pool import EnginePool, PoolTimes
from rstar2_train.inference.weight_update import BucketUpdate, FolderUpdate
from rstar2_train.storage.folder import LocalFolder
from rstar2_train.storage.folders import FolderPublisher
from rstar2_train.storage.job_state import fetch_newest
from tests.support.engine import RESPONSE_TOKENS, SYSTEM, Engine, engine_job
from tests.support.engine_fixtures import Models
from tests.support.engine_proxy import GOLD, write_sums
from tests.support.folder_hashes import folder_hashes
from tests.support.unsupervised_judge import UnsupervisedJudge
from tests.support.version_trainer import VersionTrainer, engine_hashes, rank, trainer

__all__ = ["rank", "trainer"]

NAME = engine_job().metadata.name
TIMES = PoolTimes(patience=2, load=120, straggler=2, check_interval=0.5, retry_interval=0.2)


@pytest.fixture
async def pool(engine: Engine) -> AsyncIterator[EnginePool]:
    """A pool that gives up soon."""
    async with EnginePool([engine.url], token=engine.token, times=TIMES) as pool:
        yield pool


async def test_engine_copies_versions_from_a_bucket(
    pool: EnginePool, engine: Engine, trainer: VersionTrainer, tmp_path: Path
) -> None:
    """The engine has the trainer's weights after each update, also if the trainer's files are gone; a damaged object
    is refused by name, and changes nothing."""
    bucket = engine.folder / "bucket" / NAME / ENGINE_WEIGHTS
    publisher, client = FolderPublisher(LocalFolder(bucket)), pool.client(engine.url)

    def shared(update: FolderUpdate) -> BucketUpdate:
        return BucketUpdate(update, {folder: publisher.publish(folder) for folder in update.folders})

    for lr in (0.0, 1e-9, 1e-3):
        trainer.update(lr)
        update = trainer.publish()
        sent = BucketUpdate(update, {folder: publisher.publish(folder) for folder in update.folders})
        trainer.folder.joinpath("versions").rename(tmp_path / "aside")  # no engine has this disk
        assert await pool.push(sent) == [engine.url]
        (tmp_path / "aside").rename(trainer.folder / "versions")
    expected = folder_hashes(trainer.export("export"))
    assert (await engine_hashes(client)).items() >= expected.items()
    assert engine.disk is not None and len(list((engine.disk / "weights").iterdir())) == len(update.folders)

    await pool.push(shared(FolderUpdate.make(trainer.folder / "export", "whole")))
    assert await client.weight_version() == "whole" and (await engine_hashes(client)).items() >= expected.items()
    trainer.update(1e-3)
    damaged = shared(FolderUpdate.make(trainer.export("damaged"), "damaged"))
    newest = max(bucket.rglob("objects/*"), key=lambda path: (path.stat().st_mtime_ns, path.stat().st_size))
    newest.write_bytes(bytes(newest.stat().st_size))
    with pytest.raises(EngineRejected, match="contradicts its SHA-256 in the manifest"):
        await pool.push(damaged)
    assert (await engine_hashes(client)).items() >= expected.items()


def test_evaluate_pod_needs_no_disk_of_the_engine(
    engine: Engine, models: Models, judge_stack: UnsupervisedJudge, tmp_path: Path
) -> None:
    """Preparation and attempt start on empty disks; the engine gets the model from the bucket; the result is there."""
    stage = {
        "name": "eval",
        "type": "Evaluate",
        "evaluate": {
            "benchmarks": [{"name": "sums", "data": str(write_sums(tmp_path))}],
            "samples": 1,
            "sampling": {"temperature": 0, "maxResponseTokens": RESPONSE_TOKENS, "maxTurns": 4},
        },
    }
    source = AgenticRLJob.model_validate(
        {
            "metadata": {"name": NAME, "uid": "11111111-2222-3333-4444-555555555555"},
            "spec": {
                "model": {"source": str(models.memorising), "systemPrompt": SYSTEM, "promptPrefix": ""},
                "accelerator": {"vendor": "None"},
                "trainer": {"replicas": 1, "gpusPerReplica": 0},
                "rollout": {"engineArgs": {"max-model-len": 64 + RESPONSE_TOKENS}},  # those of the engine
                "storage": {"url": "s3://team/runs"},
                "stages": [stage],
            },
        }
    )
    state, log = JobState(tmp_path / "disk" / NAME), tmp_path / "termination-log"
    job, _ = resolved_sources(source, str(state.root))
    for name, body in (("job.json", job), ("source.json", source)):
        body.spec.storage.url = f"file://{engine.folder}/bucket"
        (tmp_path / name).write_text(body.model_dump_json(exclude_none=True))

    def run(program: str, *arguments: str) -> int:
        """Run the program of a pod on an empty disk."""
        shutil.rmtree(tmp_path / "disk", ignore_errors=True)
        log.write_text("")
        command = [sys.executable, "-m", "rstar2_train.launch.pod", program, "--job", str(tmp_path / "job.json")]
        command += ["--state", str(state.root), "--termination-log", str(log), "--bucket", *arguments]
        env = os.environ | {"POD_IP": "127.0.0.1", "HOSTNAME": "pods-0", "RSTAR2_ENGINE_TOKEN": engine.token}
        return subprocess.run(command, env=env, check=False).returncode

    assert run("prepare") == ExitCode.DONE
    attempt = ("--stage", "eval", "--attempt", "1", "--nodes", "1", "--subdomain", "pods", "--judge", judge_stack.url)
    assert run("launch", *attempt, "--engines", engine.url.removeprefix("http://")) == ExitCode.DONE, log.read_text()
    assert Outcome.model_validate_json(log.read_text()).outcome == "completed"
    copy = JobState(tmp_path / "copy")
    copy.root.mkdir()
    fetch_newest(LocalFolder(engine.folder / "bucket" / NAME), copy)
    record = read_evaluation(copy.stage("eval").evaluation_file)
    assert [result.correct for result in record.problem_results] == [int(answer == "42") for answer in GOLD]
    weights = LocalFolder(engine.folder / "bucket" / NAME / ENGINE_WEIGHTS)
    assert [item.name for item in weights.list()] == ["index.json"]  # the end of the stage deletes them
