"""Faults by others: quota taken back, clocks and nodes that are wrong, restarts without an end, late edits."""

from __future__ import annotations

import time
from typing import Any

import pytest

from rstar2_operator.cached_object import strip_fields
from rstar2_operator.node_health import NodeFault
from rstar2_operator.observed import seconds, timestamp
from rstar2_operator.status_writer import is_urgent
from rstar2_train.api.contracts import PROGRESS_KEY, Outcome, Progress, outcome_key
from tests.support.fake_kube_api import Operator
from tests.support.simulated_cluster import SimulatedCluster, at_first_stage, in_situation, kinds, manifest

ENGINE = {"rstar2.dev/job": "demo", "rstar2.dev/role": "rollout", "batch.kubernetes.io/job-name": ""}


def crash_engine(cluster: SimulatedCluster) -> None:
    """Act as an engine that is killed for its memory."""
    ended = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": timestamp(cluster.now)}
    status = {"phase": "Running", "containerStatuses": [{"name": "engine", "lastState": {"terminated": ended}}]}
    meta = {"name": "demo-rollout-x", "labels": ENGINE, "creationTimestamp": timestamp(0)}
    cluster.pods["demo-rollout-x"] = {"kind": "Pod", "metadata": meta, "spec": {"nodeName": "node-1"}, "status": status}


def test_role_rule_restarts_back_off() -> None:
    """An engine that is killed in every attempt does not restart the stage every few seconds, also if not counted."""
    rule = {"roles": ["rollout"], "onReasons": ["OOMKilled"], "action": "RestartStage", "countsTowardsMax": False}
    cluster = at_first_stage("g", failurePolicy={"rules": [rule]})
    end, reasons = cluster.now + 600, set()
    while cluster.now < end:
        crash_engine(cluster)
        for _ in range(3):
            reasons.add(cluster.reconcile().reason)
            cluster.settle()
            cluster.terminate()
        cluster.now += 5
    attempts = cluster.job["status"]["stages"][0]["attempts"]
    assert 4 <= attempts <= 9 and {"RoleFailed", "BackOff"} <= reasons
    assert cluster.job["status"]["stages"][0]["ended"]["failures"] >= 3


def test_evicted_engine_ends_one_attempt() -> None:
    """The pod of an evicted engine stays until the garbage collection: it must not end every later attempt too."""
    rule = {"roles": ["rollout"], "onReasons": ["Evicted"], "action": "RestartStage", "countsTowardsMax": False}
    cluster = at_first_stage("g", failurePolicy={"rules": [rule]})
    crash_engine(cluster)
    condition = {"type": "Ready", "status": "False", "lastTransitionTime": timestamp(cluster.now)}
    evicted = {"phase": "Failed", "reason": "Evicted", "message": "low on memory", "conditions": [condition]}
    cluster.pods["demo-rollout-x"]["status"] = evicted
    assert cluster.reconcile().reason == "RoleFailed"
    for _ in range(4):
        cluster.settle()
        cluster.terminate()
        cluster.now += 60
        cluster.round(1)
    assert cluster.running() == ["demo-g0-2"]


def test_stuck_uses_the_clock_of_the_api_server() -> None:
    """A node whose clock is three hours behind does not make each report an old one."""
    cluster = at_first_stage("g", stuck={"action": "Restart"})
    report = Progress(stage="g0", attempt=1, phase="Training", step=1, total_steps=4, updated_at=cluster.now - 10_800)
    cluster.patch_progress(PROGRESS_KEY, report.model_dump(mode="json", exclude_none=True))
    config = cluster.children["ConfigMap", "demo-progress"]
    fields = [{"manager": "launcher", "time": timestamp(cluster.now)}]
    body = {**config, "metadata": {**config["metadata"], "managedFields": fields}}
    cluster.children["ConfigMap", "demo-progress"] = strip_fields("ConfigMap", body)
    cluster.now += 60
    assert cluster.round().reason == "Running"
    assert seconds(cluster.job["status"]["stages"][0]["lastStepTime"]) == cluster.now - 60
    cluster.now += 7200
    assert cluster.reconcile().reason == "Stuck"


