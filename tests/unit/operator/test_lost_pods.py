"""Pods that the kubelet rejects or that others delete, and quota and deadlines of jobs that cannot continue."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rstar2_operator.cache import WatchCache
from rstar2_operator.client import is_transient
from rstar2_operator.names import BATCH_JOB_LABEL
from rstar2_operator.observed import timestamp
from rstar2_train.api.contracts import CheckpointRef, Outcome
from tests.support.fake_kube_api import Operator, api_error
from tests.support.simulated_cluster import SimulatedCluster, at_first_stage, manifest

COMPLETE = {"type": "Complete", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
REJECTION = "Pod was rejected: Allocate failed due to no healthy devices present, which is unexpected"


PRESSURE = "Pod was rejected: The node had condition: [DiskPressure]. "
WAITING_FOR_INIT = {"name": "trainer", "ready": False, "state": {"waiting": {"reason": "PodInitializing"}}}
FAILED_INIT = {"name": "vault-agent-init", "state": {"terminated": {"exitCode": 2, "reason": "Error"}}}
BEFORE_START = [
    (
        {"reason": "UnexpectedAdmissionError", "message": REJECTION},
        f"UnexpectedAdmissionError: {REJECTION}",
    ),
    ({"reason": "Evicted", "message": PRESSURE}, f"Evicted: {PRESSURE.strip()}"),
    (
        {"initContainerStatuses": [FAILED_INIT], "containerStatuses": [WAITING_FOR_INIT]},
        "init container vault-agent-init exited with code 2 (Error)",
    ),
]
"""Status of a pod that fails before its own container starts, and the words about it."""


def reject(cluster: SimulatedCluster, job: str, status: dict[str, Any] = BEFORE_START[0][0]) -> None:
    """Act as a kubelet that rejects the pods of a Job, or cannot start their containers."""
    for name, pod in cluster.pods.items():
        if name.startswith(f"{job}-"):
            pod["status"] = {"phase": "Failed", **status}
    failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}
    cluster.children["Job", job]["status"] = {"conditions": [failed | {"lastTransitionTime": timestamp(cluster.now)}]}


@pytest.mark.parametrize(("status", "message"), BEFORE_START)
def test_pod_that_fails_before_its_start_is_a_disruption(status: dict[str, Any], message: str) -> None:
    """A GPU node after a reboot, a full disk, a sealed vault: no orchestrator ran, so none is named or counted."""
    cluster = at_first_stage("g", failurePolicy={"maxRestarts": 1})
    for attempt in (1, 2, 3):
        reject(cluster, f"demo-g0-{attempt}", status)
        decision = cluster.round()
        assert decision.reason == "BackOff"
        assert f"PodRejected: Pod/demo-g0-{attempt}-0: {message}" in decision.message
        cluster.now += 600
        cluster.round()
    assert cluster.running() == ["demo-g0-4"] and cluster.job["status"]["restartsCountedTowardsMax"] == 0


def test_crash_is_not_the_init_container_of_another_pod() -> None:
    """A pod that was still starting when the orchestrator crashed is deleted; its init container is not the cause."""
    cluster = at_first_stage("g")
    cluster.finish_job("demo-g0-1", 1)
    other = cluster.pods["demo-g0-1-1"]
    other["metadata"]["deletionTimestamp"] = timestamp(cluster.now)
    other["status"] = {"phase": "Failed", **BEFORE_START[2][0]}
    assert "Crashed" in cluster.reconcile().message


def test_evicted_pod_that_ran_counts() -> None:
    """The kubelet evicted a pod that used more than it requested: that is no rejection."""
    cluster = at_first_stage("g")
    reject(cluster, "demo-g0-1", {"reason": "Evicted", "message": "The node was low on resource: memory."})
    assert cluster.reconcile().message.count("Evicted: Pod/demo-g0-1-0: The node was low on resource") == 1
    cluster.now += 600
    cluster.round()
    assert cluster.job["status"]["restartsCountedTowardsMax"] == 1


def test_rejected_pod_matches_a_rule() -> None:
    """A rule of the failure policy can name the rejection."""
    rule = {"onReasons": ["PodRejected"], "action": "FailJob"}
    cluster = at_first_stage("g", failurePolicy={"rules": [rule]})
    reject(cluster, "demo-g0-1")
    decision = cluster.round()
    assert decision.phase == "Finalizing" and "UnexpectedAdmissionError" in decision.message


@pytest.mark.parametrize("crashed", [False, True])
def test_pod_deleted_by_others_counts_without_progress(crashed: bool) -> None:
    """An autoscaler that rotates nodes does not exhaust maxRestarts; a worker that crashes each time does."""
    cluster = at_first_stage("g", failurePolicy={"maxRestarts": 2})
    for attempt in (1, 2, 3):
        assert cluster.running() == [f"demo-g0-{attempt}"]
        checkpoint = CheckpointRef(path="c", step=5 * attempt)
        stopped = Outcome(stage="g0", attempt=attempt, outcome="suspended", reason="Suspended", checkpoint=checkpoint)
        cluster.progress("g0", attempt, 3)
        cluster.finish_job(f"demo-g0-{attempt}", 75, outcome=stopped)
        if not crashed:
            del cluster.pods[f"demo-g0-{attempt}-1"]
        cluster.round()
        cluster.now += 600
        cluster.round()
    assert cluster.running() == (["demo-report"] if crashed else ["demo-g0-4"])
    assert cluster.job["status"]["restartsCountedTowardsMax"] == (2 if crashed else 0)


def fail_job(cluster: SimulatedCluster, job: str, code: int, *, outcome: Outcome | None) -> None:
    """Finish the pods of a Job, as its controller does: it deletes the running pods after FailureTarget."""
    cluster.now += 1.1
    failing = {"type": "FailureTarget", "status": "True", "reason": "x", "lastTransitionTime": timestamp(cluster.now)}
    cluster.children["Job", job]["status"] = {"conditions": [failing]}
    for name, pod in cluster.pods.items():
        if name.startswith(f"{job}-") and not name.endswith("-0"):
            delete_pod(cluster, name, grace=30, patch=pod)
    cluster.run_operator()
    cluster.finish_job(job, code, outcome=outcome)
    for name in [name for name, pod in cluster.pods.items() if "deletionTimestamp" in pod["metadata"]]:
        del cluster.pods[name]
    cluster.children["Job", job]["status"]["conditions"].insert(0, failing)


def delete_pod(cluster: SimulatedCluster, name: str, *, grace: int, patch: dict[str, Any] | None = None) -> None:
    """Delete a pod: it stays, with a deletion time, until its containers have ended."""
    metadata = (patch or cluster.pods[name])["metadata"]
    if "deletionTimestamp" not in metadata:
        metadata |= {"deletionTimestamp": timestamp(cluster.now + grace), "deletionGracePeriodSeconds": grace}


RANKS_LOST = Outcome(stage="g0", attempt=1, outcome="failed", reason="RanksLost", message="rank 1", retryable=True)
STOPPED = Outcome(stage="g0", attempt=1, outcome="suspended", reason="Suspended")


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("grace", [0, 30])
@pytest.mark.parametrize(("code", "outcome"), [(76, RANKS_LOST), (75, STOPPED), (137, None)])
def test_deleted_pod_never_counts(index: int, grace: int, code: int, outcome: Outcome | None) -> None:
    """Whether the orchestrator reports the lost ranks first, stops with a checkpoint, or is killed itself."""
    cluster = at_first_stage("g", failurePolicy={"maxRestarts": 0})
    cluster.progress("g0", 1, 2)
    cluster.round(1)
    delete_pod(cluster, f"demo-g0-1-{index}", grace=grace)
    cluster.run_operator()  # the pod may be gone before the next round
    if grace == 0:
        del cluster.pods[f"demo-g0-1-{index}"]
    fail_job(cluster, "demo-g0-1", code, outcome=outcome)
    assert "PodLost: a pod of the attempt was deleted" in cluster.round().message
    cluster.deletions.clear()  # the operator restarts
    cluster.now += 600
    cluster.round()
    assert cluster.running() == ["demo-g0-2"] and cluster.job["status"]["restartsCountedTowardsMax"] == 0


def test_lost_ranks_of_running_pods_count() -> None:
    """The Job controller deletes the other pods of an attempt that fails by itself: no disruption."""
    cluster = at_first_stage("g", failurePolicy={"maxRestarts": 1})
    cluster.progress("g0", 1, 2)
    cluster.round(1)
    fail_job(cluster, "demo-g0-1", 76, outcome=RANKS_LOST)
    assert "RanksLost: rank 1" in cluster.round().message
    cluster.now += 600
    cluster.round()
    assert cluster.running() == ["demo-g0-2"] and cluster.job["status"]["restartsCountedTowardsMax"] == 1


def test_deleted_pod_matches_rules_about_it() -> None:
    """A rule can name the lost pod, or every disruption; it decides before the default does."""
    for reason in ("PodLost", "Disrupted"):
        rule = {"onReasons": [reason], "action": "FailJob"}
        cluster = at_first_stage("g", failurePolicy={"rules": [rule]})
        delete_pod(cluster, "demo-g0-1-1", grace=0)
        cluster.run_operator()
        fail_job(cluster, "demo-g0-1", 76, outcome=RANKS_LOST)
        assert cluster.round().phase == "Finalizing"


def test_lost_ranks_of_a_lost_node_do_not_count() -> None:
    """The orchestrator reports them before the node controller sees the node; the pod stays until the node is gone."""
    cluster = at_first_stage("g", failurePolicy={"maxRestarts": 0})
    cluster.progress("g0", 1, 2)
    cluster.round(1)
    worker = cluster.pods["demo-g0-1-1"]
    fail_job(cluster, "demo-g0-1", 76, outcome=RANKS_LOST)
    since = {"type": "Ready", "status": "False", "lastTransitionTime": timestamp(cluster.now)}
    running = {"name": "trainer", "ready": True, "state": {"running": {"startedAt": timestamp(0)}}}
    worker["status"] = {"phase": "Running", "conditions": [since], "containerStatuses": [running]}
    cluster.pods["demo-g0-1-1"] = worker
    cluster.now += 60
    assert cluster.round().reason == "WaitingForPodTermination"
    del cluster.pods["demo-g0-1-1"]  # a person taints the node
    cluster.round()
    cluster.now += 600
    cluster.round()
    assert cluster.running() == ["demo-g0-2"] and cluster.job["status"]["restartsCountedTowardsMax"] == 0


def test_cache_keeps_the_first_deletion_of_a_gone_pod() -> None:
    """The pod of an attempt is gone within a second; a later, shorter grace period is another deletion of it."""
    cache = WatchCache()
    cache.record_job({**manifest("g"), "status": {}}, gone=False)
    labels = {"app.kubernetes.io/managed-by": "rstar2-operator", "rstar2.dev/job": "demo", BATCH_JOB_LABEL: "demo-g0-1"}
    meta = {"name": "p", "namespace": "lab", "uid": "p", "creationTimestamp": timestamp(0)}
    meta["labels"] = {**labels, "rstar2.dev/stage": "g0", "rstar2.dev/attempt": "1"}
    for version, (when, grace) in enumerate(((130, 30), (110, 0)), start=2):
        deleted = {"deletionTimestamp": timestamp(when), "deletionGracePeriodSeconds": grace}
        pod = {"metadata": {**meta, **deleted, "resourceVersion": str(version)}, "spec": {}}
        cache.record_child("Pod", {"kind": "Pod", **pod, "status": {"phase": "Running"}}, gone=version == 3)
    observed = cache.observed(("lab", "demo"))
    assert observed is not None and not observed.pods
    assert observed.deletions == {"demo-g0-1": 100.0}


def test_active_deadline_keeps_the_reason_of_a_failure() -> None:
    """A deadline that passes while the report is written does not replace the cause."""
    cluster = at_first_stage("g", activeDeadlineSeconds=100, failurePolicy={"maxRestarts": 0})
    cluster.now += 90
    failed = Outcome(stage="g0", attempt=1, outcome="failed", reason="Defect", message="KeyError: x", retryable=True)
    cluster.finish_job("demo-g0-1", 70, outcome=failed)
    cluster.round()
    cluster.now += 20
    cluster.round()
    cluster.finish_job("demo-report", 0)
    decision = cluster.round()
    assert decision.phase == "Failed" and "KeyError: x" in decision.message


def test_withdrawn_disruption_excuses_no_failure() -> None:
    """Kubernetes can set DisruptionTarget back to False."""
    cache = WatchCache()
    cache.record_job({**manifest("g"), "status": {}}, gone=False)
    meta = {"name": "p", "namespace": "lab", "uid": "p", "creationTimestamp": timestamp(0)}
    labels = {"app.kubernetes.io/managed-by": "rstar2-operator", "rstar2.dev/job": "demo", BATCH_JOB_LABEL: "demo-g0-1"}
    for version, value in enumerate(("True", "False"), start=2):
        status = {"phase": "Running", "conditions": [{"type": "DisruptionTarget", "status": value}]}
        metadata = {**meta, "labels": labels, "resourceVersion": str(version)}
        cache.record_child("Pod", {"kind": "Pod", "metadata": metadata, "spec": {}, "status": status}, gone=False)
        observed = cache.observed(("lab", "demo"))
        assert observed is not None and bool(observed.disrupted) == (value == "True")


async def test_invalid_job_without_pods_returns_its_quota() -> None:
    """Its Workload is deleted, and the message does not claim that pods run."""
    operator = Operator(manifest("g"))
    await operator.run()
    owner = {"controller": True, "uid": "uid-1", "kind": "AgenticRLJob", "name": "demo"}
    labels = {"app.kubernetes.io/managed-by": "rstar2-operator", "rstar2.dev/job": "demo"}
    metadata = {"name": "demo-g0", "labels": labels, "ownerReferences": [owner]}
    operator.api.put({"kind": "Workload", "metadata": metadata, "spec": {}})
    operator.change(stages=[{"name": "g0", "type": "GRPO"}])
    await operator.until(lambda: operator.status["reason"] == "InvalidSpec", seconds=30)
    assert operator.names("Workload") == []
    assert "Running pods" not in operator.status["message"]


def test_undeclared_field_of_an_older_crd_is_not_transient() -> None:
    """The API server answers 500, but no retry helps."""
    text = "failed to create typed patch object: .status.rolloutReplicas: field not declared in schema"
    assert not is_transient(api_error(500, "InternalError", text))
    assert is_transient(api_error(500, "InternalError", "etcdserver: leader changed"))


async def test_status_that_cannot_be_written_starts_no_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a record of its number, a second attempt of the same number could start next to the first one."""
    operator = Operator(manifest("g"))
    apply = operator.api.apply

    async def without_status(body: dict[str, Any], **options: Any) -> dict[str, Any]:
        if "subresource" in options:
            raise api_error(500, "InternalError", ".status.new: field not declared in schema")
        return await apply(body, **options)

    monkeypatch.setattr(operator.api, "apply", without_status)
    await operator.run()
    operator.api.edit("Job", "demo-prepare", status={"conditions": [COMPLETE]})
    await operator.run(2.0)
    assert operator.names("Job") == ["demo-prepare"]
    monkeypatch.setattr(operator.api, "apply", apply)
    await operator.until(lambda: len(operator.names("Job")) == 2, seconds=60)
    await operator.run()
    assert operator.names("Job") == ["demo-g0-1", "demo-prepare"] and operator.status["restarts"] == 0


