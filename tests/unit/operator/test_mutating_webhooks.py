"""Mutating webhooks of others change objects at their creation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rstar2_operator import identity, status_writer
from tests.support.fake_kube_api import Operator
from tests.support.memory_api import Body, api_error, copied
from tests.support.simulated_cluster import at_first_stage, manifest

Change = Callable[[Body], Any]


@pytest.fixture(autouse=True)
def write_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write statuses without a delay."""
    for name in ("SETTLE_SECONDS", "HOLD_SECONDS", "COUNTS_SECONDS"):
        monkeypatch.setattr(status_writer, name, 0.0)


def webhook(operator: Operator, kind: str, change: Change) -> None:
    """Change each new object of a kind."""
    create, apply = operator.api.create, operator.api.apply

    def changed(body: Body) -> Body:
        body = copied(body)
        if body["kind"] == kind and body["metadata"]["name"] != "demo-prepare":
            change(body)
        return body

    async def mutated(body: Body, *, dry_run: bool = False) -> Body:
        return await create(changed(body), dry_run=dry_run)

    async def mutated_apply(body: Body, **options: Any) -> Body:
        return await apply(body if "subresource" in options else changed(body), **options)

    operator.api.create, operator.api.apply = mutated, mutated_apply  # type: ignore[method-assign]


def pod(body: Body) -> Body:
    """Return the pod spec of a template."""
    spec: Body = body["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize(
    ("kind", "change", "part"),
    [
        ("Job", lambda body: body["metadata"]["labels"].pop("rstar2.dev/stage"), "label rstar2.dev/stage"),
        ("Job", lambda body: body["metadata"].update(labels={"team": "a"}), "label app.kubernetes.io/managed-by"),
        (
            "Job",
            lambda body: body["spec"]["template"]["metadata"]["labels"].pop("rstar2.dev/job"),
            "label of the pods rstar2.dev/job",
        ),
        ("Job", lambda body: pod(body).update(restartPolicy="OnFailure"), "restartPolicy"),
        ("Job", lambda body: body["spec"].update(parallelism=1), "parallelism"),
        ("Job", lambda body: pod(body)["containers"][0].update(name="main"), "container trainer"),
        ("Deployment", lambda body: pod(body)["containers"][0].update(name="main"), "container"),
        ("ConfigMap", lambda body: body["metadata"].pop("labels"), "label app.kubernetes.io/managed-by"),
    ],
)
async def test_webhook_that_changes_what_the_operator_reads_is_named(kind: str, change: Change, part: str) -> None:
    """The attempt does not start with pods that the operator could not see or read; it starts without the webhook."""
    operator = Operator(manifest("g"))
    webhook(operator, kind, change)
    await operator.run()
    if kind == "ConfigMap":
        assert operator.names("Job") == []
    else:
        await operator.finish_preparation()
        assert operator.names("Job") == ["demo-prepare"]
        assert kind != "Deployment" or operator.names("Deployment") == []
    created = [name for verb, of, name in operator.api.requests if verb in ("apply", "create") and of == kind]
    assert len(created) == len(set(created)), "it is not created again immediately"
    message = operator.condition("Degraded")["message"]
    assert f"ApplyRejected: an admission webhook or policy has changed {part}" in message
    assert operator.condition("Stalled")["status"] == "True" and operator.status["restarts"] == 0


async def test_webhook_changed_attempt_has_not_run() -> None:
    """The watch delivers the new Job, and its deletion later: the attempt must not count as one that ran."""
    operator = Operator(manifest("s"))
    webhook(operator, "Job", lambda body: body["spec"]["template"]["metadata"]["labels"].pop("rstar2.dev/job"))
    await operator.run()
    operator.api.deleted = lambda body: None  # type: ignore[method-assign]
    await operator.finish_preparation()
    assert (operator.status["phase"], operator.status["reason"]) == ("Pending", "ApplyRejected")
    assert operator.status["stages"][0]["attempts"] == 0 and operator.names("Job") == ["demo-prepare"]


@pytest.mark.parametrize(("kind", "problem"), [("ConfigMap", "has changed label"), ("Job", "cannot delete jobs")])
async def test_webhook_object_is_refused_again(kind: str, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object without labels, which no watch delivers, is not used in a later round either."""
    monkeypatch.setattr(identity, "REPEAT_SECONDS", 0.0)
    operator = Operator(manifest("s"))
    webhook(operator, kind, lambda body: body["metadata"].pop("labels"))

    async def forbidden(*_: Any, **__: Any) -> Body:
        raise api_error(403, "Forbidden", "cannot delete jobs")

    operator.api.delete = forbidden  # type: ignore[method-assign]
    await operator.run()
    if kind == "Job":
        await operator.finish_preparation()
    for factor in (11, 12):
        operator.change(stuck={"action": "Restart", "factor": factor})
        await operator.run()
        assert problem in operator.condition("Degraded")["message"]
        assert operator.status["phase"] != "Running"


async def test_webhook_that_adds_and_rewrites_is_accepted() -> None:
    """Sidecars, labels, another registry and default resources are changes that jobs live with."""
    operator = Operator(manifest("g"))

    def change(body: Body) -> None:
        body["metadata"]["labels"]["team"] = "a"
        pod(body)["containers"][0] |= {"image": "mirror/image", "resources": {"limits": {"cpu": "1"}}}
        pod(body)["containers"].insert(0, {"name": "a-proxy"})

    webhook(operator, "Job", change)
    await operator.start_stage("g0")
    assert operator.condition("Degraded")["status"] == "False"


def test_pods_without_labels_are_a_problem() -> None:
    """A webhook for pods removes their labels: the operator could not see that an attempt still runs."""
    cluster = at_first_stage("g")
    cluster.pods.clear()
    for seconds, reported in ((30, False), (31, True)):
        cluster.now += seconds
        cluster.reconcile()
        conditions = {each["type"]: each for each in cluster.job["status"]["conditions"]}
        assert ("Job/demo-g0-1: FailedCreate: 2 of its pods" in conditions["Degraded"]["message"]) is reported
    assert "exempt the pods" in conditions["Degraded"]["message"]
