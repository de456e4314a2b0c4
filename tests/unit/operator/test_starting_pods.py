"""Pods that never start, and orchestrators that never report: a diagnosis, a release, a restart."""

from __future__ import annotations

from typing import Any

import pytest

from rstar2_operator.decide.diagnostics import next_overdue_at
from rstar2_operator.names import BATCH_JOB_LABEL
from rstar2_operator.observed import timestamp
from rstar2_train.api.contracts import Outcome, outcome_key
from tests.support.simulated_cluster import SimulatedCluster, at_first_stage, kinds

WAITING = {"waiting": {"reason": "PodInitializing"}}
BACKOFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}}
RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
CREATING = {"waiting": {"reason": "ContainerCreating"}}
CASES = [
    (BACKOFF, WAITING, "CrashLoopBackOff"),
    (RUNNING, WAITING, "PodNotStarted"),
    (None, CREATING, "PodNotStarted"),
]
"""State of the init container and of the trainer's, and the reason of the problem."""


def hold_start(cluster: SimulatedCluster, init: dict[str, Any] | None, own: dict[str, Any]) -> None:
    """Leave the pods of the attempt on their nodes before their containers start."""
    for pod in cluster.pods.values():
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": timestamp(cluster.now)}
        statuses = [{"name": "trainer", "ready": False, "state": own}]
        pod["status"] = {"phase": "Pending", "conditions": [scheduled], "containerStatuses": statuses}
        if init is not None:
            pod["status"]["initContainerStatuses"] = [{"name": "agent-init", "ready": False, "state": init}]


def degraded(cluster: SimulatedCluster) -> str:
    """Return the message of the condition Degraded."""
    return str(next(each["message"] for each in cluster.job["status"]["conditions"] if each["type"] == "Degraded"))


@pytest.mark.parametrize(("init", "own", "reason"), CASES)
def test_pod_that_never_starts_is_diagnosed_then_released(
    init: dict[str, Any] | None, own: dict[str, Any], reason: str
) -> None:
    """Within a minute there is a diagnosis; at the pending deadline all pods are released, and tried again later."""
    cluster = at_first_stage("g", pendingDeadlineSeconds=600)
    hold_start(cluster, init, own)
    cluster.now += 61
    cluster.round(1)
    assert reason in degraded(cluster)
    cluster.now += 600
    decision = cluster.round(1)
    assert decision.reason == "SchedulingTimeout" and reason in decision.message
    assert ("Job", "demo-g0-1") not in cluster.children


HELD = [
    (
        {"schedulingGates": [{"name": "kueue.x-k8s.io/topology"}]},
        [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}],
        "PodNotScheduled: scheduling gate kueue.x-k8s.io/topology is set",
    ),
    ({"schedulerName": "volcano"}, [], "PodNotScheduled: scheduler volcano has reported nothing"),
]
"""Spec and conditions of a pod without a node, and the problem."""


@pytest.mark.parametrize(("spec", "conditions", "problem"), HELD)
def test_pod_without_scheduler_is_diagnosed_then_released(
    spec: dict[str, Any], conditions: list[dict[str, Any]], problem: str
) -> None:
    """A gate that stays, and a scheduler that does not run, are named within a minute."""
    cluster = at_first_stage("g", pendingDeadlineSeconds=600)
    created = cluster.now
    for pod in cluster.pods.values():
        pod["spec"], pod["status"] = spec, {"phase": "Pending", "conditions": conditions}
    cluster.round(1)
    assert problem not in degraded(cluster)
    wake_at = next_overdue_at(cluster.observed(), now=cluster.now)
    assert wake_at is not None and wake_at <= created + 60
    cluster.now += 61
    cluster.round(1)
    assert problem in degraded(cluster)
    cluster.now += 600
    assert cluster.round(1).reason == "SchedulingTimeout"
    assert ("Job", "demo-g0-1") not in cluster.children


def test_job_that_others_suspend_is_diagnosed() -> None:
    """Kueue without the right to read the owner, or a person, suspends a batch Job: no pod would ever run."""
    cluster = at_first_stage("g", pendingDeadlineSeconds=600)
    cluster.pods.clear()
    suspended = {"type": "Suspended", "status": "True", "lastTransitionTime": timestamp(cluster.now)}
    cluster.children["Job", "demo-g0-1"]["status"] = {"conditions": [suspended], "active": 0}
    cluster.round(1)
    assert "Job/demo-g0-1: JobSuspended: another client has set spec.suspend" in degraded(cluster)
    cluster.now += 601
    assert cluster.round(1).reason == "SchedulingTimeout"


