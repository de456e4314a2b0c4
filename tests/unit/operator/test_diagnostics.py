"""Problems of pods in the words of kubelet and scheduler, also for reasons that this version does not know."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from rstar2_operator.decide.diagnostics import Diagnosis, diagnoses, next_overdue_at
from rstar2_operator.observed import timestamp
from tests.support.simulated_cluster import SimulatedCluster, at_first_stage

LABELS = {"rstar2.dev/job": "demo", "batch.kubernetes.io/job-name": ""}
OWN = {"rollout": "engine", "judge": "worker", "executor": "executor", "agent": "agent", "trainer": "trainer"}


def with_pod(cluster: SimulatedCluster, role: str, status: dict[str, Any], **meta: Any) -> dict[str, Any]:
    """Add a pod of a Deployment with a status; return it."""
    name = f"demo-{role}-x"
    metadata = {"name": name, "uid": name, "labels": {**LABELS, "rstar2.dev/role": role}, **meta}
    metadata["creationTimestamp"] = timestamp(cluster.now)
    cluster.pods[name] = {"kind": "Pod", "metadata": metadata, "spec": {"nodeName": "node-1"}, "status": status}
    return cluster.pods[name]


def waiting(role: str, reason: str, message: str, /, *, container: str = "", **last: Any) -> dict[str, Any]:
    """Return the status of a pod with a waiting container."""
    state = {"waiting": {"reason": reason, "message": message}}
    own = {"name": container or OWN[role], "state": state, "lastState": {"terminated": last} if last else {}}
    return {"phase": "Running", "containerStatuses": [own]}


def of_role(cluster: SimulatedCluster, role: str, *, lost_nodes: dict[str, float] | None = None) -> list[Diagnosis]:
    """Return the problems of a role's pods."""
    observed = replace(cluster.observed(), lost_nodes=lost_nodes)
    return [each for each in diagnoses(observed, now=cluster.now) if each.role == role]


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("SignatureValidationFailed", "ImagePullBackOff: SignatureValidationFailed: message"),
        ("RegistryUnavailable", "ImagePullBackOff: RegistryUnavailable: message"),
        ("ErrImagePull", "ImagePullBackOff: message"),
        ("PreStartHookError", "PodNotStarted: container engine waits: PreStartHookError: message"),
        ("ReasonOfALaterKubelet", "PodNotStarted: container engine waits: ReasonOfALaterKubelet: message"),
    ],
)
def test_waiting_container_has_the_words_of_the_kubelet(reason: str, text: str) -> None:
    """Each reason of a waiting container is a problem, known or not, except those of a usual start."""
    cluster = at_first_stage("g")
    with_pod(cluster, "rollout", waiting("rollout", reason, "message"))
    (problem,) = of_role(cluster, "rollout")
    assert text in str(problem)
    with_pod(cluster, "rollout", waiting("rollout", "ContainerCreating", ""))
    assert of_role(cluster, "rollout") == []


@pytest.mark.parametrize("container", ["worker", "istio-proxy"])
def test_crashing_container_is_named_in_the_command(container: str) -> None:
    """`kubectl logs` without -c reads the log of the first container, which works."""
    cluster = at_first_stage("g")
    with_pod(cluster, "judge", waiting("judge", "CrashLoopBackOff", "back-off", container=container, exitCode=1))
    assert f"kubectl logs demo-judge-x -c {container} --previous" in str(of_role(cluster, "judge")[0])


def test_container_that_would_run_as_root_is_no_missing_secret() -> None:
    """The kubelet has one reason for several faults of a container's configuration: the message decides."""
    cluster = at_first_stage("g")
    message = "container has runAsNonRoot and image will run as root"
    with_pod(cluster, "agent", waiting("agent", "CreateContainerConfigError", message))
    text = str(of_role(cluster, "agent")[0])
    assert "USER" in text and "Secret" not in text


