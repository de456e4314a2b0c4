"""spec.suspend in every situation of a job, as docs/kubernetes.md lists them."""

from __future__ import annotations

import pytest

from rstar2_operator.observed import is_alive
from tests.support.simulated_cluster import in_situation


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
    cluster = in_situation(situation)
    cluster.job["spec"]["suspend"] = True
    cluster.reconcile()
    cluster.terminate()
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