@pytest.mark.parametrize("parallelism", [0, 1])
@pytest.mark.parametrize("reports", [False, True])
def test_job_with_fewer_pods_is_diagnosed_and_released(parallelism: int, reports: bool) -> None:
    """A person or a downscaler sets spec.parallelism of the Job: its pods are gone, and no round fails."""
    cluster = at_first_stage("g", pendingDeadlineSeconds=600)
    if reports:
        cluster.progress("g0", 1, 1)
    cluster.children["Job", "demo-g0-1"]["spec"]["parallelism"] = parallelism
    cluster.children["Job", "demo-g0-1"]["status"] = {"active": parallelism, "ready": parallelism}
    removed = [name for name in cluster.pods if name.startswith("demo-g0-1") and int(name[-1]) >= parallelism]
    for name in removed:
        del cluster.pods[name]
    cluster.run_operator()
    assert f"JobSuspended: another client has set spec.parallelism to {parallelism}" in degraded(cluster)
    assert "Set spec.parallelism of this Job to its spec.completions." in degraded(cluster)
    cluster.now += 599
    cluster.run_operator()
    assert cluster.job["status"]["phase"] == "Running"
    cluster.now += 2
    cluster.run_operator()
    assert cluster.job["status"]["reason"] == "SchedulingTimeout"


@pytest.mark.parametrize("reports", [False, True])
def test_job_suspended_during_its_attempt_is_released(reports: bool) -> None:
    """The attempt has reported, and may have written a checkpoint: the deadline counts all the same."""
    cluster = at_first_stage("g", pendingDeadlineSeconds=600)
    cluster.progress("g0", 1, 1)
    cluster.now += 5000
    if reports:
        outcome = Outcome(stage="g0", attempt=1, outcome="suspended", reason="Suspended")
        cluster.patch_progress(outcome_key("g0"), outcome.model_dump(mode="json", exclude_none=True))
    cluster.pods.clear()
    suspended = {"type": "Suspended", "status": "True", "lastTransitionTime": timestamp(cluster.now)}
    cluster.children["Job", "demo-g0-1"]["status"] = {"conditions": [suspended], "active": 0}
    cluster.now += 599
    assert cluster.round(1).reason == "Running"
    cluster.now += 1
    decision = cluster.reconcile()
    assert decision.reason == "SchedulingTimeout" and "JobSuspended" in decision.message


def test_engines_that_are_never_ready_are_released() -> None:
    """Engines that run and are never ready hold accelerators: the deadline is the user's limit of a load."""
    cluster = at_first_stage("g", pendingDeadlineSeconds=600)
    cluster.progress("g0", 1, 0, phase="Starting")
    cluster.now += 600
    assert cluster.reconcile().reason == "Running", "its engines are ready"
    cluster.children["Deployment", "demo-rollout"]["status"] = {"readyReplicas": 0, "replicas": 1}
    decision = cluster.reconcile()
    assert decision.reason == "SchedulingTimeout" and "demo-rollout" in decision.message
    assert kinds(cluster, "Deployment") == []


