"""Attempts without progress: what is stuck, what only takes long, and the restart."""

from __future__ import annotations

from typing import Any

import pytest

from rstar2_operator.node_health import NodeFault
from rstar2_operator.observed import timestamp
from rstar2_train.api.contracts import CheckpointRef, Outcome, outcome_key
from tests.support.simulated_cluster import SimulatedCluster, at_first_stage

STEP = 1000.0
RESTART = {"factor": 5, "action": "Restart"}


def training(steps: int = 3, **stuck: Any) -> SimulatedCluster:
    """Return a job after steps of STEP seconds; the first one took ten times as long."""
    cluster = at_first_stage("g", stuck={"factor": 5, **stuck})
    cluster.progress("g0", 1, 0, phase="Starting")
    cluster.round()
    for step in range(1, steps + 1):
        cluster.now += 10 * STEP if step == 1 else STEP
        cluster.progress("g0", 1, step)
        cluster.round()
    return cluster


def problem(cluster: SimulatedCluster) -> str:
    """Return reason and message of Degraded; empty if it is False."""
    (degraded,) = (each for each in cluster.job["status"]["conditions"] if each["type"] == "Degraded")
    return f"{degraded['reason']} {degraded['message']}" if degraded["status"] == "True" else ""


def test_stuck_is_reported_and_recovers() -> None:
    """Without a report for the factor of the usual step time: a condition, no restart; a report ends it."""
    cluster = training()
    row = cluster.job["status"]["stages"][0]
    assert row["stepSeconds"] == STEP  # the first step is not a sample
    decision = cluster.round()
    assert decision.wake_at == pytest.approx(cluster.now + 5 * STEP)
    cluster.now += 5 * STEP
    decision = cluster.round()
    assert decision.phase == "Running" and cluster.running() == ["demo-g0-1"]
    assert problem(cluster).startswith("Stuck Job/demo-g0-1: Stuck: attempt 1 of stage g0 has made no progress since")
    assert "a step usually takes 1000 s, and the limit is 5000 s" in problem(cluster)
    writes = cluster.writes
    cluster.now += STEP
    cluster.round()
    assert cluster.writes == writes
    cluster.progress("g0", 1, 3)  # such as a finished rollout
    cluster.round()
    assert problem(cluster) == ""


def test_stuck_first_step_with_compilation_is_not() -> None:
    """Before a step time is known, also in the first step of a later attempt, the limit is two hours."""
    cluster = training(1, **RESTART)
    cluster.now += 7100
    assert cluster.round().phase == "Running" and problem(cluster) == ""
    cluster.now += 100
    assert cluster.reconcile().reason == "Stuck"


def test_stuck_validation_is_not() -> None:
    """A validation that reports nothing has two hours; afterwards its step extends the usual step time."""
    cluster = training(**RESTART)
    cluster.progress("g0", 1, 3, phase="Evaluating")
    cluster.now += 7 * STEP
    assert cluster.round().phase == "Running" and problem(cluster) == ""
    cluster.progress("g0", 1, 4)
    cluster.round()
    assert cluster.job["status"]["stages"][0]["stepSeconds"] == 7 * STEP


def test_stuck_restart_counts() -> None:
    """action Restart: the attempt ends with its checkpoint, the next one resumes, and the restart is counted."""
    cluster = training(**RESTART)
    cluster.now += 5 * STEP
    decision = cluster.reconcile()
    assert (decision.phase, decision.reason) == (
        "Pending",
        "Stuck",
    ) and "has made no progress since" in decision.message
    cluster.round(1)
    assert ("Job", "demo-g0-1") not in cluster.children
    cluster.finish_job("demo-g0-1", 137)
    cluster.round()
    cluster.now += 6
    cluster.round()
    assert cluster.running() == ["demo-g0-2"] and cluster.job["status"]["restartsCountedTowardsMax"] == 1
    cluster.terminate()
    cluster.now += 7000
    cluster.progress("g0", 2, 2, phase="Starting")  # it resumes at the checkpoint
    cluster.round()
    cluster.now += 7000
    cluster.round()
    assert cluster.running() == ["demo-g0-2"] and problem(cluster) == ""


def test_stuck_after_max_restarts_fails() -> None:
    """The failure policy limits the restarts."""
    cluster = training(**RESTART)
    cluster.job["spec"]["failurePolicy"] = {"maxRestarts": 0}
    cluster.now += 5 * STEP
    assert cluster.reconcile().reason == "Stuck"
    cluster.round()
    cluster.finish_job("demo-g0-1", 137)
    cluster.round()
    cluster.finish_job("demo-report", 0)
    decision = cluster.round()
    assert decision.phase == "Failed" and "no progress since" in decision.message


def test_stuck_other_problem_is_no_reason_to_restart() -> None:
    """A job with another problem, such as a pod without a node, is not restarted."""
    cluster = training(**RESTART)
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    cluster.pods["demo-g0-1-1"]["status"] = {"phase": "Pending", "conditions": [unschedulable]}
    cluster.now += 5 * STEP
    assert cluster.round().phase == "Running" and "Stuck" in problem(cluster) and "0/1 nodes" in problem(cluster)


@pytest.mark.parametrize("problem", ["faulty node", "crashing engine"])
def test_stuck_next_to_its_cause_restarts(problem: str) -> None:
    """A faulty GPU hangs a collective, and one of many engines may crash: only pods that cannot start prevent it."""
    cluster = training(**RESTART)
    if problem == "faulty node":
        cluster.node_faults = {"node-1": NodeFault(("label x",), closed=False)}
    else:
        labels = {"rstar2.dev/job": "demo", "rstar2.dev/role": "rollout", "batch.kubernetes.io/job-name": ""}
        waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
        status = {"phase": "Running", "containerStatuses": [{"name": "engine", "ready": False, "state": waiting}]}
        meta = {"name": "demo-rollout-x", "labels": labels, "creationTimestamp": timestamp(cluster.now)}
        cluster.pods["demo-rollout-x"] = {"kind": "Pod", "metadata": meta, "spec": {}, "status": status}
    cluster.now += 5 * STEP
    assert cluster.reconcile().reason == "Stuck"


def test_stuck_with_a_crashing_injected_container_restarts() -> None:
    """A pod whose own container runs can be restarted; its injected containers prevent nothing."""
    cluster = training(**RESTART)
    crash = {"state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}}
    runs = {"name": "trainer", "ready": True, "state": {"running": {"startedAt": timestamp(cluster.now)}}}
    for pod in cluster.pods.values():
        pod["status"]["containerStatuses"] = [{"name": "a-proxy", **crash}, runs]
    cluster.now += 5 * STEP
    assert cluster.reconcile().reason == "Stuck"


def test_stuck_finished_attempt_is_not() -> None:
    """An attempt with an outcome, or one that is suspended, makes no progress by intention."""
    cluster = training(**RESTART)
    outcome = Outcome(stage="g0", attempt=1, outcome="suspended", reason="Suspended",
                      checkpoint=CheckpointRef(path="c", step=3))  # fmt: skip
    cluster.patch_progress(outcome_key("g0"), outcome.model_dump(mode="json", exclude_none=True))
    cluster.now += 50 * STEP
    assert cluster.round().reason != "Stuck" and problem(cluster) == ""