def test_executor_out_of_memory_names_a_field_that_it_has() -> None:
    """The memory of an executor comes from the limits of a tool call; a runtimePatch of it is rejected."""
    cluster = at_first_stage("g")
    status = waiting("executor", "CrashLoopBackOff", "", reason="OOMKilled", exitCode=137)
    with_pod(cluster, "executor", status)
    assert "increase spec.judge.limits.memory" in str(of_role(cluster, "executor")[0])


@pytest.mark.parametrize(
    ("reason", "message", "text"),
    [
        ("FailedPrepareDynamicResources", "driver x not registered", "FailedPrepareDynamicResources: driver x"),
        ("NetworkNotReady", "cni config uninitialized", "NetworkNotReady: cni config uninitialized"),
        ("FailedMount", "timed out", "FailedMount: timed out"),
        ("FailedScheduling", "0/3 nodes", "the kubelet reports no problem"),
    ],
)
def test_pending_pod_has_the_words_of_its_events(reason: str, message: str, text: str) -> None:
    """A pod that does not start within a minute shows its newest Warning event, of any reason."""
    cluster = at_first_stage("g")
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": timestamp(cluster.now)}
    status = {"phase": "Pending", "conditions": [scheduled]}
    with_pod(
        cluster,
        "rollout",
        status | {"containerStatuses": waiting("rollout", "ContainerCreating", "")["containerStatuses"]},
    )
    cluster.now += 90
    about = {"kind": "Pod", "name": "demo-rollout-x", "uid": "demo-rollout-x"}
    event = {"involvedObject": about, "reason": reason, "message": message, "lastTimestamp": timestamp(cluster.now)}
    (problem,) = diagnoses(replace(cluster.observed(), warnings=(event,)), now=cluster.now)
    assert text in str(problem)


def test_missing_claim_template_is_named() -> None:
    """The scheduler knows only that a claim is missing; the event of its controller names the template."""
    cluster = at_first_stage("g")
    message = 'waiting for dynamic resource controller to create the resourceclaim "a"'
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    with_pod(cluster, "rollout", {"phase": "Pending", "conditions": [condition]})["spec"] = {}
    about = {"kind": "Pod", "name": "demo-rollout-x", "uid": "demo-rollout-x"}
    event = {"involvedObject": about, "reason": "FailedResourceClaimCreation", "lastTimestamp": timestamp(cluster.now),
             "message": 'resourceclaimtemplate.resource.k8s.io "gpus" not found'}  # fmt: skip
    (problem,) = diagnoses(replace(cluster.observed(), warnings=(event,)), now=cluster.now)
    for part in (message, '"gpus" not found', "spec.accelerator.claimTemplates"):
        assert part in str(problem)


def test_scheduler_that_fails_is_reported() -> None:
    """A scheduler that cannot bind a pod sets a condition with a reason of its own."""
    cluster = at_first_stage("g")
    condition = {"type": "PodScheduled", "status": "False", "reason": "SchedulerError", "message": "binding volumes"}
    with_pod(cluster, "rollout", {"phase": "Pending", "conditions": [condition]})["spec"] = {}
    assert of_role(cluster, "rollout") == []
    assert next_overdue_at(cluster.observed(), now=cluster.now) == cluster.now + 60
    cluster.now += 61
    (problem,) = of_role(cluster, "rollout")
    assert problem.reason == "PodNotScheduled" and "SchedulerError: binding volumes" in problem.message


def test_evicted_engine_is_reported_while_its_role_is_not_ready() -> None:
    """An engine that the kubelet evicts again and again never waits: its failed pods have the cause."""
    cluster = at_first_stage("g")
    ended = {"name": "engine", "state": {"terminated": {"exitCode": 137, "finishedAt": timestamp(cluster.now)}}}
    status = {
        "phase": "Failed",
        "reason": "Evicted",
        "message": "Usage of EmptyDir exceeds",
        "containerStatuses": [ended],
    }
    with_pod(cluster, "rollout", status)
    assert of_role(cluster, "rollout") == []
    cluster.children["Deployment", "demo-rollout"]["status"] = {"readyReplicas": 0}
    (problem,) = of_role(cluster, "rollout")
    assert (problem.reason, problem.message) == ("PodFailed", "Evicted: Usage of EmptyDir exceeds")
    cluster.now += 700
    assert of_role(cluster, "rollout") == []


