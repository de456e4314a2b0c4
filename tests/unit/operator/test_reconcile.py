"""A round of the operator if the API server rejects a request, or if another client changed an object."""

from __future__ import annotations

import asyncio
import copy
import itertools
from typing import Any

import pytest

from rstar2_operator import client, drift, names, shared_secrets, status_writer
from rstar2_operator.settings import OperatorSettings
from tests.support.fake_kube_api import Operator, api_error
from tests.support.simulated_cluster import manifest

UNSCHEDULED = {
    "phase": "Pending",
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"}],
}
NOTES = itertools.count()


@pytest.fixture(autouse=True)
def write_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write statuses without a delay."""
    monkeypatch.setattr(status_writer, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(status_writer, "HOLD_SECONDS", 0.0)
    monkeypatch.setattr(status_writer, "COUNTS_SECONDS", 0.0)
    monkeypatch.setattr(shared_secrets, "SPREAD_SECONDS", 0.0)


def wake(operator: Operator) -> None:
    """Change an object of the job, so that the job is reconciled."""
    operator.api.edit("ConfigMap", "demo-progress", data={"note": str(next(NOTES))})


async def test_reconcile_rejected_claim_blocks_all_pods() -> None:
    """A rejected claim is reported in the API server's words, no pod starts, and the creation is retried."""
    operator = Operator(manifest("g"))
    operator.api.rejected_kinds["PersistentVolumeClaim"] = api_error(
        403, "Forbidden", "exceeded quota: claims, used: 1, limited: 1"
    )
    await operator.run()
    message = operator.condition("StorageReady")
    assert message["status"] == "False" and "exceeded quota: claims" in message["message"], message
    assert operator.condition("Degraded")["reason"] == "ApplyRejected"
    assert any("exceeded quota: claims" in event["note"] for event in operator.api.events)
    assert operator.names("NetworkPolicy") != [] and operator.names("Job") == []
    operator.api.rejected_kinds.clear()
    await operator.until(lambda: operator.names("Job") == ["demo-prepare"])  # it is tried again by itself
    assert operator.condition("Degraded")["status"] == "False"


@pytest.mark.parametrize("error", [api_error(429, "TooManyRequests", "slow down"), api_error(503, "X", ""), OSError()])
async def test_reconcile_overloaded_api_server_is_retried(error: Exception) -> None:
    """An overloaded or unreachable API server is never a problem of the job; the write is repeated."""
    operator = Operator(manifest("g"))
    await operator.start_stage("g0")
    operator.api.rejected_kinds["Deployment"] = error
    operator.change(executor={"replicas": 3})
    await operator.run()
    assert operator.condition("Degraded")["status"] == "False" and operator.status["phase"] == "Running"
    assert [kind for verb, kind, _ in operator.api.requests if verb == "apply"].count("Deployment") > 3
    operator.change(suspend=True)  # deletions continue
    operator.api.drop("Deployment", "demo-judge")
    await operator.until(lambda: operator.status["phase"] == "Suspended")
    operator.change(suspend=False)
    await operator.run()
    assert ("Deployment", "demo-judge") not in operator.api.objects
    operator.api.rejected_kinds.clear()
    await operator.until(lambda: ("Deployment", "demo-judge") in operator.api.objects)
    assert operator.status["restarts"] == 0 and operator.names("Job") == ["demo-g0-2", "demo-prepare"]


@pytest.mark.parametrize(
    ("change", "effect"),
    [
        ({"rollout": {"replicas": 3}}, "Stage g0 needs no new attempt."),
        ({"pendingDeadlineSeconds": 1234}, "Stage g0 needs no new attempt."),
        ({"trainer": {"replicas": 3, "gpusPerReplica": 0}}, "suspend and resume the job."),
    ],
)
async def test_reconcile_changed_spec_event_names_its_effect(change: dict[str, Any], effect: str) -> None:
    """The Event of an edit, such as by `kubectl scale`, asks for a new attempt only if the stage needs one."""
    operator = Operator(manifest("g"))
    await operator.start_stage("g0")
    operator.change(**change)
    await operator.run()
    (event,) = [each for each in operator.api.events if each["reason"] == "SpecChanged"]
    assert event["note"].endswith(effect)


