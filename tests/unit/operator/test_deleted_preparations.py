"""The Job that prepares the storage is deleted by others, or its pods are rejected, again and again."""

from __future__ import annotations

import pytest

from rstar2_train.api.contracts import PREPARE_KEY, Outcome
from tests.support.simulated_cluster import SimulatedCluster, at_first_stage, in_situation, manifest
from tests.unit.operator.test_deleted_attempts import delete_attempt

PREPARE = "demo-prepare"


def reject(cluster: SimulatedCluster) -> None:
    """Act as kubelet and Job controller: the last pod is rejected, and the Job fails."""
    cluster.finish_job(PREPARE, 1)
    cluster.pods[f"{PREPARE}-0"]["status"] = {"phase": "Failed", "reason": "OutOfcpu", "message": "no cpu"}


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("delete", "PodLost: the Job of the preparation was deleted"),
        ("foreground", "PodLost: the Job of the preparation was deleted"),
        ("reject", "PodRejected: Pod/demo-prepare-0: OutOfcpu: no cpu"),
    ],
)
def test_disrupted_preparation_has_the_limits_of_an_attempt(fault: str, cause: str) -> None:
    """Not counted ten times in a row, then counted, with a growing backoff; then the job fails with the cause."""
    cluster = SimulatedCluster(manifest("g", failurePolicy={"maxRestarts": 2}))
    cluster.round()
    for disruption in range(1, 14):
        assert cluster.running() == [PREPARE], cluster.job["status"]
        if fault == "reject":
            reject(cluster)
        else:
            delete_attempt(cluster, PREPARE, foreground=fault == "foreground")
            cluster.reconcile()
            cluster.children.pop(("Job", PREPARE), None)
        created = len(cluster.created_jobs)
        message, status = cluster.reconcile().message, cluster.job["status"]
        assert cause in message and message == status["message"]
        assert status["restarts"] == min(disruption, 12)
        assert status["restartsCountedTowardsMax"] == min(2, max(0, disruption - 10))
        for _ in range(3):
            cluster.terminate()
            cluster.round()
        assert len(cluster.created_jobs) == created, "it waits for the backoff"
        cluster.now += 301
        cluster.round()
    assert (cluster.job["status"]["phase"], cluster.job["status"]["reason"]) == ("Failed", "PrepareFailed")
    assert cause in cluster.job["status"]["message"] and "(after 2 restarts" in cluster.job["status"]["message"]


def test_deleted_preparation_is_a_problem_with_advice() -> None:
    """A person sees why the storage is not ready, and what to do; after the preparation the record ends."""
    cluster = SimulatedCluster(manifest("g"))
    cluster.round()
    delete_attempt(cluster, PREPARE)
    cluster.round()
    conditions = {each["type"]: each for each in cluster.job["status"]["conditions"]}
    for kind in ("Ready", "Degraded", "StorageReady"):
        assert conditions[kind]["reason"] == "PreparationSlow"
        assert "the Job of the preparation was deleted. Find the client" in conditions[kind]["message"]
    cluster.terminate()
    cluster.now += 10
    cluster.round()
    cluster.finish_job(PREPARE, 0)
    cluster.round()
    assert cluster.running() == ["demo-g0-1"] and "preparation" not in cluster.job["status"]


@pytest.mark.parametrize("situation", ["suspend", "new sources"])
def test_own_deletion_of_a_preparation_is_no_disruption(situation: str) -> None:
    """The operator deletes the Job for a suspension, and a finished one for other sources."""
    cluster = in_situation("preparing") if situation == "suspend" else at_first_stage("g")
    if situation == "suspend":
        for suspended in (True, False):
            cluster.job["spec"]["suspend"] = suspended
            cluster.round()
            cluster.terminate()
            cluster.round()
    else:
        cluster.job["spec"]["model"] = {"source": "hf://org/other"}
        cluster.finish_job("demo-g0-1", 137)
        cluster.now += 10
        cluster.round()
    assert cluster.running() == [PREPARE]
    assert cluster.job["status"]["restarts"] == 0 and "disruptions" not in cluster.job["status"]["preparation"]


def test_deleted_preparation_of_new_sources_is_a_disruption() -> None:
    """The storage was prepared before, so only the record shows that the second Job ran."""
    cluster = at_first_stage("g")
    cluster.job["spec"]["model"] = {"source": "hf://org/other"}
    cluster.finish_job("demo-g0-1", 137)
    cluster.now += 10
    cluster.round()
    delete_attempt(cluster, PREPARE)
    before = cluster.job["status"]["restarts"]
    assert "PodLost: the Job of the preparation was deleted" in cluster.reconcile().message
    assert cluster.job["status"]["restarts"] == before + 1 and cluster.running() == [PREPARE]
    cluster.terminate()
    cluster.reconcile()
    assert ("Job", PREPARE) not in cluster.children


def test_deleted_preparation_with_bad_data_fails_the_job() -> None:
    """It reported a failure that no retry solves, and its Job was deleted: the outcome decides."""
    cluster = in_situation("preparing")
    outcome = Outcome(stage="prepare", attempt=1, outcome="failed", reason="BadData", message="row 3")
    cluster.patch_progress(PREPARE_KEY, outcome.model_dump(mode="json", exclude_none=True))
    delete_attempt(cluster, PREPARE)
    cluster.reconcile()
    cluster.terminate()
    decision = cluster.round()
    assert (decision.phase, decision.reason, decision.message) == ("Failed", "BadData", "row 3")


def test_deleted_preparation_is_counted_once_after_a_crash() -> None:
    """A new operator that finds the record, or the new Job without one, counts nothing again."""
    cluster = in_situation("preparing")
    delete_attempt(cluster, PREPARE)
    for dies_after in range(4):
        cluster.run_operator(dies_after=dies_after)
        cluster.terminate()
    cluster.now += 10
    for dies_after in range(6):
        cluster.run_operator(dies_after=dies_after)
        cluster.settle()
    assert cluster.job["status"]["restarts"] == 1 and cluster.running() == [PREPARE]
    assert cluster.job["status"]["preparation"]["disruptions"] == 1
    assert "deletionTimestamp" not in cluster.children["Job", PREPARE]["metadata"]


def test_deleted_report_delays_the_end_for_minutes_only() -> None:
    """The Job of the report is deleted whenever it exists: the job ends, and its message names the missing report."""
    cluster = in_situation("finalizing")
    started = cluster.now
    while cluster.job["status"]["phase"] == "Finalizing":
        cluster.round()
        assert cluster.now < started + 601
        cluster.now += 20
        if ("Job", "demo-report") in cluster.children:
            delete_attempt(cluster, "demo-report")
        cluster.terminate()
    assert cluster.job["status"]["phase"] == "Succeeded" and cluster.running() == []
    assert "no report: Job demo-report did not finish in time." in cluster.job["status"]["message"]
