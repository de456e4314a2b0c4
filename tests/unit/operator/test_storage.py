"""Sources that are added or changed after the first preparation."""

from __future__ import annotations

import pytest

from rstar2_operator import names
from rstar2_operator.decide.storage import source_digest
from rstar2_operator.observed import annotations_of
from rstar2_train.api.contracts import Outcome
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.status import JobStatus
from tests.support.simulated_cluster import SimulatedCluster, at_first_stage, manifest

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


def problem(cluster: SimulatedCluster) -> str:
    """Return the message of the condition Degraded."""
    cluster.reconcile()
    return next(each["message"] for each in cluster.job["status"]["conditions"] if each["type"] == "Degraded")


def test_preparation_that_takes_long_is_reported_and_not_ended() -> None:
    """It may hang, or download for hours: only a person can decide."""
    cluster = SimulatedCluster(manifest("s"))
    wake_at = cluster.round().wake_at
    assert wake_at is not None and problem(cluster) == ""
    cluster.now = wake_at
    assert "PreparationSlow: runs since" in problem(cluster) and cluster.running() == ["demo-prepare"]


def test_preparation_that_is_evicted_is_reported() -> None:
    """Its Job retries evictions without a limit, so the cause must be visible."""
    cluster = SimulatedCluster(manifest("s"))
    cluster.round()
    status = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
    cluster.pods["demo-prepare-0"]["status"] = status
    assert "The node was low on resource: memory." in problem(cluster)


def test_preparation_names_the_finalizer_of_the_last_job() -> None:
    """A Job that another controller keeps blocks the next download: the message names the finalizer."""
    cluster = at_first_stage("s")
    add_stage(cluster)
    cluster.finish_stage("s0")
    cluster.children["Job", "demo-prepare"]["metadata"]["finalizers"] = ["example.com/keep"]
    cluster.round()
    cluster.now += 60
    assert "example.com/keep" in problem(cluster) and "example.com/keep" in cluster.job["status"]["message"]