async def test_reconcile_lets_other_tasks_run_between_rounds() -> None:
    """Rounds without requests, such as those after a restart, delay neither the Lease nor the watches."""
    operator, waiting = Operator(manifest("g")), list[int]()
    for number in range(3):
        operator.api.queue.add(("lab", f"deleted-{number}"))

    async def record() -> None:
        while operator.api.queue.busy:
            waiting.append(len(operator.api.queue))
            await asyncio.sleep(0)

    recording = asyncio.create_task(record())
    await operator.run()
    await recording
    assert {1, 2} <= set(waiting)


async def test_reconcile_retry_after_is_respected() -> None:
    """A failed round is repeated no earlier than the API server asks for."""
    operator = Operator(manifest("g"))
    error = api_error(429, "TooManyRequests", "slow down")
    error.headers = {"Retry-After": "20"}
    operator.api.rejected_kinds["ConfigMap"] = error
    await operator.run(1.0)
    assert [kind for _, kind, _ in operator.api.requests].count("ConfigMap") == 2  # job and progress, once
    assert operator.names("Job") == []


@pytest.mark.parametrize("message", ['failed calling webhook "v"', 'admission webhook "v" denied the request: no'])
@pytest.mark.parametrize("status", [500, 503])
async def test_reconcile_error_of_webhook_is_reported(message: str, status: int) -> None:
    """An admission webhook that fails or denies may have status 500, but a person must correct it."""
    operator = Operator(manifest("g"))
    operator.api.rejected_kinds["Job"] = api_error(status, "InternalError", message)
    await operator.run()
    assert message in operator.condition("Degraded")["message"]


