"""Pods that do not start, lost nodes and their diagnostics, on a simulated cluster."""

from __future__ import annotations

import pytest

from rstar2_operator.decide.diagnostics import SILENT_SECONDS, STUCK_SECONDS, next_overdue_at
from rstar2_operator.node_health import NodeFault
from rstar2_operator.observed import timestamp
from tests.support.simulated_cluster import SimulatedCluster, at_first_stage, kinds, role_pod


def test_diagnostics_engine_out_of_memory_names_its_field() -> None:
    """A crashing engine that was killed at its memory limit names its own field."""
    cluster = at_first_stage("g")
    last = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
    container = {"name": "engine", "state": waiting, "lastState": last}
    cluster.pods["demo-rollout-x"] = role_pod(cluster, "rollout", {"containerStatuses": [container]})
    cluster.reconcile()
    problem = degraded(cluster)
    assert problem is not None and problem["reason"] == "OOMKilled"
    assert "increase spec.rollout.resources.limits.memory" in problem["message"]


def test_pending_deadline_releases_all_pods_and_retries() -> None:
    """After pendingDeadlineSeconds all pods are deleted, and a new attempt starts at status.nextRetryTime."""
    cluster = at_first_stage("g", pendingDeadlineSeconds=60)
    cluster.pods["demo-g0-1-1"]["status"] = {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                        "message": "0/3 nodes are available: 3 Insufficient amd.com/gpu."}],
    }  # fmt: skip
    decision = cluster.round()
    assert decision.phase == "Running" and decision.wake_at is not None
    degraded = next(each for each in cluster.job["status"]["conditions"] if each["type"] == "Degraded")
    assert degraded["status"] == "True" and "Insufficient amd.com/gpu" in degraded["message"]
    training = next(each for each in cluster.job["status"]["conditions"] if each["type"] == "Training")
    assert training["reason"] == "Unschedulable" and "Free or add nodes" in training["message"]
    cluster.now = decision.wake_at
    decision = cluster.round()
    assert (decision.phase, decision.reason) == ("Pending", "SchedulingTimeout")
    assert "3 Insufficient amd.com/gpu" in decision.message and "Free or add nodes" in decision.message
    assert kinds(cluster, "Deployment") == [] and ("Job", "demo-g0-1") not in cluster.children
    assert timestamp(cluster.decision().wake_at or 0.0) in decision.message
    cluster.pods.clear()
    assert cluster.round().phase == "Pending"
    assert decision.wake_at is None or decision.wake_at > cluster.now
    cluster.now = cluster.decision().wake_at or 0.0
    cluster.round()
    assert cluster.running() == ["demo-g0-2"]


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "CreateContainerConfigError", "CrashLoopBackOff"])
def test_pending_deadline_applies_to_pods_that_cannot_start(reason: str) -> None:
    """A pod that has a node, and cannot start, releases all pods: it would hold its accelerators indefinitely."""
    cluster = at_first_stage("g")
    scheduled = {"type": "PodScheduled", "status": "True"}
    container = {"name": "trainer", "state": {"waiting": {"reason": reason, "message": "back-off"}}}
    cluster.pods["demo-g0-1-1"]["status"] = {
        "phase": "Pending", "conditions": [scheduled], "containerStatuses": [container],
    }  # fmt: skip
    decision = cluster.round()
    assert decision.phase == "Running" and decision.wake_at == cluster.now + 3600  # the default
    cluster.now = decision.wake_at
    decision = cluster.round()
    assert (decision.phase, decision.reason) == ("Pending", "SchedulingTimeout")
    assert "(pending: demo-g0-1-1)" in decision.message and reason in decision.message


def test_degraded_many_equal_problems_hide_no_other() -> None:
    """Degraded has one line for the same problem of many pods, with their number."""
    cluster = at_first_stage("g")
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"}
    image = {"waiting": {"reason": "ErrImagePull", "message": "no image"}}
    for number in range(40):
        name, labels = f"demo-executor-{number}", {"rstar2.dev/job": "demo", "rstar2.dev/role": "executor"}
        pending = {"phase": "Pending", "conditions": [unscheduled]}
        cluster.pods[name] = {"kind": "Pod", "metadata": {"name": name, "labels": labels}, "status": pending}
    cluster.pods["demo-g0-1-1"]["status"] = {"phase": "Pending", "containerStatuses": [{"name": "x", "state": image}]}
    cluster.round()
    condition = next(each for each in cluster.job["status"]["conditions"] if each["type"] == "Degraded")
    assert condition["reason"] == "Unschedulable"
    lines = condition["message"].splitlines()
    assert len(lines) == 2 and "executor-0" in lines[0] and "no image" in lines[1]
    assert lines[0].endswith("The same problem: 39 more (demo-executor-1, demo-executor-10, demo-executor-11, ...).")


