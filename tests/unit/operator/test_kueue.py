"""spec.queueName on a simulated cluster: admission, eviction and hand-over of quota. A test plays Kueue."""

from __future__ import annotations

from typing import Any

import pytest

from rstar2_operator import names
from rstar2_operator.decide.kueue import request
from rstar2_operator.observed import timestamp
from tests.support.simulated_cluster import SimulatedCluster, at_first_stage, kinds, manifest

ADMITTED = [
    {"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    for kind in ("QuotaReserved", "Admitted")
]
CONSUME = "autoscaling.x-k8s.io/consume-provisioning-request"


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
    own = [each for each in body.get("status", {}).get("conditions", ()) if each["type"] == "PodsReady"]
    body["status"] = {"conditions": [*ADMITTED, *own], "admission": {"podSetAssignments": assigned}}
    cluster.round()


def evict(cluster: SimulatedCluster, **status: Any) -> None:
    """Act as Kueue: evict the Workload, which keeps its admission."""
    evicted = {"type": "Evicted", "status": "True", "reason": "Preempted", "message": "Preempted by job big."}
    body = workload(cluster)
    own = [each for each in body["status"]["conditions"] if each["type"] == "PodsReady"]
    body["status"] |= {"conditions": [*ADMITTED, evicted, *own], **status}


def conditions(cluster: SimulatedCluster) -> dict[str, tuple[str, str]]:
    """Return type -> status and reason of the Workload's conditions."""
    rows = workload(cluster).get("status", {}).get("conditions", ())
    return {each["type"]: (each["status"], each["reason"]) for each in rows}


def pod_sets(cluster: SimulatedCluster) -> dict[str, int]:
    """Return role -> pods that the Workload asks for."""
    return {each["name"]: each["count"] for each in workload(cluster)["spec"]["podSets"]}


def test_kueue_job_waits_without_a_pod() -> None:
    """Before admission only the Workload exists, and the status has Kueue's own words."""
    cluster = queued()
    assert cluster.running() == [] and kinds(cluster, "Deployment") == []
    message = "couldn't assign flavors to pod set trainer: insufficient unused quota for amd.com/gpu"
    workload(cluster)["status"] = {"conditions": [{"type": "QuotaReserved", "status": "False", "message": message}]}
    decision = cluster.round()
    assert (decision.phase, decision.reason) == ("Pending", "Queued") and message in decision.message
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
    """After an eviction the orchestrator writes a checkpoint; the Workload, with its age, queues; the job resumes."""
    cluster = queued()
    admit(cluster)
    first = workload(cluster)["metadata"]["uid"]
    evict(cluster)
    decision = cluster.reconcile()
    assert (decision.phase, decision.reason) == (
        "Suspending",
        "Evicted",
    ) and "Preempted by job big." in decision.message
    assert workload(cluster)["metadata"]["uid"] == first  # its pods still hold the quota
    cluster.finish_job("demo-g0-1", 75)
    assert cluster.round().reason == "Queued"
    assert workload(cluster)["metadata"]["uid"] == first and cluster.running() == []
    assert "admission" not in workload(cluster)["status"]
    assert conditions(cluster)["QuotaReserved"] == ("False", "Pending")
    assert conditions(cluster)["Requeued"] == ("True", "Preempted")
    assert conditions(cluster)["PodsReady"] == ("False", "WaitForStart")
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
    decision = cluster.round()
    assert decision.wake_at == cluster.now + 60 and workload(cluster)["metadata"]["uid"] == first
    assert workload(cluster)["status"]["requeueState"]["count"] == 1
    cluster.now += 60
    cluster.round()
    assert workload(cluster)["metadata"]["uid"] == first


def run_engines(cluster: SimulatedCluster) -> None:
    """Let the pods of the Deployments and of Redis run."""
    for role, count in pod_sets(cluster).items():
        for index in range(count if role != "trainer" else 0):
            own = {**names.labels("demo", role), names.BATCH_JOB_LABEL: ""}
            meta = {"name": f"demo-{role}-{index}", "labels": own, "creationTimestamp": timestamp(cluster.now)}
            scheduled = {"type": "PodScheduled", "status": "True"}
            status = {"phase": "Running", "conditions": [scheduled]}
            cluster.pods[meta["name"]] = {"metadata": meta, "spec": {"nodeName": "node-1"}, "status": status}


def test_kueue_workload_reports_running_pods() -> None:
    """PodsReady is True when every admitted pod runs; without it Kueue evicts the job after its timeout."""
    cluster = queued()
    admit(cluster)
    assert conditions(cluster)["PodsReady"] == ("False", "WaitForStart")
    run_engines(cluster)
    cluster.round()
    assert conditions(cluster)["PodsReady"] == ("True", "Started")
    cluster.finish_job("demo-g0-1", 1)
    cluster.reconcile()
    assert conditions(cluster)["PodsReady"] == ("False", "WaitForRecovery")
    cluster.now += 3600
    cluster.round(5)
    assert "demo-g0-2" in cluster.running()
    assert conditions(cluster)["PodsReady"] == ("True", "Recovered")


def test_kueue_scaled_down_engines_are_ready() -> None:
    """Fewer engines than admitted are no failure; Kueue would evict the job after its recoveryTimeout."""
    cluster = queued(rollout={"replicas": 2})
    admit(cluster)
    run_engines(cluster)
    cluster.round()
    cluster.job["spec"]["rollout"]["replicas"] = 1
    cluster.round(1)
    del cluster.pods["demo-rollout-1"]
    cluster.round()
    assert conditions(cluster)["PodsReady"] == ("True", "Started")


@pytest.mark.parametrize("stages", ["s", "g"])
@pytest.mark.parametrize("cause", ["Stuck", "NodeLost", "secret", "crash"])
def test_kueue_restart_keeps_the_workload(stages: str, cause: str) -> None:
    """A restart for any cause keeps quota and place: the Workload stays, and the next attempt starts with it."""
    cluster = queued(stages)
    admit(cluster)
    first, stage = workload(cluster)["metadata"]["uid"], f"{stages}0"
    if cause == "crash":
        cluster.finish_job(f"demo-{stage}-1", 1)
    elif cause == "secret":
        del cluster.children["Secret", "demo-secrets"]
    else:  # as the status has it after the policy has ended the attempt
        ended = {"attempt": 1, "action": "RestartStage", "reason": cause, "message": cause, "disruptions": 0}
        next(each for each in cluster.job["status"]["stages"] if each["name"] == stage)["ended"] = ended
    for _ in range(8):
        cluster.now += 400
        cluster.reconcile()
        assert workload(cluster)["metadata"]["uid"] == first
        cluster.settle()
        cluster.terminate()
    assert f"demo-{stage}-2" in cluster.running()


def test_kueue_admission_places_and_labels_the_pods() -> None:
    """Labels and annotations of an admission check, and the gate of an assigned topology, reach the pods."""
    cluster = queued("s")
    topology = {"levels": ["kubernetes.io/hostname"]}
    admission = {"name": "trainer", "count": 2, "flavors": {}, "topologyAssignment": topology}
    update = {"name": "trainer", "labels": {"pool": "dws"}, "annotations": {CONSUME: "demo"}}
    checks = [{"name": "dws", "state": "Ready", "podSetUpdates": [update]}]
    status = {"conditions": ADMITTED, "admission": {"podSetAssignments": [admission]}, "admissionChecks": checks}
    workload(cluster)["status"] = status
    cluster.round()
    template = cluster.children["Job", "demo-s0-1"]["spec"]["template"]
    assert template["metadata"]["labels"]["pool"] == "dws"
    assert template["metadata"]["labels"]["kueue.x-k8s.io/podset"] == "trainer"
    annotations = template["metadata"]["annotations"]
    assert annotations | {CONSUME: "demo", "kueue.x-k8s.io/workload": "demo-s0"} == annotations
    assert template["spec"]["schedulingGates"] == [{"name": "kueue.x-k8s.io/topology"}]


def test_kueue_admission_check_explains_itself() -> None:
    """A check that is not ready, such as a request for nodes, is shown with the words of its controller."""
    cluster = queued("s")
    checks = [{"name": "nodes", "state": "Rejected", "message": "out of stock in zone b."}]
    reserved = [{"type": "QuotaReserved", "status": "True"}]
    workload(cluster)["status"] = {"conditions": reserved, "admissionChecks": checks}
    assert "Admission checks: nodes is Rejected (out of stock in zone b)." in cluster.reconcile().message


def test_kueue_label_names_the_priority_in_the_queue() -> None:
    """The label of a job names a WorkloadPriorityClass, which no pod has; without it the class of its pods counts."""
    for label, group, kind in (
        ("batch", "kueue.x-k8s.io", "WorkloadPriorityClass"),
        ("", "scheduling.k8s.io", "PriorityClass"),
    ):
        cluster = SimulatedCluster(manifest("g", queueName="team", priorityClassName="urgent"))
        cluster.job["metadata"]["labels"] = {"kueue.x-k8s.io/priority-class": label} if label else {}
        for name, owner, value in (("batch", "WorkloadPriorityClass", 7), ("urgent", "PriorityClass", 1000)):
            cluster.children[owner, name] = {"kind": owner, "metadata": {"name": name}, "value": value}
        cluster.finish_preparation()
        cluster.round()
        spec = workload(cluster)["spec"]
        assert spec["priority"] == (7 if label else 1000)
        assert spec["priorityClassRef"] == {"group": group, "kind": kind, "name": label or "urgent"}


def test_kueue_changed_priority_queues_again() -> None:
    """A changed label of a job that waits reaches the queue; that of a running job counts from the next admission."""
    cluster = queued()
    first = workload(cluster)["metadata"]["uid"]
    cluster.children["WorkloadPriorityClass", "batch"] = {"metadata": {"name": "batch"}, "value": 7}
    cluster.job["metadata"]["labels"] = {"kueue.x-k8s.io/priority-class": "batch"}
    cluster.round(4)
    assert workload(cluster)["metadata"]["uid"] != first and workload(cluster)["spec"]["priority"] == 7
    admit(cluster)
    cluster.job["metadata"]["labels"] = {}
    assert cluster.round().reason == "Running" and workload(cluster)["spec"]["priority"] == 7


def test_kueue_that_is_uninstalled_is_named() -> None:
    """Without Kueue nothing removes the finalizer of the old Workload, so no new one can be created."""
    cluster = queued()
    workload(cluster)["metadata"] |= {"deletionTimestamp": timestamp(cluster.now), "finalizers": ["kueue"]}
    decision = cluster.round()
    assert decision.reason == "Queued" and "remove the finalizers of the Workload" in decision.message


def test_kueue_deactivated_workload_is_kept() -> None:
    """A Workload that a person or Kueue deactivated stays, and the message names the way back."""
    cluster = queued()
    admit(cluster)
    workload(cluster)["spec"]["active"] = False
    assert cluster.reconcile().reason == "Evicted"
    cluster.finish_job("demo-g0-1", 75)
    decision = cluster.round()
    assert "spec.active to true" in decision.message and kinds(cluster, "Workload") == ["demo-g0"]


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


def test_kueue_finished_job_finishes_its_workload() -> None:
    """The quota is returned when the last stage has ended, by the condition that Kueue's tools show."""
    cluster = queued("s")
    admit(cluster)
    cluster.finish_stage("s0")
    cluster.round()
    assert conditions(cluster)["Finished"] == ("True", "Succeeded")
    assert kinds(cluster, "Workload") == ["demo-s0"]


def test_kueue_request_ignores_what_needs_no_quota() -> None:
    """A changed failure policy or learning rate asks for the same quota; another number of trainers does not."""
    base = queued()
    stage = base.spec().stage("g0")
    same = queued(failurePolicy={"maxRestarts": 9})
    other = queued(trainer={"replicas": 4, "gpusPerReplica": 0})
    assert request(base.spec(), stage) == request(same.spec(), stage) != request(other.spec(), stage)


def downloading() -> SimulatedCluster:
    """Return a job with engines that downloads a changed source before its next attempt."""
    cluster = queued("g")
    admit(cluster)
    cluster.round()
    cluster.job["spec"]["stages"][0]["grpo"]["data"] = "hf://datasets/org/new-set/train.jsonl"
    cluster.job["metadata"]["generation"] += 1
    cluster.finish_job("demo-g0-1", 1)
    cluster.pods.clear()
    assert cluster.round().phase == "Preparing"
    return cluster


def held(cluster: SimulatedCluster) -> set[str]:
    """Return the kinds of the objects that hold accelerators or quota."""
    return {kind for kind, _ in cluster.children if kind in ("Deployment", "Workload")}


def test_kueue_download_of_added_source_keeps_quota_and_engines() -> None:
    """A job whose data changed does not return to the queue, and its engines stay."""
    cluster = downloading()
    assert held(cluster) == {"Deployment", "Workload"}
    cluster.finish_job("demo-prepare", 0)
    assert cluster.round().phase in ("Pending", "Running") and held(cluster) == {"Deployment", "Workload"}


@pytest.mark.parametrize("cause", ["hangs", "rejected", "finalizer"])
def test_kueue_download_after_the_deadline_holds_nothing(cause: str) -> None:
    """A download that takes longer than the deadline, or cannot start, returns quota and engines, and continues."""
    cluster = downloading()
    if cause == "rejected":
        del cluster.children["Job", "demo-prepare"]
        cluster.reject("Job")
    elif cause == "finalizer":
        cluster.children["Job", "demo-prepare"]["metadata"]["annotations"][names.SOURCES] = "old"
        cluster.finish_job("demo-prepare", 0)
        cluster.children["Job", "demo-prepare"]["metadata"]["finalizers"] = ["example.com/keep"]
    cluster.round()
    cluster.now += 3600
    cluster.round()
    assert cluster.job["status"]["phase"] == "Preparing" and held(cluster) == set()


@pytest.mark.parametrize("cause", ["evicted", "deactivated"])
def test_kueue_eviction_during_a_download_is_obeyed(cause: str) -> None:
    """The engines stop, the quota is returned, and the Workload keeps its place; its pods wait for Kueue."""
    cluster = downloading()
    first = workload(cluster)["metadata"]["uid"]
    evict(cluster)
    workload(cluster)["spec"]["active"] = cause == "evicted"
    cluster.round()
    assert kinds(cluster, "Deployment") == [] and workload(cluster)["metadata"]["uid"] == first
    assert "admission" not in workload(cluster)["status"]
    cluster.finish_job("demo-prepare", 0)
    cluster.now += 60
    assert cluster.round().reason == "Queued" and cluster.running() == []
    assert workload(cluster)["metadata"]["uid"] == first


def test_kueue_finished_workload_is_replaced() -> None:
    """A finished Workload has no quota: a job that continues, after a raised deadline, queues with another one."""
    cluster = queued("s", activeDeadlineSeconds=1000)
    admit(cluster)
    first = workload(cluster)["metadata"]["uid"]
    cluster.now += 1000
    cluster.round()
    cluster.terminate()
    cluster.round(1)
    assert conditions(cluster)["Finished"] == ("True", "Failed")
    cluster.job["spec"]["activeDeadlineSeconds"] = 10_000
    assert cluster.round().reason == "Queued" and cluster.running() == ["demo-report"]
    assert workload(cluster)["metadata"]["uid"] != first
    admit(cluster)
    assert "demo-s0-2" in cluster.running()
