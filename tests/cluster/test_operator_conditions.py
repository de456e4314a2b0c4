"""Conditions of faulty jobs: the message of the cluster and the fix; the orchestrator's rights.."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.cluster import jobs
from tests.kube_node.cluster import Cluster
from tests.support.waiting import until

Object = dict[str, Any]


def wait_for_condition(cluster: Cluster, namespace: str, kind: str, text: str, *, within: float = 600) -> Object:
    """Return the job's condition of a type as soon as its message contains `text`."""
    deadline = time.monotonic() + within
    while True:
        status = cluster.get("arl", "smoke", "-n", namespace).get("status") or {}
        for condition in status.get("conditions") or ():
            if condition["type"] == kind and text in condition["message"]:
                return condition
        assert time.monotonic() < deadline, (
            f"{kind} has no message with {text!r}: {status}{cluster.describe(namespace)}"
        )
        time.sleep(0.5)


def has_event(cluster: Cluster, namespace: str, text: str) -> bool:
    """Return whether the job has an Event with `text`: the operator creates it after it has written the status."""
    events = cluster.get("events", "-n", namespace, "--field-selector=involvedObject.kind=AgenticRLJob")
    return any(text in event["message"] for event in events["items"])


@pytest.mark.parametrize(
    ("spec", "kind", "text", "advice"),
    [
        pytest.param(
            {"trainer": {"image": "127.0.0.1:9/no/image:1", "gpusPerReplica": 0}},
            "StorageReady",
            "127.0.0.1:9/no/image:1",
            "Load the image onto the node",
            id="image",
        ),
        pytest.param(
            {"storage": {"size": "1Gi", "storageClassName": "no-such-class", "accessModes": ["ReadWriteMany"]}},
            "StorageReady",
            '"no-such-class" not found',
            "Check storageClassName, accessModes and size.",
            id="claim",
        ),
    ],
)
def test_condition_missing_image_or_class_names_the_fix(
    operated: Cluster, namespace: str, spec: Object, kind: str, text: str, advice: str
) -> None:
    """Before the first stage, an image or storage class that does not exist is reported with the fix."""
    operated.apply([jobs.example_job(operated, namespace, "smoke.yaml", **spec)])
    condition = wait_for_condition(operated, namespace, kind, text)
    assert condition["status"] == "False" and advice in condition["message"], condition
    until(lambda: has_event(operated, namespace, text), f"an Event with {text!r}")
    assert advice in wait_for_condition(operated, namespace, "Degraded", text)["message"]
    described = operated.kubectl("describe", "arl", "smoke", "-n", namespace)
    assert text in described.partition("Events:")[2], described


def test_condition_missing_gpu_and_sandbox_are_both_named(operated: Cluster, namespace: str) -> None:
    """A lack of GPUs and a missing RuntimeClass appear in the conditions of their roles and in Degraded."""
    job = jobs.example_job(operated, namespace, "smoke.yaml")
    spec = job["spec"]
    spec["model"]["assumeInstructionTuned"] = True
    spec["accelerator"] = {"vendor": "AMD", "resource": "amd.com/gpu"}
    spec["trainer"] = {"replicas": 1, "gpusPerReplica": 8}
    spec["executor"] = {"replicas": 1, "runtimeClassName": "no-such-sandbox"}
    spec["stages"] = [stage for stage in spec["stages"] if stage["name"] == "rl-1"]
    operated.apply([job])

    shortage = "Insufficient amd.com/gpu"
    condition = wait_for_condition(operated, namespace, "RolloutReady", shortage)
    assert "Free or add nodes" in condition["message"]
    no_sandbox = 'RuntimeClass "no-such-sandbox" not found'
    condition = wait_for_condition(operated, namespace, "JudgeReady", no_sandbox)
    assert "Check the ResourceQuota, RuntimeClass" in condition["message"]
    wait_for_condition(operated, namespace, "Training", shortage)
    wait_for_condition(operated, namespace, "Degraded", shortage)
    condition = wait_for_condition(operated, namespace, "Degraded", no_sandbox)
    assert condition["reason"] == "ReplicaFailure" and "Unschedulable: " in condition["message"], condition
    ready = wait_for_condition(operated, namespace, "Ready", no_sandbox)
    assert (ready["status"], ready["reason"]) == ("False", "ReplicaFailure"), ready
    assert wait_for_condition(operated, namespace, "Stalled", no_sandbox)["status"] == "True"

    assert_orchestrator_may_only_report_progress(operated, namespace)
    assert_stopped_kubelet_is_reported(operated, namespace)