@pytest.mark.parametrize("error", [api_error(503, "X", "etcd is full"), TimeoutError()])
async def test_reconcile_lasting_error_is_reported(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """An error that lasts does not hide the job: its status is written, and the write is still repeated."""
    monkeypatch.setattr(client, "LASTING_SECONDS", 0.1)
    operator = Operator(manifest("g"))
    operator.api.rejected_kinds["Service"] = error
    await operator.until(lambda: "conditions" in operator.status, seconds=30)
    message = operator.condition("Degraded")["message"]
    assert "Service/demo-" in message and "Check the load of the API server" in message and "quota" not in message
    operator.api.rejected_kinds.clear()
    await operator.until(lambda: operator.condition("Degraded")["status"] == "False", seconds=30)


async def test_reconcile_rejected_update_lets_the_stage_run() -> None:
    """A rejected update of an immutable field is reported; the stage runs, and the job can be suspended."""
    operator = Operator(manifest("g"))
    await operator.start_stage("g0")
    operator.api.rejected_kinds["StatefulSet"] = api_error(422, "Invalid", "updates to statefulset spec are forbidden")
    operator.change(redis={"storage": "9Gi"})
    await operator.run()
    assert "updates to statefulset spec are forbidden" in operator.condition("Degraded")["message"]
    assert operator.status["phase"] == "Running" and "demo-g0-1" in operator.names("Job")
    operator.change(suspend=True)
    await operator.run()
    assert operator.status["phase"] == "Suspended"
    assert operator.names("StatefulSet") == operator.names("Deployment") == []


async def test_reconcile_foreign_objects_are_reported_not_written() -> None:
    """Objects of other owners with the job's names are reported and never written."""
    operator = Operator(manifest("g"))
    theirs = [
        {"kind": "Service", "metadata": {"name": "demo-redis", "labels": {"app": "demo"}}, "spec": {"selector": {}}},
        {"kind": "ConfigMap", "metadata": {"name": "demo-job"}, "data": {"mine": "precious"}},
        {"kind": "Secret", "metadata": {"name": "demo-secrets"}, "data": {}},
    ]
    before = [operator.api.put(body) for body in theirs]
    await operator.run()
    message = operator.condition("Degraded")["message"]
    assert "ConfigMap/demo-job: NameConflict: exists and does not belong to this job. Delete or rename it" in message
    assert operator.names("Job") == []
    operator.api.drop("ConfigMap", "demo-job")
    await operator.until(lambda: operator.names("Job") == ["demo-prepare"])
    await operator.finish_preparation()
    assert "Service/demo-redis: NameConflict" in operator.condition("Degraded")["message"]
    assert (operator.status["phase"], operator.status["restarts"], operator.names("Deployment")) == ("Pending", 0, [])
    operator.change(suspend=True)
    await operator.run()
    assert operator.status["phase"] == "Suspended"
    assert operator.api.objects["Service", "demo-redis"] == before[0]
    assert operator.api.objects["Secret", "demo-secrets"] == before[2]


async def test_reconcile_job_of_another_owner_is_not_adopted() -> None:
    """A batch Job with the right name and another owner is a NameConflict."""
    operator = Operator(manifest("g"))
    owner = {"controller": True, "uid": "another", "kind": "AgenticRLJob", "name": "de"}
    operator.api.put({"kind": "Job", "metadata": {"name": "demo-prepare", "ownerReferences": [owner]}, "spec": {}})
    await operator.run()
    message = operator.condition("Degraded")["message"]
    assert "Job/demo-prepare: NameConflict: exists and belongs to AgenticRLJob/de. Delete or rename it" in message
    assert operator.status["phase"] == "Preparing"


async def test_reconcile_recreated_job_waits_for_old_objects() -> None:
    """A recreated job waits until the objects of its predecessor are deleted."""
    first, again = manifest("g"), manifest("g")
    again["metadata"]["uid"] = "uid-again"
    operator = Operator(first)
    await operator.run()
    operator.api.drop("AgenticRLJob", "demo")
    await operator.run()
    operator.api.put(again)
    await operator.run()
    assert "belongs to an earlier job of this name" in operator.condition("Degraded")["message"]
    for (kind, name), body in list(operator.api.objects.items()):  # the cluster collects what the first operator owned
        if any(owner["uid"] == "uid-1" for owner in body["metadata"].get("ownerReferences", ())):
            operator.api.drop(kind, name)
    await operator.until(lambda: ("Job", "demo-prepare") in operator.api.objects)
    assert operator.names("Secret") == ["demo-secrets"] and operator.condition("Degraded")["status"] == "False"


async def test_reconcile_late_watch_keeps_the_release() -> None:
    """A released job stays released while the watch of jobs is late: the operator knows its own status."""
    operator = Operator(manifest("g"))
    await operator.start_stage("g0")
    operator.change(pendingDeadlineSeconds=1)
    pod = {"kind": "Pod", "metadata": {"name": "demo-g0-1-0", "labels": names.labels("demo", "trainer")}}
    operator.api.put({**pod, "status": UNSCHEDULED})
    operator.api.late_kinds = {"AgenticRLJob"}
    await operator.until(lambda: operator.status.get("nextRetryTime") is not None)
    operator.api.drop("Pod", "demo-g0-1-0")
    for _ in range(3):
        wake(operator)
        await operator.run()
    assert operator.names("Job") == ["demo-prepare"] and operator.condition("PodsScheduled")["status"] == "False"
    timeouts = [event for event in operator.api.events if event["reason"] == "SchedulingTimeout"]
    assert len(timeouts) == 1
    operator.api.deliver()
    await operator.run()
    assert operator.names("Job") == ["demo-prepare"]


async def test_reconcile_recreated_job_inherits_no_success() -> None:
    """If the deletion of a job was missed, its outcomes do not count for the job that replaces it."""
    operator = Operator(manifest("g"))
    await operator.start_stage("g0")
    done = '{"stage": "g0", "attempt": 1, "outcome": "completed", "reason": "StepsReached"}'
    operator.api.late_kinds = {"AgenticRLJob"}
    operator.api.drop("AgenticRLJob", "demo")
    operator.api.late_kinds, operator.api._late = set(), []  # the watch was down: the event is lost
    operator.api.edit("ConfigMap", "demo-progress", data={"outcome-g0.json": done})
    again = manifest("g")
    again["metadata"]["uid"] = "uid-again"
    operator.api.put(again)
    await operator.run()
    assert operator.status["phase"] == "Preparing" and operator.status["stages"][0]["phase"] == "Pending"
    assert "belongs to an earlier job of this name" in operator.condition("Degraded")["message"]


async def test_reconcile_retained_claim_is_reused() -> None:
    """A job uses the retained claim of an earlier job of its name."""
    first = Operator(manifest("g"))
    await first.run()
    second = Operator(manifest("g") | {"metadata": {"name": "demo", "namespace": "lab", "uid": "uid-second"}})
    second.api.put(first.api.objects["PersistentVolumeClaim", "demo-state"])
    await second.run()
    assert second.names("Job") == ["demo-prepare"] and second.condition("Degraded")["status"] == "False"


async def test_reconcile_invalid_spec_runs_and_can_be_suspended() -> None:
    """After an invalid edit the pods stay as they are, and spec.suspend still works."""
    operator = Operator(manifest("g"))
    await operator.start_stage("g0")
    operator.run_orchestrator("g0")
    operator.change(validation={"data": "report.jsonl", "everySteps": 1})
    await operator.run()
    assert (operator.status["phase"], operator.condition("Stalled")["reason"]) == ("Running", "InvalidSpec")
    assert "demo-g0-1" in operator.names("Job")
    assert "set spec.suspend to true" in operator.status["message"] and operator.names("Deployment") != []
    operator.change(suspend=True)
    await operator.run()
    assert operator.names("Job") == ["demo-prepare"] and operator.names("Deployment") != [], (
        "the orchestrator writes its checkpoint"
    )
    operator.api.drop("Pod", "orchestrator")
    await operator.run()
    assert operator.names("Deployment") == operator.names("StatefulSet") == []
    assert operator.status["phase"] == "Suspended" and "The job is suspended" in operator.status["message"]


def images(operator: Operator) -> set[str]:
    """Return the engine images of the running Deployment."""
    spec = operator.api.objects["Deployment", "demo-rollout"]["spec"]["template"]["spec"]
    return {container["image"] for container in spec["containers"]}


async def test_reconcile_upgrade_changes_no_running_pod() -> None:
    """An operator with other default images leaves the objects of a running attempt; the next one has the new ones."""
    operator = Operator(manifest("g"))
    await operator.start_stage("g0")
    before = images(operator)
    operator.api.requests.clear()
    operator.restart(OperatorSettings(rollout_image="engine:2", judge_image="judge:2", redis_image="redis:8"))
    await operator.run()
    assert operator.api.requests == [("dry-run", "Secret", "demo-secrets")]
    operator.change(rollout={"replicas": 5}, pendingDeadlineSeconds=900)  # a change of replicas changes no template
    await operator.run()
    deployment = operator.api.objects["Deployment", "demo-rollout"]
    assert (deployment["spec"]["replicas"], images(operator)) == (5, before)
    failed = {"type": "Failed", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    operator.api.edit("Job", "demo-g0-1", status={"conditions": [failed]})
    await operator.until(lambda: ("Job", "demo-g0-2") in operator.api.objects)
    assert images(operator) == {"engine:2"}
    assert operator.api.objects["Deployment", "demo-rollout"]["spec"]["replicas"] == 5


async def test_reconcile_edit_after_an_upgrade_is_applied() -> None:
    """A change of the spec that changes pods is applied immediately, with the operator's present images."""
    operator = Operator(manifest("g"))
    await operator.start_stage("g0")
    operator.restart(OperatorSettings(rollout_image="engine:2"))
    operator.change(rollout={"resources": {"limits": {"memory": "2Gi"}}})
    await operator.run()
    assert images(operator) == {"engine:2"}


async def test_reconcile_drift_is_corrected_once_per_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manual change is reverted; the next change of the same object waits for its turn."""
    operator = Operator(manifest("g"))
    await operator.start_stage("g0")
    operator.api.requests.clear()
    policy = copy.deepcopy(operator.api.objects["NetworkPolicy", "demo-executor"]["spec"])
    operator.api.edit("NetworkPolicy", "demo-executor", spec=policy | {"egress": [{}]})
    await operator.run()
    assert operator.api.objects["NetworkPolicy", "demo-executor"]["spec"] == policy
    assert operator.api.requests == [("apply", "NetworkPolicy", "demo-executor")]
    operator.api.edit("NetworkPolicy", "demo-executor", spec=policy | {"egress": [{}]})
    await operator.run()
    assert len(operator.api.requests) == 1
    monkeypatch.setattr(drift, "CORRECTION_SECONDS", 0.0)
    wake(operator)
    await operator.run()
    assert operator.api.objects["NetworkPolicy", "demo-executor"]["spec"] == policy


async def test_reconcile_rejected_correction_stays_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rejected correction is reported in every round until it succeeds."""
    operator = Operator(manifest("g"))
    await operator.start_stage("g0")
    operator.api.rejected_kinds["Service"] = api_error(422, "Invalid", "spec.ports[1].name: Duplicate value")
    right = copy.deepcopy(operator.api.objects["Service", "demo-redis"]["spec"])
    operator.api.edit("Service", "demo-redis", spec=right | {"ports": [{"name": "redis", "port": 7000}]})
    for _ in range(2):  # also in the rounds between two tries
        await operator.run()
        assert (
            "Service/demo-redis: ApplyRejected: Invalid: spec.ports[1].name"
            in operator.condition("Degraded")["message"]
        )
        wake(operator)
    operator.api.rejected_kinds.clear()
    monkeypatch.setattr(drift, "CORRECTION_SECONDS", 0.0)
    wake(operator)
    await operator.run()
    assert operator.api.objects["Service", "demo-redis"]["spec"] == right
    assert operator.condition("Degraded")["status"] == "False"


async def test_reconcile_normalised_object_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that the API server stores in another notation is not written again."""
    monkeypatch.setattr(drift, "CORRECTION_SECONDS", 0.0)
    operator = Operator(manifest("g"))
    put = operator.api.put

    def in_its_own_way(body: dict[str, Any]) -> dict[str, Any]:
        body = copy.deepcopy(body)
        if body["kind"] == "Deployment":
            body["spec"]["template"]["spec"]["containers"][0]["image"] = "mirror/image"
        return put(body)

    monkeypatch.setattr(operator.api, "put", in_its_own_way)
    await operator.start_stage("g0")
    wake(operator)
    await operator.run()
    wrote = [request for request in operator.api.requests if request[1] == "Deployment"]
    assert len(wrote) == len(set(wrote)) == 3


async def test_reconcile_rollout_replicas_are_existing_pods() -> None:
    """An autoscaler of the job's scale sees the existing engines, not the requested ones."""
    operator = Operator(manifest("g", rollout={"replicas": 4}))
    await operator.start_stage("g0")
    assert operator.status["rolloutReplicas"] == 0
    operator.api.edit("Deployment", "demo-rollout", status={"replicas": 3, "readyReplicas": 1})
    await operator.run()
    assert operator.status["rolloutReplicas"] == 3


@pytest.mark.parametrize("owner", ["rstar2.dev/operator", "example.org/canary"])
async def test_reconcile_ignores_jobs_of_other_controllers(owner: str) -> None:
    """spec.managedBy: the operator of that name alone writes the status and creates objects."""
    operator = Operator(manifest("g", managedBy=owner))
    await operator.run()
    assert bool(operator.names("ConfigMap")) == (owner == "rstar2.dev/operator")
    assert bool(operator.status) == (owner == "rstar2.dev/operator")