@pytest.mark.parametrize("ahead", [-10_800, 10_800])
def test_stuck_ignores_the_clock_of_a_node_without_report(ahead: float) -> None:
    """The start of a container on a node with a wrong clock does not end an attempt that has just started."""
    cluster = at_first_stage("g", stuck={"action": "Restart"}, pendingDeadlineSeconds=86400)
    for pod in cluster.pods.values():
        started = {"running": {"startedAt": timestamp(cluster.now + ahead)}}
        pod["status"]["containerStatuses"] = [{"name": "trainer", "ready": True, "state": started}]
    cluster.now += 60
    assert cluster.reconcile().reason == "Running"


def test_waits_end_though_clocks_differ() -> None:
    """A replica whose clock is hours ahead wrote the time of the next try: this one does not wait for hours."""
    released = in_situation("released")
    released.job["status"]["nextRetryTime"] = timestamp(released.now + 10_800)
    assert released.reconcile().reason != "SchedulingTimeout"
    failed = at_first_stage("g")
    failed.finish_job("demo-g0-1", 137)
    final = failed.children["Job", "demo-g0-1"]["status"]["conditions"][0]
    final["lastTransitionTime"] = timestamp(failed.now + 10_800)
    assert failed.reconcile().reason == "Restarted"


def test_failed_attempt_ends_by_the_operators_clock() -> None:
    """A container that exited on a node whose clock is ahead does not hold its accelerators until that time."""
    cluster = at_first_stage("g")
    outcome = Outcome(stage="g0", attempt=1, outcome="failed", reason="RanksLost")
    cluster.patch_progress(outcome_key("g0"), outcome.model_dump(mode="json", exclude_none=True))
    ended = {"terminated": {"exitCode": 76, "finishedAt": timestamp(cluster.now + 10_800)}}
    for pod in cluster.pods.values():
        proxy = {"name": "a-proxy", "ready": True, "state": {"running": {"startedAt": timestamp(cluster.now)}}}
        pod["status"]["containerStatuses"] = [proxy, {"name": "trainer", "ready": False, "state": ended}]
    cluster.reconcile()
    cluster.now += 121
    assert cluster.reconcile().reason == "OrchestratorExited"


def test_kueue_deleted_workload_queues_after_the_checkpoint() -> None:
    """Engines stay until the orchestrator has written its checkpoint; another Workload queues when no pod is left."""
    cluster = at_first_stage("g", queueName="team")
    (name,) = kinds(cluster, "Workload")
    true = [{"type": kind, "status": "True", "reason": "x", "message": "", "lastTransitionTime": timestamp(0)}
            for kind in ("QuotaReserved", "Admitted")]  # fmt: skip
    cluster.children["Workload", name]["status"] = {"conditions": true}
    cluster.round()
    assert cluster.running() == ["demo-g0-1"]
    del cluster.children["Workload", name]
    decision = cluster.round()
    assert decision.phase == "Suspending" and "no Workload" in decision.message
    assert kinds(cluster, "Workload") == [] and "demo-rollout" in kinds(cluster, "Deployment")
    cluster.terminate()
    decision = cluster.round()
    assert decision.reason == "Queued" and kinds(cluster, "Workload") == [name] and kinds(cluster, "Deployment") == []


def test_node_loss_each_faulty_node_has_its_own_timer() -> None:
    """A node that becomes faulty while another one is does not inherit the start of the other."""
    cluster = at_first_stage("g", nodeLoss={"afterSeconds": 600})
    cluster.pods["demo-g0-1-1"]["spec"]["nodeName"] = "node-2"
    cluster.node_faults = {"node-1": NodeFault(("label x",), closed=True)}
    cluster.round()
    cluster.now += 500
    cluster.node_faults["node-2"] = NodeFault(("label x",), closed=True)
    cluster.round()
    del cluster.node_faults["node-1"]  # repaired
    cluster.now += 200
    assert cluster.round().reason == "Running"
    assert [each["name"] for each in cluster.job["status"]["faultyNodes"]] == ["node-2"]
    cluster.now += 400
    assert cluster.reconcile().reason == "NodeLost"


