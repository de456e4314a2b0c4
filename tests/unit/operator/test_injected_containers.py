"""Containers that admission webhooks inject into a job's pods and that never exit, such as the proxy of a mesh."""

from __future__ import annotations

from typing import Any

import pytest

from rstar2_operator.names import ROLE_LABEL
from rstar2_operator.observed import exit_code, timestamp
from rstar2_train.api.contracts import Outcome, outcome_key
from tests.support.simulated_cluster import SimulatedCluster, at_first_stage, manifest

PROXY = "a-proxy"
"""Name of the injected container: the kubelet sorts statuses by name, so it is the first one."""


def exit_own(cluster: SimulatedCluster, job: str, code: int) -> None:
    """Let the own container of each pod of a Job exit; the injected one continues."""
    for name, pod in cluster.pods.items():
        if name.startswith(f"{job}-"):
            ended = {"exitCode": code, "finishedAt": timestamp(cluster.now)}
            pod["status"]["containerStatuses"] = [
                {"name": PROXY, "ready": True, "state": {"running": {"startedAt": timestamp(cluster.now)}}},
                {"name": pod["metadata"]["labels"][ROLE_LABEL], "ready": False, "state": {"terminated": ended}},
            ]


def report(cluster: SimulatedCluster, **fields: Any) -> None:
    """Act as the orchestrator of the first attempt: report a failure."""
    outcome = Outcome(stage="g0", attempt=1, outcome="failed", **fields)
    cluster.patch_progress(outcome_key("g0"), outcome.model_dump(mode="json", exclude_none=True))


def later(cluster: SimulatedCluster, seconds: float = 200.0) -> None:
    """Let time pass, in which the operator acts and deleted pods terminate."""
    cluster.round()
    cluster.now += seconds
    for _ in range(3):
        cluster.round()
        cluster.terminate()
    cluster.now += 6  # the backoff
    cluster.round()


def test_exit_code_is_that_of_the_own_container() -> None:
    """A proxy that exits first, and is listed first, does not hide a configuration error."""
    states = [
        {"name": PROXY, "state": {"terminated": {"exitCode": 0}}},
        {"name": "trainer", "state": {"terminated": {"exitCode": 78}}},
    ]
    pod = {"metadata": {"labels": {ROLE_LABEL: "trainer"}}, "status": {"containerStatuses": states}}
    assert exit_code(pod) == 78


def test_held_crash_counts_in_its_own_window() -> None:
    """A restart of an earlier window does not fail a job whose orchestrator exits while a proxy holds its pod."""
    cluster = at_first_stage("g", failurePolicy={"maxRestarts": 1, "windowSeconds": 3600})
    for _ in range(2):
        (job,) = cluster.running()
        exit_own(cluster, job, 1)
        later(cluster)
        cluster.now += 4000
        cluster.round()
    assert cluster.running() == ["demo-g0-3"] and cluster.job["status"]["restartsCountedTowardsMax"] == 1


@pytest.mark.parametrize("job_failed", [False, True])
def test_preparation_succeeds_though_an_injected_container_fails(job_failed: bool) -> None:
    """The exit code of a proxy fails the pod, and at last the Job; the storage is prepared."""
    cluster = SimulatedCluster(manifest("g"))
    cluster.round()
    exit_own(cluster, "demo-prepare", 0)
    status = cluster.pods["demo-prepare-0"]["status"]
    status["phase"], status["containerStatuses"][0]["state"] = "Failed", {"terminated": {"exitCode": 1}}
    if job_failed:
        failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}
        cluster.children["Job", "demo-prepare"]["status"] = {
            "conditions": [{**failed, "lastTransitionTime": timestamp(cluster.now)}]
        }
    cluster.round()
    assert cluster.running() == ["demo-g0-1"] and cluster.created_jobs == ["demo-prepare", "demo-g0-1"]


def test_preparation_ends_with_its_own_container() -> None:
    """The first stage starts, and does not prepare again after the deletion of the prepare Job."""
    cluster = SimulatedCluster(manifest("g"))
    cluster.round()
    exit_own(cluster, "demo-prepare", 0)
    done = Outcome(stage="prepare", attempt=1, outcome="completed", reason="Completed")
    cluster.patch_progress("prepare.json", done.model_dump(mode="json", exclude_none=True))
    later(cluster)
    assert cluster.running() == ["demo-g0-1"]
    assert cluster.created_jobs == ["demo-prepare", "demo-g0-1"]