def assert_stopped_kubelet_is_reported(cluster: Cluster, namespace: str) -> None:
    """Stop the kubelet by a signal: the job names its node as soon as the cluster does, and until the node returns."""
    wait_for_condition(cluster, namespace, "RedisReady", "1 of 1 redis pods ready")
    kubelet = str(cluster.services()["kubelet"]["pid"])
    cluster.run_on_node("kill", "-STOP", kubelet)
    try:
        condition = wait_for_condition(cluster, namespace, "RedisReady", "has not reported since", within=180)
        assert condition["reason"] == "NodeNotReady", condition
    finally:
        cluster.run_on_node("kill", "-CONT", kubelet)
    condition = wait_for_condition(cluster, namespace, "RedisReady", "1 of 1 redis pods ready")
    assert condition["status"] == "True", condition


def assert_orchestrator_may_only_report_progress(cluster: Cluster, namespace: str) -> None:
    """Check the rights of the trainer's account with the authoriser of the cluster."""
    account = f"system:serviceaccount:{namespace}:smoke-trainer"

    def may(verb: str, target: str) -> bool:
        command = ("kubectl", "auth", "can-i", verb, target, "-n", namespace, "--as", account)
        return cluster.run(*command, check=False).stdout.strip() == "yes"

    assert may("patch", "configmaps/smoke-progress")
    assert not may("patch", "configmaps/smoke-job")
    assert not may("patch", "configmaps")
    listed = cluster.kubectl("auth", "can-i", "--list", "-n", namespace, "--as", account).splitlines()[1:]
    rights = [
        line for line in listed if "[/" not in line and "selfsubject" not in line
    ]  # without the rights of every account
    assert [line.split() for line in rights] == [["configmaps", "[]", "[smoke-progress]", "[patch]"]], listed
    others = f"system:serviceaccount:{namespace}:smoke-pods"
    listed = cluster.kubectl("auth", "can-i", "--list", "-n", namespace, "--as", others).splitlines()[1:]
    assert [line for line in listed if "[/" not in line and "selfsubject" not in line] == []


def test_apply_invalid_manifest_lists_every_error(operated: Cluster, namespace: str) -> None:
    """The API server rejects the manifest with all messages, and no job exists."""
    job = jobs.example_job(operated, namespace, "smoke.yaml")
    job["spec"]["grpo"] |= {"keepPerPrompt": 32}
    job["spec"]["stages"][1]["name"] = "sft"
    done = operated.run("kubectl", "apply", "-f", "-", stdin=json.dumps(job), check=False)
    assert done.returncode != 0
    assert "keepPerPrompt (default 16) must be at most rolloutsPerPrompt" in done.stderr
    assert 'Duplicate value: {"name":"sft"}' in done.stderr
    assert operated.kubectl("get", "arl", "-n", namespace) == ""


def test_apply_local_data_file_is_rejected_with_the_fix(operated: Cluster, namespace: str) -> None:
    """The chart's policy rejects what only rules of Python knew: no file of this machine is in the cluster."""
    job = jobs.example_job(operated, namespace, "smoke.yaml")
    job["spec"]["validation"]["data"] = "report.jsonl"
    done = operated.run("kubectl", "apply", "-f", "-", stdin=json.dumps(job), check=False)
    assert done.returncode != 0
    assert "a source must be pvc://CLAIM/PATH" in done.stderr and "a relative path has no meaning" in done.stderr
    assert operated.kubectl("get", "arl", "-n", namespace) == ""
