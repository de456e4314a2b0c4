"""A job whose rounds fail before the decision: its status states the error when it lasts."""

from __future__ import annotations

from typing import Any

import pytest

from rstar2_operator import client, failed_rounds, status_writer
from rstar2_operator.settings import OperatorSettings
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