@pytest.mark.parametrize("orchestrator", ["none", "waits"])
def test_pending_deadline_applies_to_rejected_executors(orchestrator: str) -> None:
    """Executors that an admission rejects release the whole job, also if the orchestrator already waits."""
    cluster = at_first_stage("g", pendingDeadlineSeconds=60)
    if orchestrator == "waits":
        cluster.progress("g0", 1, 0, phase="Starting")
    error = 'pods "demo-executor-" is forbidden: pod rejected: RuntimeClass "gvisor" not found'
    refused = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": error}
    cluster.children["Deployment", "demo-executor"]["status"] = {"conditions": [refused]}
    decision = cluster.reconcile()
    judge = next(each for each in cluster.job["status"]["conditions"] if each["type"] == "JudgeReady")
    assert 'RuntimeClass "gvisor" not found' in judge["message"] and decision.wake_at is not None
    cluster.now = decision.wake_at
    decision = cluster.reconcile()
    assert (decision.phase, decision.reason) == ("Pending", "SchedulingTimeout")
    assert "demo-executor" in decision.message and kinds(cluster, "Deployment") == []


@pytest.mark.parametrize("made", [0, 1])
def test_pending_deadline_applies_to_rejected_trainers(made: int) -> None:
    """Trainer pods that a quota rejects release the engines."""
    cluster = at_first_stage("g", pendingDeadlineSeconds=60)
    cluster.children["Job", "demo-g0-1"]["status"] = {"active": made}
    cluster.pods = {name: pod for name, pod in cluster.pods.items() if name == "demo-g0-1-0" and made}
    decision = cluster.reconcile()
    assert decision.phase == "Running" and decision.wake_at is not None
    cluster.now = decision.wake_at
    decision = cluster.reconcile()
    assert (decision.phase, decision.reason) == ("Pending", "SchedulingTimeout") and "demo-g0-1" in decision.message
    assert kinds(cluster, "Deployment") == []


def test_diagnostics_stuck_pod_names_its_node() -> None:
    """A pod that outlives its grace period is reported with its node, once."""
    cluster = at_first_stage("g")
    pod = cluster.pods["demo-g0-1-1"]
    pod["metadata"]["deletionTimestamp"] = timestamp(cluster.now)
    cluster.round()
    assert degraded(cluster) is None
    when = next_overdue_at(cluster.observed(), now=cluster.now)
    assert when == cluster.now + STUCK_SECONDS
    cluster.now = when
    cluster.round()
    problem = degraded(cluster)
    assert problem is not None and problem["reason"] == "PodStuckTerminating"
    assert "taint nodes node-1 " in problem["message"]
    before = cluster.writes
    cluster.now += 3600
    cluster.round()
    assert cluster.writes == before and next_overdue_at(cluster.observed(), now=cluster.now) is None


def lose_node(cluster: SimulatedCluster, pod: str) -> None:
    """Act as the node controller after a kubelet has stopped to report."""
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": timestamp(cluster.now)}
    status = cluster.pods[pod]["status"]
    status["conditions"] = [*status["conditions"], ready]
    status["containerStatuses"] = [
        {"name": "trainer", "ready": True, "state": {"running": {"startedAt": timestamp(cluster.now)}}}
    ]


def test_node_loss_is_reported_immediately() -> None:
    """A node that does not report is a problem as soon as its pod is not ready; the job waits for it by default."""
    cluster = at_first_stage("g")
    lose_node(cluster, "demo-g0-1-1")
    cluster.round()
    problem = degraded(cluster)
    assert problem is not None and problem["reason"] == "NodeNotReady"
    assert "Pod/demo-g0-1-1: NodeNotReady: node node-1 has not reported since" in problem["message"]
    assert "spec.nodeLoss.afterSeconds" in problem["message"] and "taint nodes node-1 " in problem["message"]
    cluster.now += 3600
    assert cluster.round().phase == "Running" and ("Job", "demo-g0-1") in cluster.children


def test_node_loss_after_seconds_starts_a_new_attempt() -> None:
    """After nodeLoss.afterSeconds the attempt ends, the lost pod is removed, and a new attempt starts, not counted."""
    cluster = at_first_stage("g", nodeLoss={"afterSeconds": 60})
    lose_node(cluster, "demo-g0-1-1")
    decision = cluster.round()
    assert decision.phase == "Running" and decision.wake_at == cluster.now + 60
    cluster.now = decision.wake_at
    decision = cluster.reconcile()
    assert (decision.phase, decision.reason) == (
        "Pending",
        "NodeLost",
    ) and "Node node-1 of Pod/demo-g0-1-1" in decision.message
    assert ("Job", "demo-g0-1") in cluster.children  # first the status records the end
    assert cluster.job["status"]["stages"][0]["ended"]["attempt"] == 1
    cluster.reconcile()
    assert ("Job", "demo-g0-1") not in cluster.children and "demo-g0-1-1" in cluster.pods
    decision = cluster.round()
    assert decision.reason == "NodeLost" and "demo-g0-1-1" not in cluster.pods
    assert cluster.running() == ["demo-g0-1"]  # the other pod writes a checkpoint
    cluster.finish_job("demo-g0-1", 75)
    cluster.round()
    cluster.now += 6
    cluster.round()
    assert cluster.running() == ["demo-g0-2"] and cluster.job["status"]["restartsCountedTowardsMax"] == 0


