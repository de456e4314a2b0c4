"""Status 409 of a write: of another write, of a policy, of an object that exists, or of one that is gone."""

from __future__ import annotations

import pytest

from rstar2_operator import names
from rstar2_operator.client import is_gone, is_transient
from tests.support.fake_kube_api import Operator, api_error
from tests.support.memory_api import Body, copied
from tests.support.simulated_cluster import manifest

MODIFIED = 'Operation cannot be fulfilled on resourcequotas "q": the object has been modified; please apply'
DENIED = 'admission webhook "v" denied the request: it is locked'
UIDS = "Precondition failed: UID in precondition: a, UID in object meta: b"
IMMUTABLE = 'ConfigMap "x" is invalid: metadata.uid: Invalid value: "a": field is immutable'
RECREATED = "the UID in the precondition (a) does not match the UID in record (b)"


def test_conflict_with_another_write_is_transient() -> None:
    """The usage of a ResourceQuota that two writes change rejects one of them: the object does not exist yet."""
    assert is_transient(api_error(409, "Conflict", MODIFIED))
    assert not is_transient(api_error(409, "AlreadyExists", 'jobs.batch "x" already exists'))


async def test_conflict_with_a_quota_creates_the_job_later() -> None:
    """A creation that met another write is repeated; it is not taken for an existing object."""
    operator = Operator(manifest("g"))
    operator.api.rejected_kinds = {"Job": api_error(409, "Conflict", MODIFIED)}
    await operator.run()
    operator.api.rejected_kinds = {}
    await operator.until(lambda: ("Job", "demo-prepare") in operator.api.objects, seconds=30)


async def test_conflict_delays_no_deletion() -> None:
    """A finalizer whose removal met another write of the job is removed later; the job does not stay indefinitely."""
    operator = Operator(manifest("g"))
    await operator.run()
    await operator.until(lambda: ("Job", "demo-prepare") in operator.api.objects, seconds=30)
    operator.api.rejected_kinds = {"AgenticRLJob": api_error(409, "Conflict", MODIFIED)}
    operator.delete()
    await operator.run()
    assert ("AgenticRLJob", "demo") in operator.api.objects
    operator.api.rejected_kinds = {}
    await operator.until(lambda: ("AgenticRLJob", "demo") not in operator.api.objects, seconds=30)


@pytest.mark.parametrize("message", [MODIFIED, DENIED])
async def test_conflict_of_a_deletion_keeps_the_object(message: str) -> None:
    """Only with the UID of another object is the deleted one gone; otherwise its pods would run in phase Suspended."""
    operator = Operator(manifest("g"))
    await operator.start_stage("g0")
    operator.run_orchestrator("g0")
    operator.change(suspend=True)
    kinds = ("Job", "Deployment", "StatefulSet")
    operator.api.rejected_kinds = {f"{kind}/delete": api_error(409, "Conflict", message) for kind in kinds}
    await operator.run(30)
    assert operator.status["phase"] != "Suspended"
    operator.api.rejected_kinds = {}
    await operator.until(lambda: operator.status["phase"] == "Suspended")
    assert operator.names("Job") == ["demo-prepare"] and operator.names("Deployment") == []


@pytest.mark.parametrize("message", [UIDS, RECREATED, IMMUTABLE])
def test_conflict_with_another_uid_is_a_deletion(message: str) -> None:
    """The object of the write is gone, and another one has its name."""
    assert is_gone(api_error(422 if message == IMMUTABLE else 409, "Conflict", message))
    assert is_gone(api_error(404, "NotFound", ""))
    assert not is_gone(api_error(403, "Forbidden", message))


