"""What is wrong with a job: told within seconds, in the cluster's own words, with what to do. And a driver's rights."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster import training
from tests.kube_node.cluster import Cluster

Object = dict[str, Any]
SECONDS = 10
"""From the first report of kubelet, scheduler or controller to the job's condition."""


def told(cluster: Cluster, namespace: str, kind: str, words: str, *, within: float = 300) -> Object:
    """The job's condition of a kind, once its message holds `words`."""
    deadline = time.monotonic() + within
    while True:
        status = cluster.get("arl", "smoke", "-n", namespace).get("status") or {}
        for one in status.get("conditions") or ():
            if one["type"] == kind and words in one["message"]:
                return one
        assert time.monotonic() < deadline, f"{kind} never said {words!r}: {status}{cluster.story(namespace)}"
        time.sleep(0.5)


def when(timestamp: str) -> float:
    return datetime.datetime.fromisoformat(timestamp).timestamp()


def event_time(cluster: Cluster, namespace: str, reason: str, kind: str) -> float:
    """When an event was first seen."""
    events = cluster.get("events", "-n", namespace, f"--field-selector=reason={reason},involvedObject.kind={kind}")
    return min(when(one.get("firstTimestamp") or one["eventTime"]) for one in events["items"])


def condition_time(cluster: Cluster, namespace: str, what: str, selector: str, kind: str) -> float:
    """When a condition of an object first stood."""
    found = cluster.get(what, "-n", namespace, "-l", selector)["items"]
    conditions = [one for thing in found for one in thing["status"].get("conditions") or () if one["type"] == kind]
    return min(when(one["lastTransitionTime"]) for one in conditions)


@pytest.mark.parametrize(
    ("spec", "kind", "words", "advice", "reported"),
    [
        pytest.param(
            {"trainer": {"image": "127.0.0.1:9/nobody/nothing:1", "gpusPerReplica": 0}},
            "StorageReady",
            "127.0.0.1:9/nobody/nothing:1",
            "bring the image onto the node",
            lambda cluster, namespace: event_time(cluster, namespace, "Failed", "Pod"),
            id="image",
        ),
        pytest.param(
            {"storage": {"size": "1Gi", "storageClassName": "no-such-class", "accessModes": ["ReadWriteMany"]}},
            "StorageReady",
            '"no-such-class" not found',
            "see to spec.storage.storageClassName",
            lambda cluster, namespace: event_time(cluster, namespace, "ProvisioningFailed", "PersistentVolumeClaim"),
            id="claim",
        ),
    ],
)
def test_before_the_first_stage(
    operated: Cluster,
    namespace: str,
    spec: Object,
    kind: str,
    words: str,
    advice: str,
    reported: Callable[[Cluster, str], float],
) -> None:
    operated.apply([training.job(operated, namespace, "smoke.yaml", **spec)])
    found = told(operated, namespace, kind, words)
    assert found["status"] == "False" and advice in found["message"], found
    assert when(found["lastTransitionTime"]) - reported(operated, namespace) <= SECONDS
    assert advice in told(operated, namespace, "Degraded", words)["message"]
    described = operated.kubectl("describe", "arl", "smoke", "-n", namespace)
    assert words in described.partition("Events:")[2], described


