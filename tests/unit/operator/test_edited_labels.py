"""A person removes labels of the job's objects by hand: the watches, which select by label, do not deliver these."""

from __future__ import annotations

import pytest

from rstar2_operator import names
from tests.support.simulated_cluster import SimulatedCluster, in_situation
from tests.unit.operator.test_other_actors import MOST_TURNS, play

OWN_LABELS = (names.MANAGED_BY, names.JOB_LABEL, names.ROLE_LABEL, names.STAGE_LABEL, names.ATTEMPT_LABEL)


def remove_labels(cluster: SimulatedCluster, kind: str, *removed: str) -> None:
    """Remove labels of all objects of a kind."""
    cluster.selects = True
    for (object_kind, _), body in cluster.objects.items():
        if object_kind == kind:
            for label in removed:
                body["metadata"].get("labels", {}).pop(label, None)


@pytest.mark.parametrize("removed", [*((label,) for label in OWN_LABELS), OWN_LABELS])
@pytest.mark.parametrize("kind", ["Pod", "Job"])
def test_job_without_labels_of_its_objects_succeeds(kind: str, removed: tuple[str, ...]) -> None:
    """Each label may be missing, or all of them: no round fails, and the job ends."""
    cluster = in_situation("running")
    remove_labels(cluster, kind, *removed)
    for _ in range(MOST_TURNS):
        play(cluster)
    assert cluster.job["status"]["phase"] == "Succeeded", cluster.job["status"]


@pytest.mark.parametrize("end", ["suspend", "delete", "continue"])
def test_pods_of_a_job_without_labels_stop(end: str) -> None:
    """A Job that is not visible cannot be deleted: its pods are, so that a suspension or deletion ends."""
    cluster = in_situation("running")
    remove_labels(cluster, "Job", *OWN_LABELS)
    cluster.job["spec"]["suspend"] = end == "suspend"
    if end == "delete":
        cluster.delete_job()
    for _ in range(4):
        cluster.reconcile()
        cluster.terminate()
        cluster.now += 400
    cluster.round()
    assert "demo-g0-1" not in cluster.running() and cluster.gone == (end == "delete")
    assert ("demo-g0-2" in cluster.created_jobs) == (end == "continue")


def test_unlabelled_pods_are_a_problem() -> None:
    """Nothing else shows that the operator does not see pods that run."""
    cluster = in_situation("running")
    remove_labels(cluster, "Pod", names.JOB_LABEL)
    cluster.now += 100
    cluster.round()
    degraded = next(item for item in cluster.job["status"]["conditions"] if item["type"] == "Degraded")
    assert degraded["reason"] == "FailedCreate" and "do not have the labels" in degraded["message"]


def test_claim_without_labels_is_not_to_be_deleted() -> None:
    """The message has the command that restores the labels: a deletion would delete the checkpoints."""
    cluster = in_situation("backing off")
    remove_labels(cluster, "PersistentVolumeClaim", *OWN_LABELS)
    cluster.round()
    degraded = next(item for item in cluster.job["status"]["conditions"] if item["type"] == "Degraded")
    assert "NameConflict" in degraded["message"] and "Delete" not in degraded["message"]
    assert "kubectl label pvc demo-state -n lab app.kubernetes.io/managed-by=rstar2-operator" in degraded["message"]
