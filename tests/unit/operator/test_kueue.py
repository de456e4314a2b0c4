"""spec.queueName on a simulated cluster: admission, eviction and hand-over of quota. A test plays Kueue."""

from __future__ import annotations

from typing import Any

import pytest

from rstar2_operator.decide.kueue import request
from rstar2_operator.observed import timestamp
from tests.support.simulated_cluster import SimulatedCluster, at_first_stage, kinds

ADMITTED = {"type": "Admitted", "status": "True", "reason": "Admitted", "message": ""}


def queued(stages: str = "g", **spec: Any) -> SimulatedCluster:
    """Return the cluster of a job with a queue that waits for its first stage."""
    return at_first_stage(stages, queueName="team", **spec)


def workload(cluster: SimulatedCluster) -> dict[str, Any]:
    """Return the job's only Workload."""
    (name,) = kinds(cluster, "Workload")
    return cluster.children["Workload", name]


def admit(cluster: SimulatedCluster, **flavors: str) -> None:
    """Act as Kueue: admit the Workload with these flavors per resource."""
    body = workload(cluster)
    sets = body["spec"]["podSets"]
    assigned = [{"name": each["name"], "count": each["count"], "flavors": flavors} for each in sets]
    body["status"] = {"conditions": [ADMITTED], "admission": {"podSetAssignments": assigned}}
    cluster.round()


def evict(cluster: SimulatedCluster, **status: Any) -> None:
    """Act as Kueue: evict the Workload, which keeps its admission."""
    evicted = {"type": "Evicted", "status": "True", "reason": "Preempted", "message": "Preempted by job big."}
    body = workload(cluster)
    body["status"] |= {"conditions": [ADMITTED, evicted], **status}


def pod_sets(cluster: SimulatedCluster) -> dict[str, int]:
    """Return role -> pods that the Workload asks for."""
    return {each["name"]: each["count"] for each in workload(cluster)["spec"]["podSets"]}


def test_kueue_job_waits_without_a_pod() -> None:
    """Before admission only the Workload exists, and the status has Kueue's own words."""
    cluster = queued()
    assert cluster.running() == [] and kinds(cluster, "Deployment") == []
    message = "couldn't assign flavors to pod set trainer: insufficient unused quota for amd.com/gpu"
    workload(cluster)["status"] = {"conditions": [{"type": "QuotaReserved", "status": "False", "message": message}]}
    plan = cluster.round()
    assert (plan.phase, plan.reason) == ("Pending", "Queued") and message in plan.message
    assert cluster.running() == []
    admit(cluster)
    assert cluster.running() == ["demo-g0-1"] and kinds(cluster, "Deployment") != []


@pytest.mark.parametrize(
    ("stages", "roles"),
    [
        ("s", {"trainer": 2}),
        ("g", {"trainer": 2, "redis": 1, "judge": 1, "executor": 1, "rollout": 1}),
        ("f", {"trainer": 1, "redis": 1, "judge": 1, "executor": 1, "rollout": 1}),
    ],
)
def test_kueue_workload_has_the_pods_of_its_stage(stages: str, roles: dict[str, int]) -> None:
    """SFT asks for no engines, and a Filter stage for one pod without accelerators."""
    assert pod_sets(queued(stages)).keys() == roles.keys()
    assert pod_sets(queued(stages))["trainer"] == roles["trainer"]


def test_kueue_stage_with_other_pods_gets_its_own_workload() -> None:
    """The quota of a stage is returned when its pods are gone; a stage with the same pods keeps it."""
    cluster = queued("sgg")
    admit(cluster)
    cluster.finish_stage("s0")
    cluster.round()
    assert kinds(cluster, "Workload") == ["demo-g1"] and cluster.running() == []
    admit(cluster)
    assert cluster.running() == ["demo-g1-1"]
    cluster.finish_stage("g1")
    cluster.round()
    assert kinds(cluster, "Workload") == ["demo-g1"] and cluster.running() == ["demo-g2-1"]


def test_kueue_eviction_suspends_and_queues_again() -> None:
    """After an eviction the orchestrator writes a checkpoint; a new Workload queues; the next attempt resumes."""
    cluster = queued()
    admit(cluster)
    first = workload(cluster)["metadata"]["uid"]
    evict(cluster)
    plan = cluster.reconcile()
    assert (plan.phase, plan.reason) == ("Suspending", "Evicted") and "Preempted by job big." in plan.message
    assert workload(cluster)["metadata"]["uid"] == first  # its pods still hold the quota
    cluster.finish_job("demo-g0-1", 75)
    assert cluster.round().reason == "Queued"
    assert workload(cluster)["metadata"]["uid"] != first and cluster.running() == []
    admit(cluster)
    assert cluster.running() == ["demo-g0-2"]
    assert cluster.job["status"]["restarts"] == 0


