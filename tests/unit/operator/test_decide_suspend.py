"""spec.suspend in every situation of a job, as docs/kubernetes.md lists them."""

from __future__ import annotations

import pytest

from rstar2_operator.observed import is_alive
from tests.support.simulated_cluster import SimulatedCluster, at_first_stage, manifest


def _in(situation: str) -> SimulatedCluster:
    """A job with one GRPO stage in a situation."""
    if situation == "preparing":
        cluster = SimulatedCluster(manifest("g"))
        cluster.round()
        return cluster
    cluster = at_first_stage("g", pendingDeadlineSeconds=60, activeDeadlineSeconds=100_000)
    if situation == "backing off":
        cluster.finish_job("demo-g0-1", 137)
    elif situation == "released":
        cluster.pods["demo-g0-1-1"]["status"] = {"phase": "Pending", "conditions": []}
        cluster.now += 60
        cluster.reconcile()
        cluster.pods.clear()
    elif situation == "resuming":
        cluster.job["spec"]["suspend"] = True
        cluster.reconcile()
        cluster.job["spec"]["suspend"] = False  # while the pods of the first attempt write a checkpoint
    elif situation in ("finalizing", "succeeded"):
        cluster.finish_stage("g0")
        cluster.round()
        if situation == "succeeded":
            cluster.finish_job("demo-report", 0)
    cluster.reconcile()
    return cluster


@pytest.mark.parametrize(
    ("situation", "suspended"),
    [
        ("preparing", "Suspended"),
        ("running", "Suspended"),
        ("backing off", "Suspended"),
        ("released", "Suspended"),
        ("resuming", "Suspended"),
        ("finalizing", "Suspended"),
        ("succeeded", "Succeeded"),
    ],
)
def test_suspend_in_every_situation_then_resume(situation: str, suspended: str) -> None:
    """A suspended job has no pod; after a resume it continues, and succeeds. A final phase never changes."""
    cluster = _in(situation)
    cluster.job["spec"]["suspend"] = True
    cluster.reconcile()
    cluster.pods = {
        name: pod for name, pod in cluster.pods.items() if "deletionTimestamp" not in pod["metadata"]
    }  # they have terminated
    assert cluster.round().phase == suspended
    assert [name for name, pod in cluster.pods.items() if is_alive(pod)] == []
    cluster.job["spec"]["suspend"] = False
    for _ in range(6):
        cluster.now += 600
        cluster.round()
        for job in cluster.running():
            name, _, attempt = job.removeprefix("demo-").rpartition("-")
            if name:
                cluster.finish_stage(name, int(attempt))
            else:
                cluster.finish_job(job, 0)
    assert cluster.round().phase == "Succeeded"
    assert cluster.job["status"]["restartsCountedTowardsMax"] <= (situation == "backing off")
