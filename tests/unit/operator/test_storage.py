"""Sources that are added or changed after the first preparation."""

from __future__ import annotations

import pytest

from rstar2_operator import names
from rstar2_operator.decide.storage import source_digest
from rstar2_operator.observed import annotations_of
from rstar2_train.api.contracts import Outcome
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.status import JobStatus
from tests.support.simulated_cluster import SimulatedCluster, at_first_stage

ADDED = {"name": "g9", "type": "GRPO", "grpo": {"data": "hf://datasets/org/new-set/train.jsonl", "steps": 4}}


def add_stage(cluster: SimulatedCluster) -> None:
    """Act as a user who adds a stage with a source of the Hub."""
    cluster.job["spec"]["stages"].append(ADDED)
    cluster.job["metadata"]["generation"] += 1


@pytest.mark.parametrize("lost", ["", "Job"])
def test_added_source_is_downloaded_before_its_stage(lost: str) -> None:
    """A running attempt is not disturbed; also if the first prepare Job was deleted, the source is downloaded."""
    cluster = at_first_stage("s")
    add_stage(cluster)
    assert cluster.round().phase == "Running" and cluster.running() == ["demo-s0-1"]
    if lost:
        del cluster.children["Job", "demo-prepare"]
    first = cluster.job["status"]["preparedSources"]
    cluster.finish_stage("s0")
    cluster.pods.clear()
    assert cluster.round().phase == "Preparing"
    assert cluster.created_jobs == ["demo-prepare", "demo-s0-1", "demo-prepare"]
    cluster.finish_job("demo-prepare", 0)
    cluster.round()
    assert cluster.running() == ["demo-g9-1"]
    prepared = annotations_of(cluster.children["Job", "demo-prepare"])[names.SOURCES]
    assert prepared == cluster.job["status"]["preparedSources"] != first


@pytest.mark.parametrize("seed", range(12))
def test_digest_of_any_sources_is_a_valid_status(seed: int) -> None:
    """The API server accepts the status whether the digest starts with a digit or a letter."""
    cluster = at_first_stage("s")
    job = AgenticRLJob.model_validate(cluster.job)
    job.spec.seed = seed
    JobStatus.model_validate({**cluster.job["status"], "preparedSources": source_digest(job)})


@pytest.mark.parametrize("source", ["s3://team/base", "gs://team/base", "az://team/base", "hf://team/base"])
def test_digest_has_downloaded_sources(source: str) -> None:
    """Another source that preparation downloads is another digest, of each scheme."""
    job = AgenticRLJob.model_validate(at_first_stage("s").job)
    before = source_digest(job)
    job.spec.model.source = source
    assert source_digest(job) != before


def test_prepared_by_an_earlier_version_is_not_repeated() -> None:
    """A Job without the digest is taken as it is."""
    cluster = at_first_stage("s")
    cluster.job["status"].pop("preparedSources")
    del cluster.children["Job", "demo-prepare"]["metadata"]["annotations"][names.SOURCES]
    cluster.round()
    cluster.finish_stage("s0")
    cluster.round()
    assert cluster.created_jobs == ["demo-prepare", "demo-s0-1", "demo-report"]


def test_failed_download_of_an_added_source_names_its_cause() -> None:
    """The good outcome of the first preparation is not that of the second one."""
    cluster = at_first_stage("s")
    done = Outcome(stage="prepare", attempt=1, outcome="completed", reason="Completed")
    cluster.patch_progress("prepare.json", done.model_dump(mode="json", exclude_none=True))
    add_stage(cluster)
    cluster.round()
    cluster.finish_stage("s0")
    cluster.pods.clear()
    assert cluster.round().phase == "Preparing"
    cluster.finish_job("demo-prepare", 137)
    assert cluster.round().phase == "Failed"
    assert cluster.job["status"]["reason"] == "PrepareFailed" and cluster.job["status"]["message"]