NOT_READY = {"type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady", "message": "gate x is missing"}


@pytest.mark.parametrize(
    ("ready", "seconds", "message"), [(True, 60, "gate x is missing"), (False, 1800, "container engine runs")]
)
def test_engine_that_is_never_ready_is_reported(ready: bool, seconds: int, message: str) -> None:
    """A readiness gate that stays, and a load that hangs: the first is known soon, a large model takes long."""
    cluster = at_first_stage("g")
    state = {"running": {"startedAt": timestamp(cluster.now)}}
    condition = NOT_READY | {"lastTransitionTime": timestamp(cluster.now)}
    own = {"name": "engine", "ready": ready, "state": state}
    with_pod(cluster, "rollout", {"phase": "Running", "conditions": [condition], "containerStatuses": [own]})
    assert next_overdue_at(cluster.observed(), now=cluster.now) == cluster.now + seconds
    assert of_role(cluster, "rollout") == []
    cluster.now += seconds
    (problem,) = of_role(cluster, "rollout")
    assert problem.reason == "PodNotStarted" and message in problem.message


def unschedulable(cluster: SimulatedCluster) -> dict[str, Any]:
    """Add an engine that finds no node."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"}
    return with_pod(cluster, "rollout", {"phase": "Pending", "conditions": [condition]})


def test_finalizer_of_an_ended_pod_hides_no_problem() -> None:
    """A pod that has ended holds no accelerator: its finalizer is named, after the problems that block the job."""
    cluster = at_first_stage("g")
    unschedulable(cluster)["spec"] = {}
    for pod in cluster.pods.values():
        if "demo-g0" in pod["metadata"]["name"]:
            pod["status"] = {"phase": "Succeeded"}
            pod["metadata"] |= {"deletionTimestamp": timestamp(cluster.now), "finalizers": ["example.com/logs"]}
    cluster.now += 3600
    first, second, _ = diagnoses(cluster.observed(), now=cluster.now)
    assert first.reason == "Unschedulable"
    assert "example.com/logs" in str(second) and '{"metadata":{"finalizers":null}}' in str(second)
    assert "taint" not in str(second) and not second.needs_action


@pytest.mark.parametrize(
    ("lost", "message"),
    [(None, "The node is unreachable"), ({}, "hangs: restart it"), ({"node-1": 0.0}, "out-of-service")],
)
def test_pod_that_does_not_terminate_blames_its_node(lost: dict[str, float] | None, message: str) -> None:
    """While a deleted pod runs, missing resources are expected. A node that reports is not unreachable."""
    cluster = at_first_stage("g")
    unschedulable(cluster)["spec"] = {}
    pod = copy.deepcopy(cluster.pods["demo-g0-1-0"])
    pod["metadata"] |= {"name": "demo-g0-1-old", "deletionTimestamp": timestamp(cluster.now)}
    cluster.pods["demo-g0-1-old"] = pod
    cluster.now += 60
    assert of_role(cluster, "rollout", lost_nodes=lost) == []
    assert message in str(of_role(cluster, "trainer", lost_nodes=lost)[-1])


def test_immutable_config_map_is_reported() -> None:
    """The orchestrator could not report its progress, and no client can make the ConfigMap writable again."""
    cluster = at_first_stage("g")
    config = cluster.children["ConfigMap", "demo-progress"]
    config["immutable"] = True
    (problem,) = diagnoses(cluster.observed(), now=cluster.now)
    assert "run kubectl delete configmap demo-progress" in str(problem)
    cluster.drop("ConfigMap", "demo-progress")
    cluster.round()
    assert "immutable" not in cluster.children["ConfigMap", "demo-progress"]