def test_no_such_accelerator_and_no_such_sandbox(operated: Cluster, namespace: str) -> None:
    job = training.job(operated, namespace, "smoke.yaml")
    spec = job["spec"]
    spec["model"]["assumeInstructionTuned"] = True
    spec["accelerator"] = {"vendor": "AMD", "resource": "amd.com/gpu"}
    spec["trainer"] = {"replicas": 1, "gpusPerReplica": 8}
    spec["executor"] = {"replicas": 1, "runtimeClassName": "no-such-sandbox"}
    spec["stages"] = [stage for stage in spec["stages"] if stage["name"] == "rl-1"]
    operated.apply([job])

    lacking = "Insufficient amd.com/gpu"
    found = told(operated, namespace, "RolloutReady", lacking)
    assert "free or add nodes" in found["message"]
    selector = "rstar2.dev/role in (trainer,rollout)"
    scheduled = condition_time(operated, namespace, "pods", selector, "PodScheduled")
    assert when(found["lastTransitionTime"]) - scheduled <= SECONDS
    found = told(operated, namespace, "JudgeReady", 'RuntimeClass "no-such-sandbox" not found')
    assert "see to the quota, the RuntimeClass" in found["message"]
    refused = condition_time(operated, namespace, "deployments", "rstar2.dev/role=executor", "ReplicaFailure")
    assert when(found["lastTransitionTime"]) - refused <= SECONDS
    told(operated, namespace, "Training", lacking)
    told(operated, namespace, "Degraded", lacking)
    found = told(operated, namespace, "Degraded", 'RuntimeClass "no-such-sandbox" not found')
    assert when(found["lastTransitionTime"]) - max(scheduled, refused) <= SECONDS, found
    assert found["reason"] == "ReplicaFailure,Unschedulable", found

    assert_the_driver_may_tell_its_progress_and_nothing_else(operated, namespace)


def assert_the_driver_may_tell_its_progress_and_nothing_else(cluster: Cluster, namespace: str) -> None:
    """Asked of the cluster's own authoriser."""
    account = f"system:serviceaccount:{namespace}:smoke-trainer"

    def may(verb: str, what: str) -> bool:
        command = ("kubectl", "auth", "can-i", verb, what, "-n", namespace, "--as", account)
        return cluster.run(*command, check=False).stdout.strip() == "yes"

    assert may("patch", "configmaps/smoke-progress")
    assert not may("patch", "configmaps/smoke-job")
    assert not may("patch", "configmaps")
    listed = cluster.kubectl("auth", "can-i", "--list", "-n", namespace, "--as", account).splitlines()[1:]
    rights = [line for line in listed if "[/" not in line and "selfsubject" not in line]  # what everyone may
    assert [line.split() for line in rights] == [["configmaps", "[]", "[smoke-progress]", "[patch]"]], listed
    others = f"system:serviceaccount:{namespace}:smoke-pods"
    listed = cluster.kubectl("auth", "can-i", "--list", "-n", namespace, "--as", others).splitlines()[1:]
    assert [line for line in listed if "[/" not in line and "selfsubject" not in line] == []


def test_a_wrong_manifest_is_refused_with_every_reason(operated: Cluster, namespace: str) -> None:
    job = training.job(operated, namespace, "smoke.yaml")
    job["spec"]["grpo"] |= {"keepPerPrompt": 32}
    job["spec"]["stages"][1]["name"] = "sft"
    done = operated.run("kubectl", "apply", "-f", "-", stdin=training.as_json(job), check=False)
    assert done.returncode != 0
    assert "keepPerPrompt (default 16) is at most rolloutsPerPrompt" in done.stderr
    assert "names of stages are unique" in done.stderr
    assert operated.kubectl("get", "arl", "-n", namespace) == ""


def test_what_only_the_operator_sees_becomes_a_condition(operated: Cluster, namespace: str) -> None:
    job = training.job(operated, namespace, "smoke.yaml")
    job["spec"]["validation"]["data"] = "report.jsonl"
    operated.apply([job])
    began = time.time()
    deadline = began + 60
    while training.phase(operated, namespace, "smoke") != "Invalid":
        assert time.time() < deadline
        time.sleep(0.2)
    status = operated.get("arl", "smoke", "-n", namespace)["status"]
    assert "spec.validation.data is 'report.jsonl'" in status["message"]
    assert "put the file on a claim" in status["message"]
    told_at = min(when(one["lastTransitionTime"]) for one in status["conditions"])
    created = operated.get("arl", "smoke", "-n", namespace)["metadata"]["creationTimestamp"]
    assert told_at - when(created) <= SECONDS
