"""Timestamps of objects that other clients write: the API allows null, which is no time and no error."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from rstar2_operator.cached_object import strip_event, strip_fields
from rstar2_operator.decide.diagnostics import diagnoses, next_overdue_at
from rstar2_operator.observed import timestamp
from tests.support.simulated_cluster import SimulatedCluster, at_first_stage, manifest

RULE = {"roles": ["rollout"], "onReasons": ["OOMKilled"], "action": "RestartStage"}
WITHOUT_TIME: dict[str, dict[str, Any]] = {
    "running": {"phase": "Running", "containerStatuses": [{"name": "NAME", "state": {"running": {}}}]},
    "started": {"phase": "Running", "containerStatuses": [{"name": "NAME", "state": {"running": {"startedAt": None}}}]},
    "exited": {
        "phase": "Running",
        "containerStatuses": [{"name": "NAME", "state": {"terminated": {"exitCode": 1, "finishedAt": None}}}],
    },
    "condition": {
        "phase": "Running",
        "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": None},
            {"type": "Ready", "status": "False", "lastTransitionTime": None},
            {"type": "example.com/gate", "status": "True", "lastTransitionTime": None},
        ],
    },
    "nothing": {},
}


def with_engine(cluster: SimulatedCluster, status: dict[str, Any], *, name: str = "demo-rollout-x") -> dict[str, Any]:
    """Add an engine's pod with a status, and return it."""
    labels = {"rstar2.dev/job": "demo", "rstar2.dev/role": "rollout", "batch.kubernetes.io/job-name": ""}
    pod = copy.deepcopy(next(pod for name, pod in cluster.pods.items() if name.startswith("demo-g0")))
    pod["metadata"] |= {"name": name, "uid": name, "labels": labels}
    cluster.pods[name] = pod | {"status": status}
    return cluster.pods[name]


@pytest.mark.parametrize("case", WITHOUT_TIME)
@pytest.mark.parametrize("role", ["trainer", "rollout"])
def test_pod_without_times_fails_no_round(case: str, role: str) -> None:
    """A time may be missing in any pod: every policy and diagnosis continues."""
    cluster = at_first_stage(
        "g", stuck={"action": "Restart"}, nodeLoss={"afterSeconds": 60}, failurePolicy={"rules": [RULE]}
    )
    container = "engine" if role == "rollout" else "trainer"
    status = copy.deepcopy(WITHOUT_TIME[case])
    for each in status.get("containerStatuses", ()):
        each["name"] = container
    if role == "rollout":
        with_engine(cluster, status)
    else:
        for pod in cluster.pods.values():
            pod["status"] = status
    cluster.pods = {name: dict(strip_fields("Pod", pod)) for name, pod in cluster.pods.items()}
    cluster.now += 7300
    cluster.run_operator()
    observed = cluster.observed()
    assert diagnoses(observed, now=cluster.now) is not None
    next_overdue_at(observed, now=cluster.now)


@pytest.mark.parametrize("has_null", [False, True])
@pytest.mark.parametrize("state", ["preparing", "running", "lost pod", "finished"])
def test_objects_without_creation_time_fail_no_round(state: str, has_null: bool) -> None:
    """Every object may lack its creation time, also an Event that has no other one."""
    cluster = SimulatedCluster(manifest("g", pendingDeadlineSeconds=600, stuck={"action": "Restart"}))
    cluster.round()
    if state != "preparing":
        cluster.finish_preparation()
        cluster.round()
    if state == "lost pod":
        pod = next(pod for name, pod in cluster.pods.items() if name.startswith("demo-g0"))
        pod["metadata"] |= {"deletionTimestamp": timestamp(cluster.now), "deletionGracePeriodSeconds": 0}
    if state in ("lost pod", "finished"):
        cluster.now += 60
        cluster.finish_job("demo-g0-1", 1)
    objects = [cluster.job, *cluster.children.values(), *cluster.pods.values()]
    for body in objects:
        body["metadata"].pop("creationTimestamp", None)
        if has_null:
            body["metadata"]["creationTimestamp"] = None
    about = {"kind": "Pod", "name": next(iter(cluster.pods), "demo-prepare-x")}
    warning = strip_event({"metadata": {}, "involvedObject": about, "reason": "FailedMount", "message": "no volume"})
    cluster.now += 7300
    cluster.run_operator()
    observed = replace(cluster.observed(), warnings=(warning,))
    assert diagnoses(observed, now=cluster.now) is not None
    next_overdue_at(observed, now=cluster.now)
    if state == "finished":
        cluster.round()
        assert cluster.running() == ["demo-g0-2"]


def test_finished_job_without_time_is_finished() -> None:
    """A Job whose final condition has no time has ended: the next attempt starts."""
    cluster = at_first_stage("g")
    cluster.finish_job("demo-g0-1", 1)
    cluster.children["Job", "demo-g0-1"]["status"]["conditions"][0]["lastTransitionTime"] = None
    cluster.round()
    assert cluster.running() == ["demo-g0-2"]
