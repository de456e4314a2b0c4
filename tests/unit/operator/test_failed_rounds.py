"""A job whose rounds fail before the decision: its status states the error when it lasts."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes.aio import client as aio

from rstar2_operator import client, failed_rounds, main, status_writer, watch_health
from rstar2_operator.settings import OperatorSettings
from rstar2_operator.watch_health import WatchHealth
from tests.support.fake_kube_api import Operator, api_error
from tests.support.simulated_cluster import manifest

FORBIDDEN = 'priorityclasses "high" is forbidden: User "system:serviceaccount:rstar2:operator" cannot get'

KUEUE = OperatorSettings(kueue=True)


@pytest.fixture(autouse=True)
def write_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write statuses without a delay."""
    for name in ("SETTLE_SECONDS", "HOLD_SECONDS", "COUNTS_SECONDS"):
        monkeypatch.setattr(status_writer, name, 0.0)


def queued() -> Operator:
    """Return an operator with a job whose rounds read a PriorityClass."""
    operator = Operator(manifest("g", queueName="team", priorityClassName="high"))
    operator.restart(KUEUE)
    return operator


async def failing(operator: Operator, monkeypatch: pytest.MonkeyPatch, error: Exception) -> Any:
    """Let each read of a PriorityClass fail, for some rounds. Return the read that works."""
    read = operator.api.find

    async def find(kind: str, namespace: str, name: str) -> Any:
        if kind == "PriorityClass":
            raise error
        return await read(kind, namespace, name)

    monkeypatch.setattr(operator.api, "find", find)
    operator.restart(KUEUE)
    await operator.run(1.5)
    return read


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("error", [api_error(403, "Forbidden", FORBIDDEN), api_error(503, "X", "etcd is full")])
async def test_failed_rounds_are_reported_when_they_last(
    error: Exception, started: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that lasts to fail, as after a change of the Role, is in the status in the API server's words."""
    monkeypatch.setattr(failed_rounds, "FAILING_SECONDS", 0.5)
    monkeypatch.setattr(client, "LASTING_SECONDS", 0.5)
    operator = queued()
    if started:
        await operator.run()
        assert operator.status["reason"] == "Preparing"
    before = operator.status
    read = await failing(operator, monkeypatch, error)
    cause = FORBIDDEN if getattr(error, "status", 0) == 403 else "etcd is full"
    for kind in ("Ready", "Stalled", "Degraded"):
        own = operator.condition(kind)
        assert (own["status"], own["reason"]) == (str(kind != "Ready"), "ReconcileFailed")
        assert cause in own["message"]
        assert ("Check the load of the API server" in own["message"]) == (cause == "etcd is full")
    assert operator.status["phase"] == (before["phase"] if started else "Pending")
    monkeypatch.setattr(operator.api, "find", read)
    await operator.until(lambda: operator.condition("Degraded")["reason"] != "ReconcileFailed", seconds=30)


async def test_failed_rounds_that_pass_are_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure of some seconds changes no status."""
    operator = queued()
    await operator.run()
    before = operator.status
    await failing(operator, monkeypatch, api_error(403, "Forbidden", FORBIDDEN))
    assert operator.status == before


async def test_failed_rounds_and_status_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the status cannot be written either, the rounds continue."""
    monkeypatch.setattr(failed_rounds, "FAILING_SECONDS", 0.0)
    operator = queued()
    operator.api.rejected_kinds["AgenticRLJob/status"] = api_error(403, "Forbidden", "no Role")
    read = await failing(operator, monkeypatch, api_error(403, "Forbidden", FORBIDDEN))
    monkeypatch.setattr(operator.api, "find", read)
    operator.api.rejected_kinds.clear()
    await operator.until(lambda: operator.status.get("phase") == "Preparing", seconds=30)


async def test_failing_watch_is_reported_until_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decisions would rest on old objects, such as after a change of the Role."""
    monkeypatch.setattr(watch_health, "FAILING_SECONDS", 0.0)
    operator = Operator(manifest("g"))
    health = WatchHealth(lasting_changed=lambda _: operator.api.queue.add(("lab", "demo")))
    operator._reconciler._health = health
    await operator.start_stage("g0")
    health.failed("lab", "Pod", "Forbidden: pods is forbidden")
    health.failed("lab", "Node", "Forbidden: nodes is forbidden")  # without them jobs are served
    await operator.run()
    message = operator.condition("Degraded")["message"]
    assert "ReconcileFailed: Pod cannot be watched: Forbidden: pods is forbidden" in message and "Node" not in message
    assert (operator.condition("Ready")["status"], operator.status["phase"]) == ("False", "Running")
    health.works("lab", "Pod")
    await operator.run()
    assert operator.condition("Degraded")["status"] == "False"
    succeeded = {**operator.condition("Ready"), "type": "Succeeded", "status": "True"}
    ended = {**operator.status, "phase": "Succeeded", "conditions": [*operator.status["conditions"], succeeded]}
    operator.api.edit("AgenticRLJob", "demo", status=ended)
    health.failed("lab", "Pod", "Forbidden: pods is forbidden")
    await operator.run()
    assert operator.condition("Degraded")["message"] == ""  # of an ended job nothing is read


async def test_namespace_that_was_never_read_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new process that cannot list the pods of a job decides nothing, and its status states why."""
    monkeypatch.setattr(watch_health, "FAILING_SECONDS", 0.0)
    operator, health = Operator(manifest("g")), WatchHealth()
    await operator.start_stage("g0")
    operator.api.store._complete.clear()
    operator.restart()
    operator._reconciler._health = health
    health.failed("", "Pod", "Forbidden: pods is forbidden")
    operator.change(suspend=True)
    await operator.run()
    assert operator.condition("Degraded")["reason"] == "ReconcileFailed" and "demo-g0-1" in operator.names("Job")
    assert (operator.status["phase"], operator.status["observedGeneration"]) == ("Running", 1)


async def test_failing_watch_queues_the_jobs_of_its_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """No event of the API server would lead to a round."""
    monkeypatch.setattr(watch_health, "FAILING_SECONDS", 0.0)
    async with aio.ApiClient() as api:
        process = main.Operator(OperatorSettings(), api)
        process._cache.record_job(manifest("g"), gone=False)
        for namespace, queued in (("other", 0), ("lab", 1)):
            process._health.failed(namespace, "Pod", "403 Forbidden")
            assert len(process._queue) == queued


def test_watch_that_fails_for_a_moment_does_not_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs are queued once when it lasts, and once when it works."""
    changed: list[str] = []
    health = WatchHealth(lasting_changed=changed.append)
    health.failed("lab", "Pod", "503 X")
    health.works("lab", "Pod")
    assert changed == [] == health.lasting("lab")
    health.failed("lab", "Pod", "503 X")
    monkeypatch.setattr(watch_health, "FAILING_SECONDS", 0.0)
    for _ in range(2):
        health.failed("lab", "Pod", "503 Y")
    assert changed == ["lab"] and health.lasting("lab") == [("Pod", "503 Y")] and health.lasting("other") == []
    health.works("lab", "Pod")
    assert changed == ["lab", "lab"] and health.lasting("lab") == []
