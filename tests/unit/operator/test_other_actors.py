"""Disturbances by other clients and the infrastructure in each situation of a job: it succeeds, in virtual time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rstar2_operator.names import STAGE_LABEL
from rstar2_operator.observed import labels
from tests.support.simulated_cluster import SimulatedCluster, in_situation

SITUATIONS = ("preparing", "backing off", "released", "resuming")
TURN_SECONDS = 1200
MOST_TURNS = 12


def clock_back(cluster: SimulatedCluster) -> None:
    cluster.now -= 7200


def clock_forward(cluster: SimulatedCluster) -> None:
    cluster.now += 7200


def renamed_nodes(cluster: SimulatedCluster) -> None:
    for pod in cluster.pods.values():
        pod["spec"]["nodeName"] = "renamed"


def deleted_children(cluster: SimulatedCluster) -> None:
    """All objects except those that create pods, as an over-eager clean-up script does."""
    for kind, name in list(cluster.children):
        if kind not in ("Job", "PersistentVolumeClaim"):
            cluster.drop(kind, name)


def lost_conditions(cluster: SimulatedCluster) -> None:
    cluster.job["status"]["conditions"] = []


def foreign_finalizer(cluster: SimulatedCluster) -> None:
    cluster.job["metadata"].setdefault("finalizers", []).append("example.org/keep")


def removed_finalizers(cluster: SimulatedCluster) -> None:
    cluster.job["metadata"]["finalizers"] = []


def denied_updates(cluster: SimulatedCluster) -> None:
    cluster.denies_updates = True


def denied_edit(cluster: SimulatedCluster) -> None:
    cluster.denies_updates = True
    more_engines(cluster)


def more_engines(cluster: SimulatedCluster) -> None:
    cluster.job["spec"]["rollout"] = {"replicas": 3}


def other_image(cluster: SimulatedCluster) -> None:
    cluster.job["spec"]["trainer"]["image"] = "registry/trainer:2"


DISTURBANCES = [
    *(clock_back, clock_forward, renamed_nodes, deleted_children),
    *(lost_conditions, foreign_finalizer, more_engines, other_image),
    *(removed_finalizers, denied_updates, denied_edit),
]


def play(cluster: SimulatedCluster) -> None:
    """Act as kubelets and orchestrators without a fault."""
    cluster.terminate()
    cluster.round()
    for name in cluster.running():
        pod = next(pod for pod in cluster.pods.values() if labels(pod)["batch.kubernetes.io/job-name"] == name)
        if STAGE_LABEL in labels(pod):
            cluster.finish_stage("g0", int(name.rpartition("-")[2]))
        else:
            cluster.finish_job(name, 0)
    cluster.now += TURN_SECONDS


@pytest.mark.parametrize("disturb", DISTURBANCES)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_job_succeeds_after_a_disturbance(situation: str, disturb: Callable[[SimulatedCluster], None]) -> None:
    """No disturbance lets the job fail, wait without end, or run two attempts at a time."""
    cluster = in_situation(situation)
    disturb(cluster)
    for _ in range(MOST_TURNS):
        play(cluster)
        assert sum(name.startswith("demo-g0-") for name in cluster.running()) <= 1
    assert cluster.job["status"]["phase"] == "Succeeded", cluster.job["status"]
    assert cluster.running() == []
    assert len(cluster.created_jobs) == len(set(cluster.created_jobs))
