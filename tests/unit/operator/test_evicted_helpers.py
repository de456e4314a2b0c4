"""Evicted, preempted, drained and rejected pods of preparation and report are retried, and named with their cause."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.memory_api import Body
from tests.support.simulated_cluster import SimulatedCluster, at_first_stage, manifest

DISRUPTIONS = {
    "EvictionByEvictionAPI": "Eviction API: evicting",
    "PreemptionByScheduler": "default-scheduler: preempting to accommodate a higher priority pod",
    "DeletionByTaintManager": "Taint manager: deleting due to NoExecute taint",
    "TerminationByKubelet": "The node was low on resource: memory.",
    "DeletionByPodGC": "PodGC: node no longer exists",
}
"""Reason -> message of the condition DisruptionTarget, by Kubernetes."""


def preparing() -> SimulatedCluster:
    """Return a job whose preparation runs."""
    cluster = SimulatedCluster(manifest("s"))
    cluster.round()
    return cluster


def finalizing() -> SimulatedCluster:
    """Return a job whose report runs."""
    cluster = at_first_stage("s")
    cluster.finish_stage("s0")
    cluster.round()
    return cluster


ROLES = {"prepare": preparing, "report": finalizing}


def evict(cluster: SimulatedCluster, role: str, reason: str) -> Body:
    """Act as the evicting component and the kubelet: the pod of a role receives SIGTERM and fails."""
    status: dict[str, Any] = cluster.pods[f"demo-{role}-0"]["status"]
    status["phase"] = "Failed"
    status["conditions"] = [
        {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": DISRUPTIONS[reason]}
    ]
    status["containerStatuses"] = [{"name": role, "state": {"terminated": {"exitCode": 143, "reason": "Error"}}}]
    return status


def counts(job: Body, status: Body) -> bool:
    """Return whether the Job controller counts a failed pod towards the Job's backoffLimit."""
    for rule in job["spec"].get("podFailurePolicy", {}).get("rules", ()):
        codes = rule.get("onExitCodes", {}).get("values", ())
        types = {pattern["type"] for pattern in rule.get("onPodConditions", ())}
        code = status["containerStatuses"][0]["state"]["terminated"]["exitCode"]
        if code in codes or types & {condition["type"] for condition in status["conditions"]}:
            return bool(rule["action"] != "Ignore")
    return True


@pytest.mark.parametrize("reason", DISRUPTIONS)
@pytest.mark.parametrize("role", ROLES)
def test_disrupted_pod_of_a_helper_does_not_count(role: str, reason: str) -> None:
    """As for an attempt, a drain, a preemption, a taint or a full node uses up no retry."""
    cluster = ROLES[role]()
    assert not counts(cluster.children["Job", f"demo-{role}"], evict(cluster, role, reason))


@pytest.mark.parametrize("reason", DISRUPTIONS)
def test_disrupted_preparation_is_named(reason: str) -> None:
    """The exit code of SIGTERM is not the cause: the condition has the words of the component that evicted the pod."""
    cluster = preparing()
    evict(cluster, "prepare", reason)
    cluster.reconcile()
    conditions = {condition["type"]: condition for condition in cluster.job["status"]["conditions"]}
    cause = f"{reason}: Pod/demo-prepare-0: {DISRUPTIONS[reason].rstrip('.')}"
    assert cause in conditions["Degraded"]["message"] and cause in conditions["StorageReady"]["message"]


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        ({"reason": "UnexpectedAdmissionError", "message": "no device"}, "UnexpectedAdmissionError: Pod/demo-report-0"),
        ({"reason": "Evicted", "message": "The node was low on resource: memory."}, "low on resource: memory"),
        ({"containerStatuses": [{"name": "report", "state": {"terminated": {"exitCode": 76}}}]}, "exit code 76"),
    ],
)
def test_failed_report_is_named_at_the_end(status: dict[str, Any], cause: str) -> None:
    """The job ends, and its message names the Job and the cause: the report or MLflow may lack the end."""
    cluster = finalizing()
    cluster.finish_job("demo-report", 1)
    cluster.pods["demo-report-0"]["status"] = {"phase": "Failed", **status}
    cluster.round()
    ended = cluster.job["status"]
    assert ended["phase"] == "Succeeded" and cause in ended["message"]
    assert "Its report may be missing, or its MLflow run open: Job demo-report failed." in ended["message"]


def test_good_report_needs_no_words() -> None:
    """The message of a job whose report was written is that of its end only."""
    cluster = finalizing()
    cluster.finish_job("demo-report", 0)
    cluster.round()
    assert cluster.job["status"]["message"] == "All stages succeeded."