def test_kueue_eviction_waits_for_kueues_backoff() -> None:
    """A Workload with status.requeueState.requeueAt is kept until then: Kueue counts its backoff in it."""
    cluster = queued()
    admit(cluster)
    first = workload(cluster)["metadata"]["uid"]
    evict(cluster, requeueState={"count": 1, "requeueAt": timestamp(cluster.now + 60)})
    cluster.reconcile()
    cluster.finish_job("demo-g0-1", 75)
    plan = cluster.round()
    assert plan.wake_at == cluster.now + 60 and workload(cluster)["metadata"]["uid"] == first
    cluster.now += 60
    cluster.round()
    assert workload(cluster)["metadata"]["uid"] != first


def test_kueue_deactivated_workload_is_kept() -> None:
    """A Workload that a person or Kueue deactivated stays, and the message names the way back."""
    cluster = queued()
    admit(cluster)
    workload(cluster)["spec"]["active"] = False
    assert cluster.reconcile().reason == "Evicted"
    cluster.finish_job("demo-g0-1", 75)
    plan = cluster.round()
    assert "spec.active to true" in plan.message and kinds(cluster, "Workload") == ["demo-g0"]


def test_kueue_suspended_job_returns_its_quota() -> None:
    """spec.suspend deletes the Workload after the last pod; a resumed job queues again."""
    cluster = queued()
    admit(cluster)
    cluster.job["spec"]["suspend"] = True
    cluster.reconcile()
    assert kinds(cluster, "Workload") == ["demo-g0"]
    cluster.finish_job("demo-g0-1", 75)
    assert cluster.round().phase == "Suspended" and kinds(cluster, "Workload") == []
    cluster.job["spec"]["suspend"] = False
    assert cluster.round().reason == "Queued"


def test_kueue_flavors_place_the_pods() -> None:
    """Node labels and tolerations of the assigned flavors enter the pods; a running attempt keeps its objects."""
    cluster = queued()
    cluster.flavors = {"spot": {"spec": {"nodeLabels": {"pool": "spot"}, "tolerations": [{"key": "spot"}]}}}
    admit(cluster, cpu="spot")
    for kind, name in (("Job", "demo-g0-1"), ("Deployment", "demo-rollout")):
        pod = cluster.children[kind, name]["spec"]["template"]["spec"]
        assert pod["nodeSelector"]["pool"] == "spot" and {"key": "spot"} in pod["tolerations"]


def test_kueue_changed_queue_applies_to_the_next_attempt() -> None:
    """A running attempt keeps its Workload; a restart queues in the new LocalQueue."""
    cluster = queued()
    admit(cluster)
    cluster.job["spec"]["queueName"] = "other"
    cluster.round()
    assert cluster.running() == ["demo-g0-1"] and workload(cluster)["spec"]["queueName"] == "team"
    cluster.finish_job("demo-g0-1", 1)
    cluster.now += 3600
    cluster.round(5)
    assert workload(cluster)["spec"]["queueName"] == "other" and cluster.running() == []


def test_kueue_engines_are_limited_to_the_admitted_number() -> None:
    """More engines than Kueue has admitted wait for the next attempt; fewer apply immediately."""
    cluster = queued(rollout={"replicas": 2})
    admit(cluster)
    for wanted, expected in ((5, 2), (1, 1)):
        cluster.job["spec"]["rollout"]["replicas"] = wanted
        cluster.round()
        assert cluster.children["Deployment", "demo-rollout"]["spec"]["replicas"] == expected


def test_kueue_finished_job_has_no_workload() -> None:
    """The quota is returned when the last stage has ended."""
    cluster = queued("s")
    admit(cluster)
    cluster.finish_stage("s0")
    cluster.round()
    assert kinds(cluster, "Workload") == []


def test_kueue_request_ignores_what_needs_no_quota() -> None:
    """A changed failure policy or learning rate asks for the same quota; another number of trainers does not."""
    base = queued()
    stage = base.spec().stage("g0")
    same = queued(failurePolicy={"maxRestarts": 9})
    other = queued(trainer={"replicas": 4, "gpusPerReplica": 0})
    assert request(base.spec(), stage) == request(same.spec(), stage) != request(other.spec(), stage)