def test_node_loss_faulty_node_is_reported_only() -> None:
    """A faulty node is named with its cause; while it is open for new pods, the attempt stays."""
    cluster = at_first_stage("g", nodeLoss={"afterSeconds": 60})
    cluster.node_faults = {"node-1": NodeFault(("condition KernelDeadlock (task hung)",), closed=False)}
    cluster.round()
    problem = degraded(cluster)
    assert problem is not None and problem["reason"] == "NodeUnhealthy"
    assert (
        "Node/node-1: NodeUnhealthy: condition KernelDeadlock (task hung); pods on it: demo-g0-1-0"
        in problem["message"]
    )
    cluster.now += 3600
    assert cluster.round().phase == "Running" and "faultyNodes" not in cluster.job["status"]


def test_node_loss_faulty_closed_node_is_left() -> None:
    """A faulty node that takes no new pods is left after nodeLoss.afterSeconds, with a checkpoint, not counted."""
    cluster = at_first_stage("g", nodeLoss={"afterSeconds": 60})
    cluster.node_faults = {"node-1": NodeFault(("taint amd-gpu-unhealthy:NoSchedule",), closed=True)}
    decision = cluster.round()
    assert decision.phase == "Running" and decision.wake_at == cluster.now + 60
    cluster.now += 60
    decision = cluster.round(1)
    assert decision.reason == "NodeLost" and "Node node-1 of Pod/demo-g0-1-0 is faulty: taint amd" in decision.message
    assert cluster.running() == ["demo-g0-1"]  # the pods write a checkpoint
    cluster.finish_job("demo-g0-1", 75)
    cluster.round()
    cluster.now += 6
    cluster.round()
    assert cluster.running() == ["demo-g0-2"] and cluster.job["status"]["restartsCountedTowardsMax"] == 0
    assert cluster.pods["demo-g0-2-0"]["spec"]["nodeName"] == "node-2" and degraded(cluster) is None
    assert "faultyNodes" not in cluster.job["status"]


def test_node_loss_ignores_containers_that_are_not_ready() -> None:
    """A pod whose container is not ready has a node that reports."""
    cluster = at_first_stage("g", nodeLoss={"afterSeconds": 60})
    lose_node(cluster, "demo-g0-1-1")
    cluster.pods["demo-g0-1-1"]["status"]["containerStatuses"][0]["ready"] = False
    cluster.now += 3600
    assert cluster.round().phase == "Running" and degraded(cluster) is None


def test_diagnostics_silent_orchestrator_is_reported() -> None:
    """An orchestrator without a report is a problem ten minutes after all its pods run."""
    cluster = at_first_stage("g")
    for name in ("demo-g0-1-0", "demo-g0-1-1"):
        running = {"running": {"startedAt": timestamp(cluster.now)}}
        cluster.pods[name]["status"]["containerStatuses"] = [{"name": "trainer", "state": running}]
    cluster.round()
    when = next_overdue_at(cluster.observed(), now=cluster.now)
    assert when == cluster.now + SILENT_SECONDS and degraded(cluster) is None
    cluster.now = when
    cluster.round()
    problem = degraded(cluster)
    assert problem is not None and problem["reason"] == "OrchestratorNotReporting"
    assert "kubectl logs -l batch.kubernetes.io/job-name=demo-g0-1 " in problem["message"]
    cluster.progress("g0", 1, 0, phase="Starting")
    cluster.round()
    assert degraded(cluster) is None and next_overdue_at(cluster.observed(), now=cluster.now) is None


def degraded(cluster: SimulatedCluster) -> dict[str, str] | None:
    """The condition, when it is true."""
    condition = next(each for each in cluster.job["status"]["conditions"] if each["type"] == "Degraded")
    return condition if condition["status"] == "True" else None


def test_pending_deadline_ignores_replaced_pods() -> None:
    """A pod that is replaced during training does not release the job."""
    cluster = at_first_stage("g", pendingDeadlineSeconds=60)
    cluster.progress("g0", 1, 2)
    cluster.pods["demo-g0-1-1"]["status"] = {"phase": "Pending"}
    cluster.now += 3600
    assert cluster.round().phase == "Running"


def test_pending_deadline_ignores_a_started_attempt() -> None:
    """A starting orchestrator with a ready pod of each role is not released."""
    cluster = at_first_stage("g", pendingDeadlineSeconds=60)
    cluster.progress("g0", 1, 0, phase="Starting")
    cluster.pods["demo-g0-1-1"]["status"] = {"phase": "Pending"}
    cluster.now += 3600
    assert cluster.round().phase == "Running"