ENGINE = {"rstar2.dev/job": "demo", "rstar2.dev/role": "rollout"}
READY = {"name": "engine", "ready": True, "state": {"running": {"startedAt": "1970-01-01T00:00:00Z"}}}
PROXY = {"name": "istio-proxy", "ready": False, "state": {"running": {"startedAt": "1970-01-01T00:00:00Z"}}}
OF_ENGINES = [
    (
        {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices"},
        "Pod/demo-rollout-x: PodRejected: UnexpectedAdmissionError: no healthy devices",
    ),
    ({"phase": "Running", "containerStatuses": [READY, PROXY]}, "PodNotStarted: injected container istio-proxy"),
    (
        {"phase": "Running", "containerStatuses": [READY], "initContainerStatuses": [PROXY]},
        "PodNotStarted: injected container istio-proxy",
    ),
]
"""Status of an engine's pod, and the problem: a rejection, a proxy that is not ready, the same as a native sidecar."""


@pytest.mark.parametrize(("status", "problem"), OF_ENGINES)
def test_engine_that_others_keep_from_starting_is_diagnosed(status: dict[str, Any], problem: str) -> None:
    """While a role is not ready, its rejected pods and unready proxies are named; afterwards they are no problem."""
    cluster = at_first_stage("g")
    engines, reason = cluster.children["Deployment", "demo-rollout"], "ContainersNotReady"
    ready = {"type": "Ready", "status": "False", "reason": reason, "lastTransitionTime": timestamp(cluster.now)}
    metadata = {"name": "demo-rollout-x", "uid": "x", "labels": ENGINE | {BATCH_JOB_LABEL: ""}}
    metadata["creationTimestamp"] = timestamp(cluster.now)
    pod = {"metadata": metadata, "spec": {"nodeName": "node-1"}, "status": {**status, "conditions": [ready]}}
    cluster.pods["demo-rollout-x"], engines["status"] = pod, {"readyReplicas": 0, "replicas": 1}
    cluster.now += 61
    cluster.reconcile()
    assert problem in degraded(cluster)
    ready["status"] = "True"
    cluster.round(1)  # the engines are ready
    assert problem not in degraded(cluster)


def test_job_without_its_controller_is_diagnosed() -> None:
    """A batch Job that no controller handles gets neither a status nor an event."""
    cluster = at_first_stage("g")
    cluster.pods.clear()
    cluster.children["Job", "demo-g0-1"]["status"] = {}
    cluster.now += 61
    cluster.reconcile()
    assert "Job/demo-g0-1: FailedCreate: its controller has created no pod since" in degraded(cluster)
    assert "kube-controller-manager" in degraded(cluster)


def run_silently(cluster: SimulatedCluster) -> None:
    """Let all pods of the attempt run, without a report."""
    for pod in cluster.pods.values():
        running = {"running": {"startedAt": timestamp(cluster.now)}}
        pod["status"]["containerStatuses"] = [{"name": "trainer", "ready": True, "state": running}]


def test_orchestrator_without_report_is_released() -> None:
    """The pending deadline includes the first report."""
    cluster = at_first_stage("g", pendingDeadlineSeconds=900)
    run_silently(cluster)
    cluster.now += 601
    assert cluster.round(1).phase == "Running" and "OrchestratorNotReporting" in degraded(cluster)
    cluster.now += 300
    decision = cluster.round(1)
    assert decision.reason == "SchedulingTimeout" and "OrchestratorNotReporting" in decision.message


@pytest.mark.parametrize("action", ["Report", "Restart"])
def test_orchestrator_without_report_is_stuck(action: str) -> None:
    """With a longer pending deadline, spec.stuck applies after two hours."""
    cluster = at_first_stage("g", pendingDeadlineSeconds=86400, stuck={"action": action})
    run_silently(cluster)
    cluster.now += 7201
    decision = cluster.reconcile()
    assert decision.reason == ("Stuck" if action == "Restart" else "Running")


def test_rejected_attempt_releases_the_engines_in_time() -> None:
    """Engines that wait for an attempt that a quota rejects are deleted after pendingDeadlineSeconds, and come back."""
    cluster = at_first_stage("g", pendingDeadlineSeconds=600)
    engines = "Deployment", "demo-rollout"
    cluster.finish_job("demo-g0-1", 137)
    cluster.now += 60
    cluster.reject("Job")
    assert cluster.round().reason == "ApplyRejected"
    cluster.now += 500
    assert cluster.round().reason == "ApplyRejected"
    assert engines in cluster.children
    cluster.now += 50
    decision = cluster.round()
    assert (decision.phase, decision.reason) == ("Pending", "SchedulingTimeout")
    assert "demo-g0-2" in decision.message and "exceeded quota" in decision.message
    assert engines not in cluster.children
    cluster.reject()
    cluster.now += 1300
    assert cluster.round().phase == "Running"
    assert engines in cluster.children
    assert cluster.running() == ["demo-g0-2"]
    assert cluster.job["status"]["restarts"] == 1


def scheduled(cluster: SimulatedCluster) -> tuple[str, str]:
    """Return status and message of the condition PodsScheduled."""
    match = next(each for each in cluster.job["status"]["conditions"] if each["type"] == "PodsScheduled")
    return match["status"], match["message"]


@pytest.mark.parametrize("phase", ["Running", "Succeeded", "Failed", "Pending"])
def test_running_pod_does_not_wait_for_a_node(phase: str) -> None:
    """A kubelet may write a status without PodScheduled: only a pending pod waits for a node then."""
    cluster = at_first_stage("g")
    cluster.pods["demo-g0-1-1"]["status"] = {"phase": phase, "conditions": []}
    cluster.round(1)
    waits = phase == "Pending"
    assert scheduled(cluster) == (str(not waits), "Waiting for a node: demo-g0-1-1." if waits else "")


def test_updated_redis_does_not_wait_for_a_node() -> None:
    """While the pod of a new revision runs, the StatefulSet has no pod of the current one."""
    cluster = at_first_stage("g")
    redis = cluster.children["StatefulSet", "demo-redis"]
    redis["status"] = {"replicas": 1, "readyReplicas": 1, "updatedReplicas": 1}
    cluster.run_operator()
    assert scheduled(cluster) == ("True", "")
    redis["status"] = {"replicas": 0}
    cluster.run_operator()
    assert scheduled(cluster) == ("False", "Waiting for the creation of pods: demo-redis.")