@pytest.mark.parametrize("change", ["no owner", "no number", "a word"])
def test_copy_of_a_pod_is_no_attempt(change: str) -> None:
    """A copy for debugging has the labels of a pod, or part of them: the next attempt does not wait for it."""
    cluster = at_first_stage("s")
    copied = copy.deepcopy(cluster.pods["demo-s0-1-0"])
    copied["metadata"] |= {"name": "debug", "uid": "debug"}
    if change == "no owner":
        del copied["metadata"]["ownerReferences"]
    elif change == "no number":
        del copied["metadata"]["labels"]["rstar2.dev/attempt"]
    else:
        copied["metadata"]["labels"]["rstar2.dev/attempt"] = "debug"
    cluster.pods["debug"] = copied
    cluster.finish_job("demo-s0-1", 1)
    copied["status"]["phase"] = "Running"
    cluster.now += 3600
    cluster.round()
    assert "demo-s0-2" in cluster.created_jobs
    cluster.delete_job()
    cluster.round()
    cluster.pods = {"debug": copied}
    cluster.round()
    cluster.finish_job("demo-report", 0)
    assert cluster.round(1).phase == "Deleting" and "debug" in cluster.job["status"]["message"]


@pytest.mark.parametrize("cause", ["NodeAffinity", "init"])
def test_preparation_whose_pods_are_rejected_is_repeated(cause: str) -> None:
    """As for an attempt, a kubelet that rejects pods, or an injected init container, does not fail the job."""
    cluster = SimulatedCluster(manifest("s"))
    cluster.round()
    cluster.finish_job("demo-prepare", 1)
    status: dict[str, Any] = {"phase": "Failed"}
    if cause == "init":
        status["initContainerStatuses"] = [{"name": "vault", "state": {"terminated": {"exitCode": 1}}}]
    else:
        status |= {"reason": cause, "message": "Pod was rejected: Predicate NodeAffinity failed"}
    cluster.pods["demo-prepare-0"]["status"] = status
    decision = cluster.reconcile()
    assert decision.phase == "Preparing" and "demo-prepare-0" in decision.message
    cluster.round()
    cluster.terminate()
    cluster.now += 10
    cluster.round()
    assert cluster.running() == ["demo-prepare"] and cluster.created_jobs == ["demo-prepare"] * 2
