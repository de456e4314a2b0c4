"""Conditions and timers of the status; Ready and Stalled as kstatus, kubectl wait and Argo CD read them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rstar2_operator.decide.conditions import with_times
from rstar2_operator.decide.diagnostics import STUCK_SECONDS
from rstar2_operator.decide.status import invalid_status
from rstar2_operator.observed import seconds, timestamp
from rstar2_train.api.contracts import Outcome
from rstar2_train.api.status import JobStatus
from tests.support.simulated_cluster import SimulatedCluster, at_first_stage, manifest

Body = dict[str, Any]
DECIDE = Path(__file__).parents[3] / "operator" / "rstar2_operator" / "decide"


def kstatus(obj: Body) -> str:
    """Return the status that kstatus computes for a custom resource (sigs.k8s.io/cli-utils/pkg/kstatus/status).

    In this order: deletion, an old observedGeneration, Reconciling, Stalled, then Ready; without Ready it is Current.
    """
    status = obj.get("status", {})
    if "deletionTimestamp" in obj["metadata"]:
        return "Terminating"
    if status.get("observedGeneration", obj["metadata"]["generation"]) != obj["metadata"]["generation"]:
        return "InProgress"
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions", ())}
    if conditions.get("Reconciling") == "True":
        return "InProgress"
    if conditions.get("Stalled") == "True":
        return "Failed"
    return "Current" if conditions.get("Ready", "True") == "True" else "InProgress"


def condition(cluster: SimulatedCluster, kind: str) -> Body:
    """Return a condition of the job."""
    match: Body = next(each for each in cluster.job["status"]["conditions"] if each["type"] == kind)
    return match


def test_conditions_unreachable_judge_is_reported() -> None:
    """A judge with ready pods that the orchestrator cannot reach makes the job not ready, until it answers again."""
    cluster = running()
    progress = {"stage": "g0", "attempt": 1, "phase": "Rollout", "step": 2}
    deployment = dict(cluster.children["Deployment", "demo-judge"])
    cluster.children["Deployment", "demo-judge"] = {**deployment, "status": {"readyReplicas": 1}}
    cluster.patch_progress("progress.json", {**progress, "unreachable": {"judge": "connection refused"}})
    cluster.round()
    degraded = condition(cluster, "Degraded")
    assert degraded["reason"] == "JudgeUnreachable"
    assert "Service/demo-judge: JudgeUnreachable: no answer: connection refused" in degraded["message"]
    assert condition(cluster, "Ready")["status"] == "False"
    cluster.patch_progress("progress.json", progress)
    cluster.round()
    assert condition(cluster, "Degraded")["status"] == "False"


def preparing() -> SimulatedCluster:
    cluster = SimulatedCluster(manifest("g"))
    cluster.round()
    return cluster


def starting() -> SimulatedCluster:
    return at_first_stage("g")


def running() -> SimulatedCluster:
    cluster = at_first_stage("g")
    cluster.progress("g0", 1, 2)
    cluster.round()
    return cluster


def backing_off() -> SimulatedCluster:
    cluster = running()
    cluster.finish_job("demo-g0-1", 137)
    cluster.round()
    return cluster


def suspending() -> SimulatedCluster:
    cluster = running()
    cluster.job["spec"]["suspend"] = True
    cluster.round()
    return cluster


def suspended() -> SimulatedCluster:
    cluster = suspending()
    stopped = Outcome(stage="g0", attempt=1, outcome="suspended", reason="Suspended")
    cluster.finish_job("demo-g0-1", 75, outcome=stopped)
    cluster.round()
    return cluster


def finalizing() -> SimulatedCluster:
    cluster = running()
    cluster.finish_stage("g0")
    cluster.round()
    return cluster


def succeeded() -> SimulatedCluster:
    cluster = finalizing()
    cluster.finish_job("demo-report", 0)
    cluster.round()
    return cluster


def finalizing_failure() -> SimulatedCluster:
    cluster = running()
    bad = Outcome(stage="g0", attempt=1, outcome="failed", reason="BadData", message="row 3 has no answer")
    cluster.finish_job("demo-g0-1", 78, outcome=bad)
    cluster.round()
    return cluster


def failed() -> SimulatedCluster:
    cluster = finalizing_failure()
    cluster.finish_job("demo-report", 0)
    cluster.round()
    return cluster


def unschedulable(**spec: Any) -> SimulatedCluster:
    cluster = at_first_stage("g", **spec)
    waiting = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"}
    cluster.pods["demo-g0-1-1"]["status"] = {"phase": "Pending", "conditions": [waiting]}
    cluster.round()
    return cluster


def released() -> SimulatedCluster:
    cluster = unschedulable(pendingDeadlineSeconds=60)
    cluster.now += 60
    cluster.round()
    return cluster


def wrong_image() -> SimulatedCluster:
    cluster = running()
    waiting = {"waiting": {"reason": "InvalidImageName", "message": "invalid reference format"}}
    cluster.pods["demo-g0-1-1"]["status"] = {"phase": "Pending", "containerStatuses": [{"name": "x", "state": waiting}]}
    cluster.round()
    return cluster


def stuck() -> SimulatedCluster:
    cluster = running()
    cluster.pods["demo-g0-1-1"]["metadata"]["deletionTimestamp"] = timestamp(cluster.now)
    cluster.now += STUCK_SECONDS
    cluster.round()
    return cluster


def invalid() -> SimulatedCluster:
    cluster = running()
    cluster.job["status"] = invalid_status(
        cluster.observed(), "error: spec.stages: is required", now=cluster.now, running=True
    )
    return cluster


@pytest.mark.parametrize(
    ("situation", "status", "phase", "reason"),
    [
        (preparing, "InProgress", "Preparing", "Preparing"),
        (starting, "InProgress", "Running", "Starting"),
        (running, "Current", "Running", "Running"),
        (backing_off, "InProgress", "Pending", "BackOff"),
        (suspending, "InProgress", "Suspending", "Suspending"),
        (suspended, "Current", "Suspended", "Suspended"),
        (finalizing, "Current", "Finalizing", "Completed"),
        (succeeded, "Current", "Succeeded", "Completed"),
        (finalizing_failure, "InProgress", "Finalizing", "StageFailed"),
        (failed, "Failed", "Failed", "StageFailed"),
        (unschedulable, "InProgress", "Running", "Unschedulable"),
        (released, "InProgress", "Pending", "SchedulingTimeout"),
        (wrong_image, "Failed", "Running", "InvalidImageName"),
        (stuck, "Failed", "Running", "PodStuckTerminating"),
        (invalid, "Failed", "Running", "InvalidSpec"),
    ],
)
def test_ready_and_stalled_as_kstatus(
    situation: Callable[[], SimulatedCluster], status: str, phase: str, reason: str
) -> None:
    """kstatus waits while the operator can proceed, and fails only if a person must act."""
    cluster = situation()
    assert kstatus(cluster.job) == status, cluster.job["status"]["conditions"]
    assert (cluster.job["status"]["phase"], condition(cluster, "Ready")["reason"]) == (phase, reason)
    JobStatus.model_validate(cluster.job["status"])
    cluster.job["metadata"]["generation"] += 1
    assert kstatus(cluster.job) == "InProgress"
    cluster.job["metadata"]["deletionTimestamp"] = timestamp(cluster.now)
    assert kstatus(cluster.job) == "Terminating"


def test_stalled_quota_may_resolve_itself() -> None:
    """A full quota becomes free when another job ends, so no person must act."""
    cluster = running()
    cluster.reject("Job")
    cluster.finish_job("demo-g0-1", 137)
    cluster.now += 600
    cluster.round()
    assert condition(cluster, "Degraded")["reason"] == "ApplyRejected"
    assert condition(cluster, "Stalled")["status"] == "False" and kstatus(cluster.job) == "InProgress"


def test_conditions_time_changes_only_with_the_status() -> None:
    """lastTransitionTime stays while only reason or message change."""
    old = [{"type": "Ready", "status": "False", "reason": "A", "message": "", "lastTransitionTime": timestamp(5)}]
    ready = {"type": "Ready", "status": "False", "reason": "B", "message": "b"}
    assert with_times(old, [ready], now=9, generation=2) == [
        ready | {"lastTransitionTime": timestamp(5), "observedGeneration": 2}
    ]
    (changed,) = with_times(old, [ready | {"status": "True"}], now=9, generation=2)
    assert changed["lastTransitionTime"] == timestamp(9)


def test_decide_reads_no_transition_time() -> None:
    """Policies read timers from fields of the status; only the two writers of conditions know their times."""
    readers = {path.name for path in DECIDE.glob("*.py") if "lastTransitionTime" in path.read_text("utf-8")}
    assert readers == {"conditions.py", "workload_status.py"}


def test_timers_follow_suspension() -> None:
    """A job is active since its start or its last resume, or suspended since some time, never both."""
    cluster = running()
    started = cluster.job["status"]["activeSince"]
    assert started == cluster.job["status"]["startTime"]
    cluster = suspended()
    since = cluster.job["status"]["suspendedSince"]
    assert "activeSince" not in cluster.job["status"]
    cluster.now += 100
    cluster.round()
    assert cluster.job["status"]["suspendedSince"] == since
    cluster.job["spec"]["suspend"] = False
    cluster.round()
    assert cluster.job["status"]["activeSince"] == timestamp(cluster.now)
    assert "suspendedSince" not in cluster.job["status"]


@pytest.mark.parametrize("situation", [backing_off, released])
def test_timers_next_retry_is_set_until_the_retry(situation: Callable[[], SimulatedCluster]) -> None:
    """status.nextRetryTime has the time of the next attempt, and disappears with it."""
    cluster = situation()
    retry = cluster.job["status"]["nextRetryTime"]
    assert seconds(retry) > cluster.now and retry in cluster.job["status"]["message"]
    cluster.pods.clear()
    cluster.now = seconds(retry) - 1
    cluster.round()
    assert cluster.job["status"]["nextRetryTime"] == retry
    cluster.now = seconds(retry) + 1
    cluster.round()
    assert "nextRetryTime" not in cluster.job["status"] and cluster.running() == ["demo-g0-2"]


def test_timers_end_with_the_job() -> None:
    """A finished job has a completionTime and no timer of a policy that waits."""
    assert "finalizingSince" in finalizing().job["status"]
    status = succeeded().job["status"]
    assert "completionTime" in status and not {"finalizingSince", "nextRetryTime"} & set(status)


def test_invalid_spec_leaves_a_finished_job_alone() -> None:
    """Nothing reads the spec of a finished job: its conditions stay, and SpecIgnored is added."""
    cluster = succeeded()
    before = copy.deepcopy(cluster.job["status"])
    cluster.job["metadata"]["generation"] = 2
    status = invalid_status(cluster.observed(), "error: spec", now=cluster.now + 9, running=False)
    kept, own = status.pop("conditions")[:-1], before.pop("conditions")
    assert [{**each, "observedGeneration": 1} for each in kept] == own
    assert status == before | {"observedGeneration": 2}


def test_spec_changed_after_the_end_is_ignored() -> None:
    """observedGeneration advances; the end keeps its own, and SpecIgnored has the remedy, valid spec or not."""
    cluster = succeeded()
    assert not [each for each in cluster.job["status"]["conditions"] if each["type"] == "SpecIgnored"]
    cluster.job["metadata"]["generation"] = 2
    for _ in range(2):
        cluster.round()
        status = cluster.job["status"]
        by_type = {each["type"]: each for each in status["conditions"]}
        assert status["observedGeneration"] == 2 and by_type["Succeeded"]["observedGeneration"] == 1
        assert by_type["SpecIgnored"]["status"] == "True" and by_type["Succeeded"]["status"] == "True"
    invalid = invalid_status(cluster.observed(), "error: spec", now=cluster.now + 9, running=False)
    assert [each["type"] for each in invalid["conditions"]].count("SpecIgnored") == 1


def test_spec_changed_while_the_job_fails_is_ignored() -> None:
    """A raised maxRestarts revives no job that writes its report; SpecIgnored has the remedy, also after the end."""
    cluster = at_first_stage("g", failurePolicy={"maxRestarts": 0})
    cluster.finish_job("demo-g0-1", 1)
    cluster.round()
    assert cluster.job["status"]["phase"] == "Finalizing" and ignored(cluster) == ""
    cluster.job["spec"]["failurePolicy"] = {"maxRestarts": 5}
    for phase in ("Finalizing", "Failed"):
        cluster.round()
        assert cluster.job["status"]["phase"] == phase and "To run the change, " in ignored(cluster)
        cluster.finish_job("demo-report", 0)
    (failed,) = [each for each in cluster.job["status"]["conditions"] if each["type"] == "Failed"]
    assert (failed["observedGeneration"], cluster.job["status"]["observedGeneration"]) == (1, 2)


def ignored(cluster: SimulatedCluster) -> str:
    """Return the message of SpecIgnored; empty without the condition."""
    conditions = (each for each in cluster.job["status"]["conditions"] if each["type"] == "SpecIgnored")
    return "".join(each["message"] for each in conditions)


def test_invalid_spec_suspended_stops_the_active_deadline() -> None:
    """An invalid job can be suspended; the time of its suspension does not count as active."""
    cluster = running()
    cluster.job["spec"]["suspend"] = True
    status = invalid_status(cluster.observed(), "error: spec", now=cluster.now, running=False)
    assert (status["phase"], "activeSince" in status) == ("Suspended", False)
    assert status["suspendedSince"] == timestamp(cluster.now)
