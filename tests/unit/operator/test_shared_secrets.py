"""The Secret of a job, which the operator can create but not read: when it is looked for, and what its loss does."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rstar2_operator import names, shared_secrets, status_writer
from tests.support.fake_kube_api import Operator
from tests.support.simulated_cluster import manifest


@pytest.fixture(autouse=True)
def write_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write statuses, and look for Secrets, without a delay."""
    for name in ("SETTLE_SECONDS", "HOLD_SECONDS", "COUNTS_SECONDS"):
        monkeypatch.setattr(status_writer, name, 0.0)
    monkeypatch.setattr(shared_secrets, "SPREAD_SECONDS", 0.0)


async def test_secret_is_checked_once_by_a_new_process() -> None:
    """A new process asks once whether the Secret exists, and writes nothing."""
    operator = Operator(manifest("g"))
    await operator.start_stage("g0")
    operator.api.requests.clear()
    operator.restart()
    await operator.run()
    operator.api.edit("ConfigMap", "demo-progress", data={"note": "changed"})
    await operator.run()
    assert operator.api.requests == [("dry-run", "Secret", "demo-secrets")]


async def test_secret_of_a_running_job_is_checked_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restarted operator with many running jobs first reconciles all of them, and then asks for their Secrets."""
    operator = Operator(manifest("g"))
    await operator.start_stage("g0")
    operator.run_orchestrator("g0")
    await operator.run()
    assert operator.status["phase"] == "Running"
    operator.api.requests.clear()
    now = [1000.0]
    monkeypatch.setattr(shared_secrets, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(shared_secrets, "random", SimpleNamespace(uniform=lambda low, high: 30.0))
    operator.restart()
    await operator.run()
    assert operator.api.requests == []
    now[0] += 30.0
    operator.api.edit("ConfigMap", "demo-progress", data={"note": "changed"})
    await operator.run()
    assert operator.api.requests == [("dry-run", "Secret", "demo-secrets")]


@pytest.mark.parametrize("known_by", ["pod", "event", "restart"])
async def test_secret_loss_replaces_its_consumers(known_by: str) -> None:
    """The loss of the Secret is detected by an error of a pod or at a restart; all its consumers are replaced."""
    operator = Operator(manifest("g"))
    await operator.start_stage("g0")
    operator.api.drop("Secret", "demo-secrets")
    await operator.run()
    engines = operator.api.objects["Deployment", "demo-rollout"]["metadata"]["uid"]
    if known_by == "restart":
        operator.restart()
    else:
        error = 'secret "demo-secrets" not found'
        pod = {"kind": "Pod", "metadata": {"name": "demo-rollout-x", "labels": names.labels("demo", "rollout")}}
        waiting = {"reason": "CreateContainerConfigError", "message": error}
        statuses = [{"state": {"waiting": waiting}}] if known_by == "pod" else []
        meta = operator.api.put({**pod, "status": {"phase": "Pending", "containerStatuses": statuses}})["metadata"]
        if known_by == "event":
            about = {"kind": "Pod", **{field: meta[field] for field in ("namespace", "name", "uid")}}
            event = {"involvedObject": about, "reason": "FailedMount", "message": error, "metadata": meta}
            operator.api.store.record_warning(event)
    await operator.until(lambda: ("Job", "demo-g0-2") in operator.api.objects)
    assert operator.names("Secret") == ["demo-secrets"]
    assert operator.api.objects["Deployment", "demo-rollout"]["metadata"]["uid"] != engines
    assert ("Job", "demo-g0-1") not in operator.api.objects
