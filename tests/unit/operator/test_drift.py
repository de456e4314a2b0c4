"""Drift: fields that differ from the applied ones, and differences that do not count."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import pytest

from rstar2_operator import names, status_writer
from rstar2_operator.apply import applied_spec, owned
from rstar2_operator.builders.objects import build_context, objects
from rstar2_operator.decide.decision import Decision, StageAttempt
from rstar2_operator.decide.restarts import NO_RESTARTS
from rstar2_operator.drift import KINDS, REQUIRED, as_applied, drifted
from rstar2_operator.observed import ObservedJob, timestamp
from rstar2_operator.settings import OperatorSettings
from rstar2_train.api.validation import check
from tests.support.fake_kube_api import Operator
from tests.support.simulated_cluster import manifest

Body = dict[str, Any]


CACHE = {
    "manager": "cache",
    "roles": ["judge"],
    "volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": "cache"}}],
    "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
}
"""A patch with the field readOnly, whose False the API server drops."""


def everything() -> dict[tuple[str, str], Body]:
    trainer = {"replicas": 2, "gpusPerReplica": 0, "disruptionPolicy": "Refuse"}
    data = manifest("g", trainer=trainer, runtimePatches=[CACHE])
    job, problems = check(data)
    assert job is not None, problems
    decision = Decision("g0", NO_RESTARTS, phase="Running", prepare=True, serving=True, attempt=StageAttempt("g0", 1))
    made = [
        owned(body, data, keep_claims=True, spec=applied_spec(data))
        for body in objects(build_context(job, OperatorSettings()), decision, has_secret=True)
    ]
    return {(body["kind"], body["metadata"]["name"]): copy.deepcopy(body) for body in made}


def normalised(value: Any, key: str = "") -> Any:
    """Return a value as an API server does: without empty values, with canonical quantities and with defaults."""
    if isinstance(value, dict):
        kept = {name: normalised(entry, name) for name, entry in value.items()}
        kept = {name: entry for name, entry in kept.items() if entry or name in REQUIRED or key == "matchLabels"}
        if "containerPort" in kept:
            kept["protocol"] = "TCP"
        if "containers" in kept:
            kept |= {"dnsPolicy": kept.get("dnsPolicy", "ClusterFirst"), "schedulerName": "default-scheduler"}
        return kept
    if isinstance(value, list):
        return [normalised(entry) for entry in value]
    return {"1000m": "1", "500m": "0.5", "1024Mi": "1Gi"}.get(value, value) if isinstance(value, str) else value


def test_drift_ignores_defaults_and_notation() -> None:
    """Defaults and another notation of quantities are not drift."""
    made = everything()
    live = {which: normalised(body) for which, body in made.items()}
    assert drifted(made.values(), ObservedJob(job=manifest("g"), children=live)) == []
    assert {kind for kind, _ in made} >= KINDS


def egress(body: Body) -> None:
    body["spec"]["egress"] = [{}]


def more_egress(body: Body) -> None:
    body["spec"]["egress"] = [*body["spec"].get("egress", []), {"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}]


def no_sandbox(body: Body) -> None:
    del body["spec"]["template"]["spec"]["runtimeClassName"]


def less(body: Body) -> None:
    body["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"] = "1Mi"


def token(body: Body) -> None:
    body["automountServiceAccountToken"] = True


def more_rights(body: Body) -> None:
    body["rules"][0]["verbs"].append("get")


def no_selector(body: Body) -> None:
    body["spec"]["selector"] = {"app": "mine"}


def evictable(body: Body) -> None:
    body["spec"]["minAvailable"] = 0


def added_container(body: Body) -> None:
    """As records.py keeps it."""
    body["metadata"]["additions"] = ["kubectl-edit: spec.template.spec.containers[name=spy]"]


@pytest.mark.parametrize(
    ("kind", "name", "change"),
    [
        ("NetworkPolicy", "demo-executor", egress),
        ("NetworkPolicy", "demo-judge", more_egress),
        ("Deployment", "demo-executor", no_sandbox),
        ("Deployment", "demo-judge", less),
        ("ServiceAccount", "demo-pods", token),
        ("Role", "demo-trainer", more_rights),
        ("Service", "demo-redis", no_selector),
        ("PodDisruptionBudget", "demo-trainer", evictable),
        ("Deployment", "demo-executor", added_container),
    ],
)
def test_drift_changed_field_is_found(kind: str, name: str, change: Callable[[Body], None]) -> None:
    """A changed field of the operator is drift, also an additional rule or right."""
    made = everything()
    live = {which: normalised(copy.deepcopy(body)) for which, body in made.items()}
    change(live[kind, name])
    result = drifted(made.values(), ObservedJob(job=manifest("g"), children=live))
    assert [(body["kind"], body["metadata"]["name"]) for body, _ in result] == [(kind, name)]


def test_drift_ignores_fields_without_an_owner() -> None:
    """Labels, replicas and what admission webhooks add are not drift: no other client owns the fields."""
    body = everything()["Deployment", "demo-judge"]
    live = copy.deepcopy(body)
    live["metadata"]["labels"]["team"] = "a"
    live["spec"]["replicas"] = 7  # an autoscaler
    template = live["spec"]["template"]
    template["metadata"]["annotations"] = {"kubectl.kubernetes.io/restartedAt": "now"}
    template["spec"]["containers"].insert(0, {"name": "sidecar", "image": "mesh"})
    assert as_applied(live, body)
    assert names.HASH in body["metadata"]["annotations"]


@pytest.mark.parametrize(("replicas", "expected"), [(3, True), (0, False)])
def test_drift_without_replicas_is_found(replicas: int, expected: bool) -> None:
    """An autoscaler may set the replicas, but a role without any pod would let the job wait indefinitely."""
    body = everything()["Deployment", "demo-rollout"]
    live = {**body, "spec": {**body["spec"], "replicas": replicas}}
    assert as_applied(live, body) is expected


@pytest.mark.parametrize(
    ("first", "second"), [("1", 1), ("1000m", "1"), ("0.5Gi", "512Mi"), ("1e3", "1k"), ("1500m", "1.5")]
)
def test_drift_compares_quantities_by_value(first: Any, second: Any) -> None:
    """Two notations of one quantity are equal."""
    body = everything()["Deployment", "demo-judge"]
    live = copy.deepcopy(body)
    for which, amount in ((body, first), (live, second)):
        which["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"] = amount
    assert as_applied(live, body)


async def test_drift_of_two_operators_is_slow_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two releases with other images serve the same job: they do not replace its pods in a fast loop."""
    for name in ("SETTLE_SECONDS", "HOLD_SECONDS", "COUNTS_SECONDS"):
        monkeypatch.setattr(status_writer, name, 0.0)
    first = Operator(manifest("g"))
    await first.start_stage("g0")
    failed = {"type": "Failed", "status": "True", "lastTransitionTime": timestamp(time.time())}
    first.api.edit("Job", "demo-g0-1", status={"conditions": [failed]})  # between attempts an upgrade takes effect
    own = first._reconciler
    first.restart(OperatorSettings(rollout_image="engine:2"))
    second = first._reconciler
    first.api.requests.clear()
    for reconciler in [own, second] * 4:
        first._reconciler = reconciler
        first.api.queue.add(("lab", "demo"))
        await first.run(0.1)
    applied = [name for verb, kind, name in first.api.requests if (verb, kind) == ("apply", "Deployment")]
    assert applied.count("demo-rollout") <= 4
    message = first.condition("Degraded")["message"]
    assert "Deployment/demo-rollout: ApplyRejected: another operator applies another form of it" in message
    assert "Let one release serve the job" in message
