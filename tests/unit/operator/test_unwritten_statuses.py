"""A status that the API server does not store: people see the cause, and the job holds nothing that it cannot use."""

from __future__ import annotations

import time

import pytest

from rstar2_operator import shared_secrets, status_writer
from rstar2_operator.observed import timestamp
from tests.support.fake_kube_api import Operator, api_error
from tests.support.simulated_cluster import manifest

STATUS = "AgenticRLJob/status"
TOO_LONG = api_error(422, "Invalid", "status.message: Too long")


@pytest.fixture(autouse=True)
def write_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write and report without a delay."""
    for name in ("SETTLE_SECONDS", "HOLD_SECONDS", "COUNTS_SECONDS", "FAILING_SECONDS"):
        monkeypatch.setattr(status_writer, name, 0.0)


def unwritten(operator: Operator) -> float | None:
    """Return the metric of the namespace."""
    return operator._metrics.registry.get_sample_value("rstar2_operator_unwritten_statuses", {"namespace": "lab"})


async def test_unwritten_status_has_an_event_a_metric_and_readiness() -> None:
    """An older CRD, a webhook of others or the size: one Event with the cause, until it is written."""
    operator = Operator(manifest("g"))
    operator.api.rejected_kinds[STATUS] = TOO_LONG
    await operator.run(2.0)
    (event,) = [each for each in operator.api.events if each["reason"] == "StatusNotWritten"]
    assert event["type"] == "Warning" and "Invalid: status.message: Too long" in event["note"]
    assert unwritten(operator) == 1.0
    assert operator._metrics.readiness() == "standby; statuses that cannot be written: 1 in lab"
    operator.api.rejected_kinds.clear()
    await operator.until(lambda: operator.status.get("phase") == "Preparing", seconds=30)
    assert unwritten(operator) is None and operator._metrics.readiness() == "standby"


async def test_unwritten_status_of_a_deleted_job_is_none() -> None:
    """The metric has existing jobs only."""
    operator = Operator(manifest("g"))
    operator.api.rejected_kinds[STATUS] = TOO_LONG
    await operator.run()
    assert unwritten(operator) == 1.0
    operator.delete()
    await operator.until(lambda: operator.names("AgenticRLJob") == [], seconds=60)
    assert unwritten(operator) is None


async def test_unwritten_status_releases_engines_without_attempt() -> None:
    """No attempt may start without a record, so the engines would hold their accelerators for nothing."""
    operator = Operator(manifest("g"))
    await operator.start_stage("g0")
    operator.api.rejected_kinds[STATUS] = TOO_LONG
    failed = {"type": "Failed", "status": "True", "lastTransitionTime": timestamp(time.time())}
    operator.api.edit("Job", "demo-g0-1", status={"conditions": [failed]})
    operator.change(pendingDeadlineSeconds=1)
    await operator.until(lambda: operator.names("Deployment") == [] == operator.names("StatefulSet"), seconds=60)
    await operator.run(2.0)
    assert operator.names("Deployment") == [] and operator.names("Job") == ["demo-g0-1", "demo-prepare"]
    operator.change(pendingDeadlineSeconds=3600)
    operator.api.rejected_kinds.clear()
    await operator.until(lambda: "demo-g0-2" in operator.names("Job"), seconds=60)
    assert operator.status["restarts"] == 1 and operator.names("Deployment") != []


async def test_unwritten_end_of_an_attempt_releases_its_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy ends an attempt: its Job is deleted although the record is rejected; later that is a disruption."""
    monkeypatch.setattr(shared_secrets, "SPREAD_SECONDS", 0.0)
    operator = Operator(manifest("g"))
    await operator.start_stage("g0")
    operator.api.rejected_kinds[STATUS] = TOO_LONG
    operator.api.drop("Secret", "demo-secrets")
    operator.restart()
    await operator.until(lambda: operator.names("Deployment") == [], seconds=60)
    assert operator.names("Job") == ["demo-prepare"] and operator.status["phase"] == "Running"
    operator.api.rejected_kinds.clear()
    await operator.until(lambda: "demo-g0-2" in operator.names("Job"), seconds=60)
    assert (operator.status["restarts"], operator.status["restartsCountedTowardsMax"]) == (1, 0)
