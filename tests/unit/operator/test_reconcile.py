"""A round of the operator when the API server says no, or when somebody else has touched what is the operator's."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rstar2_operator import drift, names, status_writer
from tests.support.fake_kube_api import Operator, api_error
from tests.support.simulated_cluster import manifest


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statuses need not wait for what may go away by itself."""
    monkeypatch.setattr(status_writer, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(status_writer, "HOLD_SECONDS", 0.0)
    monkeypatch.setattr(status_writer, "COUNTS_SECONDS", 0.0)


async def test_a_refused_claim_is_told_in_the_api_servers_words_and_nothing_runs_without_it() -> None:
    one = Operator(manifest("g"))
    one.api.rejected_kinds["PersistentVolumeClaim"] = api_error(
        403, "Forbidden", "exceeded quota: claims, used: 1, limited: 1"
    )
    await one.run()
    told = one.condition("StorageReady")
    assert told["status"] == "False" and "exceeded quota: claims" in told["message"], told
    assert one.condition("Degraded")["reason"] == "Refused"
    assert any("exceeded quota: claims" in event["note"] for event in one.api.events)
    assert one.names("NetworkPolicy") != [] and one.names("Job") == []
    one.api.rejected_kinds.clear()
    await one.until(lambda: one.names("Job") == ["demo-prepare"])  # it is tried again by itself
    assert one.condition("Degraded")["status"] == "False"


async def test_what_cannot_be_changed_stops_neither_the_stage_nor_a_suspension() -> None:
    one = Operator(manifest("g"))
    await one.start_stage("g0")
    one.api.rejected_kinds["StatefulSet"] = api_error(422, "Invalid", "updates to statefulset spec are forbidden")
    one.change(redis={"storage": "9Gi"})
    await one.run()
    assert "updates to statefulset spec are forbidden" in one.condition("Degraded")["message"]
    assert one.status["phase"] == "Running" and "demo-g0-1" in one.names("Job")
    one.change(suspend=True)
    await one.run()
    assert one.status["phase"] == "Suspended"
    assert one.names("StatefulSet") == one.names("Deployment") == []


async def test_what_is_somebody_elses_is_told_and_not_touched() -> None:
    one = Operator(manifest("g"))
    theirs = [
        {"kind": "Service", "metadata": {"name": "demo-redis", "labels": {"app": "demo"}}, "spec": {"selector": {}}},
        {"kind": "ConfigMap", "metadata": {"name": "demo-job"}, "data": {"mine": "precious"}},
        {"kind": "Secret", "metadata": {"name": "demo-secrets"}, "data": {}},
    ]
    before = [one.api.put(body) for body in theirs]
    await one.run()
    told = one.condition("Degraded")["message"]
    assert "ConfigMap/demo-job: NameTaken: exists and is not this job's: delete or rename it" in told
    assert one.names("Job") == []
    one.api.drop("ConfigMap", "demo-job")
    await one.until(lambda: one.names("Job") == ["demo-prepare"])
    await one.finish_preparation()
    assert "Service/demo-redis: NameTaken" in one.condition("Degraded")["message"]
    assert (one.status["phase"], one.status["restarts"], one.names("Deployment")) == ("Pending", 0, [])
    one.change(suspend=True)
    await one.run()
    assert one.status["phase"] == "Suspended"
    assert one.api.objects["Service", "demo-redis"] == before[0]
    assert one.api.objects["Secret", "demo-secrets"] == before[2]


async def test_a_job_of_another_job_with_the_same_name_is_not_taken_for_its_own() -> None:
    one = Operator(manifest("g"))
    owner = {"controller": True, "uid": "another", "kind": "AgenticRLJob", "name": "de"}
    one.api.put({"kind": "Job", "metadata": {"name": "demo-prepare", "ownerReferences": [owner]}, "spec": {}})
    await one.run()
    told = one.condition("Degraded")["message"]
    assert "Job/demo-prepare: NameTaken: exists and belongs to AgenticRLJob/de: delete or rename it" in told
    assert one.status["phase"] == "Preparing"


async def test_a_job_that_is_deleted_and_made_again_waits_for_what_is_left_of_the_first() -> None:
    first, again = manifest("g"), manifest("g")
    again["metadata"]["uid"] = "uid-again"
    one = Operator(first)
    await one.run()
    one.api.drop("AgenticRLJob", "demo")
    await one.run()
    one.api.put(again)
    await one.run()
    assert "belongs to an earlier job of this name" in one.condition("Degraded")["message"]
    for (kind, name), body in list(one.api.objects.items()):  # the cluster collects what the first one owned
        if any(owner["uid"] == "uid-1" for owner in body["metadata"].get("ownerReferences", ())):
            one.api.drop(kind, name)
    await one.until(lambda: ("Job", "demo-prepare") in one.api.objects)
    assert one.names("Secret") == ["demo-secrets"] and one.condition("Degraded")["status"] == "False"


async def test_a_kept_claim_of_an_earlier_job_of_that_name_is_taken_again() -> None:
    first = Operator(manifest("g"))
    await first.run()
    second = Operator(manifest("g") | {"metadata": {"name": "demo", "namespace": "lab", "uid": "uid-second"}})
    second.api.put(first.api.objects["PersistentVolumeClaim", "demo-state"])
    await second.run()
    assert second.names("Job") == ["demo-prepare"] and second.condition("Degraded")["status"] == "False"


async def test_a_new_operator_asks_once_whether_the_secret_is_there_and_changes_nothing() -> None:
    one = Operator(manifest("g"))
    await one.start_stage("g0")
    one.api.requests.clear()
    one.restart()
    await one.run()
    one.api.edit("ConfigMap", "demo-progress")
    await one.run()
    assert one.api.requests == [("dry-run", "Secret", "demo-secrets")]


@pytest.mark.parametrize("known_by", ["pod", "restart"])
async def test_a_lost_secret_is_noticed(known_by: str) -> None:
    one = Operator(manifest("g"))
    await one.start_stage("g0")
    one.api.drop("Secret", "demo-secrets")
    await one.run()
    engines = one.api.objects["Deployment", "demo-rollout"]["metadata"]["uid"]
    if known_by == "restart":
        one.restart()
    else:
        waiting = {"reason": "CreateContainerConfigError", "message": 'secret "demo-secrets" not found'}
        pod = {"kind": "Pod", "metadata": {"name": "demo-rollout-x", "labels": names.labels("demo", "rollout")}}
        one.api.put({**pod, "status": {"phase": "Pending", "containerStatuses": [{"state": {"waiting": waiting}}]}})
    await one.until(lambda: ("Job", "demo-g0-2") in one.api.objects)
    assert one.names("Secret") == ["demo-secrets"]
    assert one.api.objects["Deployment", "demo-rollout"]["metadata"]["uid"] != engines
    assert ("Job", "demo-g0-1") not in one.api.objects


async def test_a_job_that_an_edit_made_invalid_runs_on_and_can_be_suspended() -> None:
    one = Operator(manifest("g"))
    await one.start_stage("g0")
    labels = one.api.objects["Job", "demo-g0-1"]["spec"]["template"]["metadata"]["labels"]
    one.api.put({"kind": "Pod", "metadata": {"name": "driver", "labels": labels}, "status": {"phase": "Running"}})
    one.change(validation={"data": "report.jsonl", "everySteps": 1})
    await one.run()
    assert one.status["phase"] == "Invalid" and "Job" in {kind for kind, _ in one.api.objects}
    assert "spec.suspend: true stops it" in one.status["message"] and one.names("Deployment") != []
    one.change(suspend=True)
    await one.run()
    assert one.names("Job") == ["demo-prepare"] and one.names("Deployment") != [], "the driver writes its checkpoint"
    one.api.drop("Pod", "driver")
    await one.run()
    assert one.names("Deployment") == one.names("StatefulSet") == []
    assert one.status["phase"] == "Invalid" and "it is suspended" in one.status["message"]


async def test_what_somebody_changes_by_hand_is_put_right(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Operator(manifest("g"))
    await one.start_stage("g0")
    one.api.requests.clear()
    policy = copy.deepcopy(one.api.objects["NetworkPolicy", "demo-executor"]["spec"])
    one.api.edit("NetworkPolicy", "demo-executor", spec=policy | {"egress": [{}]})
    await one.run()
    assert one.api.objects["NetworkPolicy", "demo-executor"]["spec"] == policy
    assert one.api.requests == [("apply", "NetworkPolicy", "demo-executor")]
    one.api.edit("NetworkPolicy", "demo-executor", spec=policy | {"egress": [{}]})
    await one.run()
    assert len(one.api.requests) == 1, "whoever does it again waits"
    monkeypatch.setattr(drift, "AGAIN_SECONDS", 0.0)
    one.api.edit("ConfigMap", "demo-progress")
    await one.run()
    assert one.api.objects["NetworkPolicy", "demo-executor"]["spec"] == policy


async def test_what_cannot_be_put_right_is_told_until_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Operator(manifest("g"))
    await one.start_stage("g0")
    one.api.rejected_kinds["Service"] = api_error(422, "Invalid", "spec.ports[1].name: Duplicate value")
    right = copy.deepcopy(one.api.objects["Service", "demo-redis"]["spec"])
    one.api.edit("Service", "demo-redis", spec=right | {"ports": [{"name": "redis", "port": 7000}]})
    for _ in range(2):  # also in the rounds between two tries
        await one.run()
        assert "Service/demo-redis: Refused: Invalid: spec.ports[1].name" in one.condition("Degraded")["message"]
        one.api.edit("ConfigMap", "demo-progress")
    one.api.rejected_kinds.clear()
    monkeypatch.setattr(drift, "AGAIN_SECONDS", 0.0)
    one.api.edit("ConfigMap", "demo-progress")
    await one.run()
    assert one.api.objects["Service", "demo-redis"]["spec"] == right
    assert one.condition("Degraded")["status"] == "False"


async def test_what_the_api_server_writes_in_its_own_way_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "AGAIN_SECONDS", 0.0)
    one = Operator(manifest("g"))
    put = one.api.put

    def in_its_own_way(body: dict[str, Any]) -> dict[str, Any]:
        body = copy.deepcopy(body)
        if body["kind"] == "Deployment":
            body["spec"]["template"]["spec"]["containers"][0]["image"] = "mirror/image"
        return put(body)

    monkeypatch.setattr(one.api, "put", in_its_own_way)
    await one.start_stage("g0")
    one.api.edit("ConfigMap", "demo-progress")
    await one.run()
    wrote = [what for what in one.api.requests if what[1] == "Deployment"]
    assert len(wrote) == len(set(wrote)) == 3