async def test_node_loss_removes_pods_of_a_deleted_invalid_job() -> None:
    """A deleted job whose spec is invalid does not wait for a node that is gone."""
    operator = Operator(manifest("g", nodeLoss={"afterSeconds": 30}))
    await operator.start_stage("g0")
    operator.run_orchestrator("g0")
    operator.change(stages=[{"name": "g0", "type": "GRPO"}])
    await operator.until(lambda: operator.status["reason"] == "InvalidSpec", seconds=30)
    operator.delete()
    past = timestamp(time.time() - 120)
    lost = {"type": "Ready", "status": "False", "reason": "NodeLost", "lastTransitionTime": past}
    states = [{"name": "trainer", "ready": True, "state": {"running": {"startedAt": past}}}]
    pod = operator.api.objects["Pod", "orchestrator"]
    operator.api.edit(
        "Pod",
        "orchestrator",
        metadata={**pod["metadata"], "deletionTimestamp": past},
        status={"phase": "Running", "conditions": [lost], "containerStatuses": states},
    )
    await operator.until(lambda: operator.names("AgenticRLJob") == [], seconds=30)


@pytest.mark.parametrize("phase", ["Pending", "Bound"])
async def test_deletion_takes_a_claim_without_volume_along(phase: str) -> None:
    """A retained claim that never had a volume would keep a wrong class for the next job of the name; data stays."""
    operator = Operator(manifest("g"))
    await operator.run()
    operator.api.edit("PersistentVolumeClaim", "demo-state", status={"phase": phase})
    operator.delete()
    await operator.until(lambda: operator.names("AgenticRLJob") == [], seconds=60)
    owners = operator.api.objects["PersistentVolumeClaim", "demo-state"]["metadata"].get("ownerReferences")
    assert bool(owners) == (phase == "Pending")


def test_status_with_a_new_attempt_is_urgent() -> None:
    """Another attempt must not have its number, so the number is written immediately, without another change."""
    condition = {"type": "Ready", "status": "True", "reason": "Running"}
    row = {"name": "g0", "attempts": 1}
    old: dict[str, Any] = {"phase": "Running", "stage": "g0", "stages": [row], "conditions": [condition]}
    assert is_urgent(old, {**old, "stages": [{**row, "attempts": 2}]})
    assert not is_urgent(old, {**old, "stages": [{**row, "step": 2}]})


def test_step_does_not_fall_after_a_resume() -> None:
    """Steps that an attempt repeats after its checkpoint, and its first report, do not decrease STEP and PROGRESS."""
    cluster = at_first_stage("g")
    cluster.progress("g0", 1, 3)
    cluster.round()
    before = cluster.job["status"]
    cluster.finish_job("demo-g0-1", 137)
    cluster.now += 60
    cluster.round()
    cluster.progress("g0", 2, 0, phase="Starting")
    cluster.round()
    after = cluster.job["status"]
    assert (after["step"], after["progressPercentage"]) == (before["step"], before["progressPercentage"]) == (3, 75)
    cluster.progress("g0", 2, 4)
    cluster.round()
    assert cluster.job["status"]["step"] == 4


def test_remaining_time_is_that_of_the_running_attempt() -> None:
    """The last stage's 0 seconds are not those of the stage that starts."""
    cluster = at_first_stage("ss")
    report = Progress(stage="s0", attempt=1, phase="Finished", step=4, total_steps=4, estimated_remaining_seconds=0.0)
    for left, expected in ((90.0, 90), (0.0, None)):
        report = report.model_copy(update={"estimated_remaining_seconds": left})
        cluster.patch_progress(PROGRESS_KEY, report.model_dump(mode="json", exclude_none=True))
        cluster.round()
        assert cluster.job["status"].get("estimatedRemainingSeconds") == expected
    report = report.model_copy(update={"estimated_remaining_seconds": 90.0})
    cluster.patch_progress(PROGRESS_KEY, report.model_dump(mode="json", exclude_none=True))
    cluster.finish_stage("s0")
    cluster.round()
    assert cluster.running() == ["demo-s1-1"] and "estimatedRemainingSeconds" not in cluster.job["status"]


def test_preparation_retry_names_an_init_container() -> None:
    """An injected init container that fails ends each pod of the preparation before its own container starts.

    The preparation is repeated, as an attempt would be.
    """
    cluster = SimulatedCluster(manifest("g"))
    cluster.round()
    cluster.finish_job("demo-prepare", 1)
    (pod,) = cluster.pods.values()
    ended = {"name": "istio-validation", "state": {"terminated": {"exitCode": 126, "reason": "Error"}}}
    pod["status"] |= {"initContainerStatuses": [ended], "containerStatuses": []}
    decision = cluster.reconcile()
    assert decision.reason == "Preparing"
    assert "Pod/demo-prepare-0: init container istio-validation exited with code 126 (Error)" in decision.message