async def test_conflict_of_a_policy_is_no_existing_object() -> None:
    """A policy may deny the creation of a Job with status 409: its words are reported."""
    operator = Operator(manifest("g"))
    operator.api.rejected_kinds = {"Job": api_error(409, "Conflict", DENIED)}
    await operator.run(30)
    assert DENIED in operator.condition("Degraded")["message"]


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_conflict_with_a_deletion_changes_no_other_object(is_replaced: bool) -> None:
    """An edited object is deleted, and perhaps replaced by another owner, before the watch delivers it."""
    operator = Operator(manifest("g"))
    await operator.start_stage("g0")
    edited, kind, name = copied(operator.api.objects["Deployment", "demo-judge"]), "Deployment", "demo-judge"
    own, other = {"f:spec": {"f:template": {}}}, {"f:spec": {"f:paused": {}}}
    edited["metadata"]["managedFields"] = [
        {"manager": names.FIELD_MANAGER, "fieldsV1": own},
        {"manager": "kubectl-edit", "fieldsV1": other},
    ]
    operator.api.put(edited)
    operator.api.late_kinds = {kind}
    operator.api.drop(kind, name)
    foreign = {"kind": kind, "metadata": {"name": name}, "spec": {"replicas": 9}}
    if is_replaced:
        operator.api.put(foreign)
    await operator.run(10)
    assert ("patch", kind, name) in operator.api.requests
    assert "NotFound" not in operator.condition("Degraded")["message"]
    assert operator.api.objects.get((kind, name), foreign)["spec"] == foreign["spec"]
    operator.api.deliver()
    await operator.run(100)
    assert ("NameConflict" in operator.condition("Degraded")["message"]) == is_replaced
    assert (operator.api.objects[kind, name]["spec"] == foreign["spec"]) == is_replaced


async def test_conflict_with_a_new_object_takes_nothing_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another owner creates an object between the read and the write of that name: it keeps all its fields."""
    operator, kind, name = Operator(manifest("g")), "Deployment", "demo-judge"
    await operator.start_stage("g0")
    operator.api.late_kinds, find = {kind}, operator.api.find
    foreign = {"kind": kind, "metadata": {"name": name}, "spec": {"replicas": 9}}

    async def too_early(kind: str, namespace: str, name: str) -> Body | None:
        result = await find(kind, namespace, name)
        monkeypatch.setattr(operator.api, "find", find)
        if (kind, name) not in operator.api.objects:
            operator.api.put(foreign)
        return result

    monkeypatch.setattr(operator.api, "find", too_early)
    operator.api.drop(kind, name)
    operator.api.deliver()
    operator.api.late_kinds = {kind}
    await operator.run(100)
    assert operator.api.objects[kind, name]["spec"] == foreign["spec"]
    assert "NameConflict" in operator.condition("Degraded")["message"]


async def test_conflict_with_the_uid_of_an_update_writes_nothing() -> None:
    """A changed object was deleted, and made again by another owner, before the watch delivers it."""
    operator, kind, name = Operator(manifest("g")), "Deployment", "demo-rollout"
    await operator.start_stage("g0")
    operator.api.late_kinds = {kind}
    operator.api.drop(kind, name)
    foreign = {"kind": kind, "metadata": {"name": name}, "spec": {"replicas": 9}}
    operator.api.put(foreign)
    operator.change(rollout={"replicas": 3})
    await operator.run(10)
    assert ("apply", kind, name) in operator.api.requests
    assert operator.api.objects[kind, name]["spec"] == foreign["spec"]
    operator.api.deliver()
    await operator.run(100)
    assert operator.api.objects[kind, name]["spec"] == foreign["spec"]
    assert "NameConflict" in operator.condition("Degraded")["message"]


async def test_conflict_that_passes_is_not_reported_later() -> None:
    """A lasting rejection of another object does not let two short errors seem to be one that lasts."""
    operator = Operator(manifest("g"))
    await operator.start_stage("g0")
    operator.api.drop("Service", "demo-judge")
    for replicas in (3, 4):
        denied = {"Service": api_error(403, "Forbidden", "no")}
        operator.api.rejected_kinds = {**denied, "Deployment": api_error(409, "Conflict", MODIFIED)}
        operator.change(rollout={"replicas": replicas})
        await operator.run(10)
        assert "Deployment/demo-rollout" not in operator.condition("Degraded")["message"]
        operator.api.rejected_kinds = denied
        await operator.run(200)
        assert operator.api.objects["Deployment", "demo-rollout"]["spec"]["replicas"] == replicas
