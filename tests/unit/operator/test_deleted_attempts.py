"""The batch Job of an attempt is deleted by others before the operator has seen its end."""

from __future__ import annotations

import pytest

from rstar2_operator.observed import timestamp
from rstar2_train.api.contracts import Outcome
from tests.support.simulated_cluster import SimulatedCluster, at_first_stage


def delete_attempt(cluster: SimulatedCluster, job: str, *, foreground: bool = False) -> None:
    """Act as a person: delete the Job of an attempt. In the foreground it exists until its pods are gone."""
    body = cluster.children["Job", job]
    if foreground:
        body["metadata"] |= {"deletionTimestamp": timestamp(cluster.now), "finalizers": ["foregroundDeletion"]}
    else:
        del cluster.children["Job", job]
    cluster.deleted(body)


@pytest.mark.parametrize("foreground", [False, True])
def test_deleted_job_of_an_attempt_is_a_disruption(foreground: bool) -> None:
    """The Job is gone before its end was seen: not counted ten times in a row without a checkpoint, then counted."""
    cluster = at_first_stage("g", failurePolicy={"maxRestarts": 2})
    for attempt in range(1, 14):
        assert cluster.running() == [f"demo-g0-{attempt}"]
        delete_attempt(cluster, f"demo-g0-{attempt}", foreground=foreground)
        message, status = cluster.reconcile().message, cluster.job["status"]
        assert "PodLost: the Job of the attempt was deleted" in message and message == status["message"]
        assert status["restarts"] == min(attempt, 12)
        assert status["restartsCountedTowardsMax"] == min(2, max(0, attempt - 10))
        cluster.reconcile()
        cluster.terminate()
        cluster.children.pop(("Job", f"demo-g0-{attempt}"), None)
        cluster.now += 600
        cluster.round()
    assert cluster.running() == ["demo-report"] and "(after 2 restarts" in cluster.job["status"]["message"]


def test_deleted_job_after_a_checkpoint_never_counts() -> None:
    """Each attempt wrote a checkpoint before its Job was deleted: no series without progress."""
    cluster = at_first_stage("g", failurePolicy={"maxRestarts": 0})
    for attempt in range(1, 14):
        report = {"stage": "g0", "attempt": attempt, "phase": "Training", "step": 1, "totalSteps": 99}
        cluster.patch_progress("progress.json", {**report, "checkpoint": {"path": "c", "step": attempt}})
        cluster.reconcile()
        delete_attempt(cluster, f"demo-g0-{attempt}")
        cluster.terminate()
        cluster.reconcile()
        cluster.now += 600
        cluster.round()
    assert cluster.running() == ["demo-g0-14"] and cluster.job["status"]["restarts"] == 13


def test_deleted_job_of_a_configuration_error_fails_the_job() -> None:
    """The orchestrator reported a failure that no retry solves, and its Job was deleted: the outcome decides."""
    cluster = at_first_stage("g")
    outcome = Outcome(stage="g0", attempt=1, outcome="failed", reason="BadData", message="row 3")
    cluster.finish_job("demo-g0-1", 78, outcome=outcome)
    delete_attempt(cluster, "demo-g0-1")
    decision = cluster.reconcile()
    assert (decision.phase, decision.reason) == ("Finalizing", "StageFailed") and "BadData: row 3" in decision.message


def test_suspended_job_that_resumes_has_lost_no_attempt() -> None:
    """The operator itself has deleted the Job of the attempt: no restart."""
    cluster = at_first_stage("g")
    for suspended in (True, False):
        cluster.job["spec"]["suspend"] = suspended
        cluster.round()
        cluster.terminate()
        cluster.round()
    assert cluster.job["status"]["restarts"] == 0 and cluster.running() == ["demo-g0-2"]