def test_preparation_failure_has_the_cause_of_its_pods() -> None:
    """The Job knows only that its retries are used up; the container knows why."""
    cluster = SimulatedCluster(manifest("g"))
    cluster.round()
    cluster.finish_job("demo-prepare", 128)
    text = 'exec: "python": executable file not found in $PATH'
    (pod,) = cluster.pods.values()
    ended = {"exitCode": 128, "reason": "StartError", "message": text}
    pod["status"]["containerStatuses"] = [{"name": "prepare", "state": {"terminated": ended}}]
    decision = cluster.round()
    assert decision.reason == "PrepareFailed"
    assert f"StartError: Pod/demo-prepare-0: {text} (exit code 128)" in decision.message


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ({"reason": "Evicted", "message": "Usage of EmptyDir exceeds 20Gi. "}, "Evicted: Pod/demo-prepare-0: Usage of"),
        ({}, "OOMKilled: Pod/demo-prepare-0: container prepare reached its memory limit"),
    ],
)
def test_preparation_failure_has_the_words_of_the_kubelet(status: dict[str, str], message: str) -> None:
    """The exit code of a container that the kubelet killed shows neither the volume nor the limit."""
    cluster = SimulatedCluster(manifest("g"))
    cluster.round()
    (pod,) = cluster.pods.values()
    ended = {"exitCode": 137, "reason": "Error" if status else "OOMKilled"}
    pod["status"] = {"phase": "Failed", **status}
    pod["status"]["containerStatuses"] = [{"name": "prepare", "state": {"terminated": ended}}]
    cluster.round(1)
    prepared = next(each for each in cluster.job["status"]["conditions"] if each["type"] == "StorageReady")
    assert message in prepared["message"], "its Job retries"
    cluster.finish_job("demo-prepare", 137)
    assert message in cluster.round(1).message


@pytest.mark.parametrize("of", ["Pod", "Job"])
@pytest.mark.parametrize("code", [75, 137])
def test_deadline_of_others_is_named(of: str, code: int) -> None:
    """A policy sets activeDeadlineSeconds of pods or Jobs: the attempt did not lose a pod, and did not crash."""
    cluster = at_first_stage("s")
    cluster.progress("s0", 1, 1)
    cluster.finish_job("demo-s0-1", code)
    job, pod = cluster.children["Job", "demo-s0-1"], cluster.pods["demo-s0-1-0"]
    ended = pod["status"] if of == "Pod" else job["status"]["conditions"][0]
    ended |= {"reason": "DeadlineExceeded", "message": "active longer than specified"}
    assert f"DeadlineExceeded: {of}/demo-s0-1" in cluster.reconcile().message


REJECTED = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices"}
FAILED_INIT = {"name": "agent-init", "state": {"terminated": {"exitCode": 1}}}
DRAINED = {"type": "DisruptionTarget", "status": "True"}


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("PodRejected", REJECTED),
        ("PodRejected", {"phase": "Failed", "initContainerStatuses": [FAILED_INIT]}),
        ("Disrupted", {"phase": "Running", "conditions": [DRAINED]}),
    ],
)
def test_role_rule_has_the_reasons_of_the_api(reason: str, status: dict[str, Any]) -> None:
    """A rule names reasons of the API, and not those of kubelets, for engines as for trainer pods."""
    rule = {"roles": ["rollout"], "onReasons": [reason], "action": "FailJob"}
    cluster = at_first_stage("g", failurePolicy={"rules": [rule]})
    cluster.now += 50
    changed = {"lastTransitionTime": timestamp(cluster.now)}
    status = {**status, "conditions": [each | changed for each in status.get("conditions", ())]}
    labels = {"rstar2.dev/job": "demo", "rstar2.dev/role": "rollout", "batch.kubernetes.io/job-name": ""}
    metadata = {"name": "demo-rollout-x", "labels": labels, "creationTimestamp": timestamp(cluster.now)}
    cluster.pods["demo-rollout-x"] = {"metadata": metadata, "spec": {"nodeName": "node-1"}, "status": status}
    assert cluster.reconcile().reason == "RoleFailed"