def test_preparation_failure_removes_its_pod() -> None:
    """Only without the pod can the Job controller try again."""
    cluster = SimulatedCluster(manifest("g"))
    cluster.round()
    exit_own(cluster, "demo-prepare", 1)
    decision = cluster.reconcile()
    assert decision.phase == "Preparing" and ("Job", "demo-prepare") in cluster.children
    assert cluster.pods == {}


@pytest.mark.parametrize(("code", "phase"), [(0, "Running"), (0, "Succeeded"), (1, "Running")])
def test_preparation_alone_waits_for_its_job(code: int, phase: str) -> None:
    """A pod is Running for a moment after its only container has exited, then it ends before its Job: both stay."""
    cluster = SimulatedCluster(manifest("g"))
    cluster.round()
    exit_own(cluster, "demo-prepare", code)
    for pod in cluster.pods.values():
        del pod["status"]["containerStatuses"][0]  # the proxy
        pod["status"]["phase"] = phase
    decision = cluster.reconcile()
    assert decision.phase == "Preparing"
    assert ("Job", "demo-prepare") in cluster.children and cluster.pods
    assert cluster.created_jobs == ["demo-prepare"]


@pytest.mark.parametrize("code", [76, 137])
def test_attempt_ends_with_its_own_container(code: int) -> None:
    """If the orchestrator reported a failure, or crashed, a new attempt starts two minutes later, counted."""
    cluster = at_first_stage("g")
    cluster.progress("g0", 1, 2)
    cluster.round()
    if code == 76:
        report(cluster, reason="RanksLost", message="rank 3 crashed", retryable=True)
    exit_own(cluster, "demo-g0-1", code)
    assert cluster.round().phase == "Running"
    later(cluster)
    assert cluster.running() == ["demo-g0-2"] and cluster.job["status"]["restartsCountedTowardsMax"] == 1
    ended = cluster.job["status"]["stages"][0]["ended"]
    assert ended["reason"] == "OrchestratorExited" and PROXY in ended["message"]


def test_attempt_with_configuration_error_fails_the_job() -> None:
    """Exit code 78 is not retried."""
    cluster = at_first_stage("g")
    cluster.progress("g0", 1, 2)
    report(cluster, reason="BadData", message="row 3", retryable=False)
    exit_own(cluster, "demo-g0-1", 78)
    later(cluster)
    assert cluster.job["status"]["phase"] == "Finalizing" and "BadData" in cluster.job["status"]["message"]
    assert cluster.created_jobs[-1] == "demo-report"


def test_report_ends_with_its_own_container() -> None:
    """A job has its final phase as soon as its report is written, and a deleted job is released then."""
    cluster = at_first_stage("g")
    cluster.finish_stage("g0")
    assert cluster.round().phase == "Finalizing"
    exit_own(cluster, "demo-report", 0)
    assert cluster.round().phase == "Succeeded"

    cluster = at_first_stage("g")
    cluster.delete_job()
    later(cluster, 0.0)
    assert cluster.created_jobs[-1] == "demo-report" and not cluster.gone
    exit_own(cluster, "demo-report", 0)
    cluster.round()
    assert cluster.gone


def test_attempt_that_hangs_after_its_failure_ends() -> None:
    """Without an injected container too: an orchestrator that does not exit after its outcome holds no accelerator."""
    cluster = at_first_stage("g")
    cluster.progress("g0", 1, 2)
    report(cluster, reason="RanksLost", message="rank 3 crashed", retryable=True)
    later(cluster)
    assert cluster.running() == ["demo-g0-2"]
    assert "outcomeTime" not in cluster.job["status"]["stages"][0]


def test_injected_container_out_of_memory_blames_no_field() -> None:
    """The limit of a proxy is not that of the trainer, and its end is not the cause of an attempt's."""
    cluster = at_first_stage("g")
    killed = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
    proxy = {"name": "a-proxy", "state": waiting, "lastState": killed}
    cluster.pods["demo-g0-1-1"]["status"]["containerStatuses"] = [proxy]
    cluster.reconcile()
    degraded = next(each for each in cluster.job["status"]["conditions"] if each["type"] == "Degraded")
    assert "container a-proxy reached its memory limit; increase it in the configuration of its injector" in str(
        degraded["message"]
    )
    assert "spec.trainer" not in degraded["message"]
    cluster.finish_job("demo-g0-1", 70)
    cluster.pods["demo-g0-1-1"]["status"]["containerStatuses"].append({"name": "a-proxy", "state": killed})
    assert "OOMKilled" not in cluster.reconcile().message
