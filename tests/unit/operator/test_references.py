"""Objects of other owners that the pods of any stage need: reported when the job is new."""

from __future__ import annotations

from typing import Any

import pytest

from rstar2_operator.builders.objects import build_context
from rstar2_operator.references import Reference, references
from rstar2_operator.settings import OperatorSettings
from tests.support.fake_kube_api import Operator
from tests.support.memory_api import api_error
from tests.support.simulated_cluster import SimulatedCluster, at_first_stage, manifest

EVERYTHING: dict[str, Any] = {
    "secretRefs": {"hubToken": {"name": "hub", "key": "token"}, "proxy": {"name": "proxy"}},
    "storage": {"claimName": "state"},
    "priorityClassName": "batch",
    "executor": {"runtimeClassName": "kata"},
    "runtimePatches": [
        {"manager": "site", "roles": ["executor"], "imagePullSecrets": [{"name": "pull"}]},
        {
            "manager": "team",
            "roles": ["rollout"],
            "serviceAccountName": "bucket",
            "envFrom": [{"configMapRef": {"name": "settings"}}],
            "env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "x", "key": "y"}}}],
            "volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": "cache"}}],
            "resourceClaims": [
                {"name": "nic", "resourceClaimTemplateName": "nics"},
                {"name": "shared", "resourceClaimName": "fabric"},
            ],
        },
    ],
}


def degraded(cluster: SimulatedCluster) -> str:
    """Return the message of the condition Degraded."""
    return str(next(each["message"] for each in cluster.job["status"]["conditions"] if each["type"] == "Degraded"))


def test_references_have_every_kind_and_its_first_stage() -> None:
    """Objects that the operator creates are no references; a role of a later stage names that stage."""
    job = SimulatedCluster(manifest("sg", **EVERYTHING)).spec()
    assert set(references(build_context(job, OperatorSettings()))) == {
        Reference("Secret", "hub", "prepare", ""),
        Reference("Secret", "proxy", "prepare", ""),
        Reference("PersistentVolumeClaim", "state", "prepare", ""),
        Reference("PriorityClass", "batch", "prepare", ""),
        Reference("RuntimeClass", "kata", "executor", "g1"),
        Reference("Secret", "pull", "executor", "g1"),
        Reference("ServiceAccount", "bucket", "rollout", "g1"),
        Reference("ConfigMap", "settings", "rollout", "g1"),
        Reference("Secret", "x", "rollout", "g1"),
        Reference("PersistentVolumeClaim", "cache", "rollout", "g1"),
        Reference("ResourceClaimTemplate", "nics", "rollout", "g1"),
        Reference("ResourceClaim", "fabric", "rollout", "g1"),
    }


def test_missing_objects_of_a_later_stage_are_reported() -> None:
    """They are known while the storage is prepared, and until they exist; the job runs meanwhile."""
    account = {"manager": "team", "roles": ["rollout"], "serviceAccountName": "bucket"}
    secrets = EVERYTHING["secretRefs"]
    cluster = SimulatedCluster(manifest("sg", secretRefs=secrets, runtimePatches=[account]))
    cluster.round(1)
    assert (
        "ServiceAccount/bucket: ReferenceNotFound: no ServiceAccount has this name; pods of role rollout need it from "
        "stage g1 on. Create the object before that stage starts, or name another one: "
        "spec.runtimePatches[].serviceAccountName."
    ) in degraded(cluster)
    assert "Secret/hub: ReferenceNotFound" in degraded(cluster)
    assert "The same problem: 1 more (proxy)" in degraded(cluster)
    stalled = next(each for each in cluster.job["status"]["conditions"] if each["type"] == "Stalled")
    assert (stalled["status"], cluster.job["status"]["phase"]) == ("False", "Preparing")
    cluster.put({"kind": "Secret", "metadata": {"name": "hub"}})
    cluster.put({"kind": "ServiceAccount", "metadata": {"name": "bucket"}})
    cluster.run_operator()
    assert "bucket" not in degraded(cluster) and "Secret/hub" not in degraded(cluster)
    assert "Secret/proxy: ReferenceNotFound" in degraded(cluster)


@pytest.mark.parametrize(
    ("change", "reached"),
    [({"suspend": True}, "Suspended"), ({"stages": [{"name": "g0", "type": "GRPO"}]}, "InvalidSpec")],
)
async def test_missing_objects_start_no_round_if_not_needed(
    change: dict[str, Any], reached: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request asks for them then, so the time of the next one must not be that of the next round."""
    monkeypatch.setattr("rstar2_operator.references.RETRY_SECONDS", 0.1)
    operator = Operator(manifest("g", priorityClassName="batch"))
    await operator.until(lambda: "ReferenceNotFound" in str(operator.status.get("conditions")))
    operator.change(**change)
    await operator.until(lambda: reached in (operator.status["phase"], operator.status["reason"]))
    before = operator.rounds
    await operator.run(1.0)
    assert operator.rounds - before <= 3


def test_existing_objects_are_no_problem() -> None:
    """The RuntimeClass of the executors exists."""
    assert degraded(at_first_stage("g")) == ""


def test_unreadable_objects_are_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator of some namespaces may not read RuntimeClasses."""
    cluster = SimulatedCluster(manifest("g", executor={"runtimeClassName": "kata"}))
    read = cluster.read

    async def without_rights(kind: str, namespace: str, name: str) -> dict[str, Any]:
        if kind == "RuntimeClass":
            raise api_error(403, "Forbidden", "cannot get runtimeclasses")
        return await read(kind, namespace, name)

    monkeypatch.setattr(cluster, "read", without_rights)
    cluster.round(1)
    assert degraded(cluster) == ""


@pytest.mark.parametrize(("body", "is_reported"), [('{"kind": "Status"}', True), ("404 page not found", False)])
def test_missing_claims_are_reported_where_their_kind_exists(
    body: str, is_reported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older API server answers 404 too; then the scheduler's words come when the stage starts."""
    claims = [{"name": "nic", "resourceClaimTemplateName": "nics"}]
    patch = {"manager": "team", "roles": ["rollout"], "resourceClaims": claims}
    cluster = SimulatedCluster(manifest("sg", runtimePatches=[patch]))
    read = cluster.read

    async def without_claims(kind: str, namespace: str, name: str) -> dict[str, Any]:
        if kind == "ResourceClaimTemplate":
            error = api_error(404, "NotFound", name)
            error.body = body
            raise error
        return await read(kind, namespace, name)

    monkeypatch.setattr(cluster, "read", without_claims)
    cluster.round(1)
    message = (
        "ResourceClaimTemplate/nics: ReferenceNotFound: no ResourceClaimTemplate has this name; pods of role rollout "
        "need it from stage g1 on. Create the object before that stage starts, or name another one: "
        "spec.accelerator.claimTemplates, or spec.runtimePatches[].resourceClaims."
    )
    assert (message in degraded(cluster)) is is_reported and ("nics" in degraded(cluster)) is is_reported


def test_problem_of_the_pods_replaces_the_missing_object() -> None:
    """When the pods are rejected for it, the words of their controller are the problem."""
    cluster = at_first_stage("g", executor={"runtimeClassName": "kata"})
    assert "RuntimeClass/kata: ReferenceNotFound" in degraded(cluster)
    rejected = 'pods "x" is forbidden: pod rejected: RuntimeClass "kata" not found'
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": rejected}
    cluster.children["Deployment", "demo-executor"]["status"] = {"conditions": [failure]}
    cluster.run_operator()
    assert "ReferenceNotFound" not in degraded(cluster) and rejected in degraded(cluster)
