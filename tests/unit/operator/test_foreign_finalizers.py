"""A webhook or controller of others adds finalizers to a job's objects, and never removes them."""

from __future__ import annotations

import pytest

from tests.support.simulated_cluster import SimulatedCluster, at_first_stage, kinds, role_pod

FINALIZER = "example.org/audit"
HOME = {"name": "HOME", "value": "x"}
"""A variable that a patch may not set."""


def hold(cluster: SimulatedCluster, *of_kinds: str) -> None:
    """Add the finalizer to all objects of some kinds."""
    for (kind, _), child in cluster.children.items():
        if kind in of_kinds:
            child["metadata"]["finalizers"] = [FINALIZER]


def degraded(cluster: SimulatedCluster) -> str:
    """Return the message of Degraded."""
    conditions = {each["type"]: each for each in cluster.job["status"]["conditions"]}
    return str(conditions["Degraded"]["message"])


@pytest.mark.parametrize("valid", [True, False])
@pytest.mark.parametrize("ending", ["suspend", "delete"])
def test_finalizer_of_a_job_keeps_no_pods(ending: str, *, valid: bool) -> None:
    """Kubernetes deletes the pods only after the Job: they are stopped with their grace, and the problem is named.

    An edit of a running job can make its spec invalid, so that no policy reads it.
    """
    cluster = at_first_stage("g")
    hold(cluster, "Job")
    if not valid:
        cluster.job["spec"]["runtimePatches"] = [{"manager": "a", "roles": ["trainer"], "env": [HOME]}]
    if ending == "suspend":
        cluster.job["spec"]["suspend"] = True
    else:
        cluster.delete_job()
    cluster.run_operator()
    assert "deletionTimestamp" in cluster.children["Job", "demo-g0-1"]["metadata"]
    assert cluster.running() == ["demo-g0-1"] and "DeletionBlocked" not in degraded(cluster)
    cluster.now += 30
    cluster.run_operator()
    assert (
        f"Job/demo-g0-1: DeletionBlocked: is deleted since 1970-01-12T13:46:40Z, but kept by {FINALIZER}."
        in degraded(cluster)
    )
    assert cluster.running() == [] == cluster.forced
    phase = "Suspending" if ending == "suspend" else "Deleting"
    assert cluster.job["status"]["phase"] == phase, "the pods terminate"
    if ending == "suspend":
        cluster.terminate()
        for _ in range(2):
            cluster.run_operator()
        assert cluster.job["status"]["phase"] == "Suspended"


def test_finalizers_of_engines_and_judge_keep_no_pods() -> None:
    """Their controllers ignore them after a deletion, so they are scaled to 0 before."""
    cluster = at_first_stage("g")
    hold(cluster, "Deployment", "StatefulSet")
    engine = role_pod(cluster, "rollout", {})
    engine["metadata"] |= {"namespace": "lab", "uid": "engine"}  # type: ignore[operator]
    cluster.pods["demo-rollout-x"] = engine
    cluster.job["spec"]["suspend"] = True
    cluster.round()
    cluster.terminate()
    cluster.reconcile()
    held = [child for (kind, _), child in cluster.children.items() if kind in ("Deployment", "StatefulSet")]
    assert [child["spec"]["replicas"] for child in held] == [0] * 4
    assert not any("deletionTimestamp" in child["metadata"] for child in held)
    del cluster.pods["demo-rollout-x"]
    for child in held:
        child["status"] = {}
    assert cluster.reconcile().phase == "Suspended"
    assert all("deletionTimestamp" in child["metadata"] for child in cluster.children.values() if child in held)
    cluster.now += 30
    cluster.reconcile()
    assert degraded(cluster).count("DeletionBlocked") >= 1


def test_attempt_waits_for_engines_that_are_being_deleted() -> None:
    """Its pods would hold accelerators, and wait for engines that cannot be created."""
    cluster = at_first_stage("g")
    cluster.job["spec"]["suspend"] = True
    cluster.round()
    cluster.terminate()
    hold(cluster, "Deployment")
    for child in cluster.children.values():
        if child["kind"] == "Deployment":
            child["spec"]["replicas"], child["status"] = 0, {}
    cluster.reconcile()
    cluster.job["spec"]["suspend"] = False
    cluster.now += 60
    decision = cluster.reconcile()
    assert decision.reason == "ApplyRejected" and kinds(cluster, "Job") == ["demo-prepare"]
    assert "an older object is being deleted" in decision.message and "DeletionBlocked" in degraded(cluster)
    for child in [child for child in cluster.children.values() if child["kind"] == "Deployment"]:
        cluster.drop("Deployment", child["metadata"]["name"])
    cluster.round()
    assert cluster.running() == ["demo-g0-2"]
