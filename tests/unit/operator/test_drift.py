"""What differs from what was applied, and what only looks so."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from rstar2_operator import names
from rstar2_operator.apply import owned
from rstar2_operator.builders.objects import build_context, objects
from rstar2_operator.decide.plan import Plan, StageAttempt
from rstar2_operator.drift import KINDS, as_applied, drifted
from rstar2_operator.observed import ObservedJob
from rstar2_operator.settings import OperatorSettings
from rstar2_train.api.validation import check
from tests.support.simulated_cluster import manifest

Body = dict[str, Any]


def everything() -> dict[tuple[str, str], Body]:
    data = manifest("g")
    job, problems = check(data)
    assert job is not None, problems
    plan = Plan(phase="Running", stage="g0", prepare=True, serving=True, attempt=StageAttempt("g0", 1))
    made = [
        owned(body, data, keep_claims=True)
        for body in objects(build_context(job, OperatorSettings()), plan, has_secret=True)
    ]
    return {(body["kind"], body["metadata"]["name"]): copy.deepcopy(body) for body in made}


def normalised(value: Any, key: str = "") -> Any:
    """As an API server gives it back: empty values left out, amounts in their shortest form, defaults filled in."""
    if isinstance(value, dict):
        kept = {name: normalised(one, name) for name, one in value.items()}
        kept = {name: one for name, one in kept.items() if one not in ([], "", None, False, 0) or key == "matchLabels"}
        if "containerPort" in kept:
            kept["protocol"] = "TCP"
        if "containers" in kept:
            kept |= {"dnsPolicy": kept.get("dnsPolicy", "ClusterFirst"), "schedulerName": "default-scheduler"}
        return kept
    if isinstance(value, list):
        return [normalised(one) for one in value]
    return {"1000m": "1", "500m": "0.5", "1024Mi": "1Gi"}.get(value, value) if isinstance(value, str) else value


def test_what_the_api_server_fills_in_is_no_difference() -> None:
    made = everything()
    there = {which: normalised(body) for which, body in made.items()}
    assert drifted(made.values(), ObservedJob(job=manifest("g"), children=there)) == []
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
    ],
)
def test_what_somebody_changes_is_seen(kind: str, name: str, change: Callable[[Body], None]) -> None:
    made = everything()
    there = {which: normalised(copy.deepcopy(body)) for which, body in made.items()}
    change(there[kind, name])
    found = drifted(made.values(), ObservedJob(job=manifest("g"), children=there))
    assert [(body["kind"], body["metadata"]["name"]) for body in found] == [(kind, name)]


def test_what_others_add_beside_is_theirs() -> None:
    body = everything()["Deployment", "demo-judge"]
    there = copy.deepcopy(body)
    there["metadata"]["labels"]["team"] = "a"
    there["spec"]["replicas"] = 7  # an autoscaler
    template = there["spec"]["template"]
    template["metadata"]["annotations"] = {"kubectl.kubernetes.io/restartedAt": "now"}
    template["spec"]["containers"].insert(0, {"name": "sidecar", "image": "mesh"})
    assert as_applied(there, body)
    assert names.HASH in body["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("one", "other"), [("1", 1), ("1000m", "1"), ("0.5Gi", "512Mi"), ("1e3", "1k"), ("1500m", "1.5")]
)
def test_amounts_are_compared_by_what_they_are_worth(one: Any, other: Any) -> None:
    body = everything()["Deployment", "demo-judge"]
    there = copy.deepcopy(body)
    for which, amount in ((body, one), (there, other)):
        which["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"] = amount
    assert as_applied(there, body)
