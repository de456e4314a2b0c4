"""The objects of a job are computed again only when an input has changed."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from rstar2_operator import desired
from rstar2_operator.cache import Key
from rstar2_operator.decide.plan import Plan, StageAttempt
from rstar2_operator.decide.restarts import NO_RESTARTS
from rstar2_operator.desired import DesiredState
from rstar2_operator.settings import OperatorSettings
from tests.support.simulated_cluster import manifest

KEY = ("lab", "demo")
PLAN = Plan("g0", NO_RESTARTS, phase="Running", serving=True, attempt=StageAttempt("g0", 1))


def job(**spec: Any) -> dict[str, Any]:
    """Return a job as the API server sends it."""
    body = manifest("g", **spec)
    body["metadata"] |= {"namespace": "lab", "uid": "u1"}
    return body


def bodies(
    state: DesiredState, body: dict[str, Any], plan: Plan = PLAN, *, has_secret: bool = True, key: Key = KEY
) -> list[Any]:
    """Return the objects of a plan, as a reconciliation computes them."""
    context, errors = state.context(key, body)
    assert context is not None, errors
    return state.bodies(key, body, context, plan, has_secret=has_secret)


def test_desired_explanation_keeps_the_objects() -> None:
    """Another status, message or wake-up returns the same list; it equals that of a new process."""
    state, body = DesiredState(OperatorSettings()), job()
    first = bodies(state, body)
    later = copy.deepcopy(body) | {"status": {"phase": "Running"}}
    plan = replace(PLAN, message="m", wake_at=3.0)
    assert bodies(state, later, plan) is first
    assert bodies(DesiredState(OperatorSettings()), later, plan) == first


def test_desired_each_input_changes_the_objects() -> None:
    """Spec, UID, plan and Secret are inputs; an invalid spec has errors, and no objects."""
    state = DesiredState(OperatorSettings())
    seen = [bodies(state, job())]
    seen.append(bodies(state, job(rollout={"replicas": 3})))
    recreated = job()
    recreated["metadata"]["uid"] = "u2"
    seen.append(bodies(state, recreated))
    seen.append(bodies(state, job(), Plan("g0", NO_RESTARTS, phase="Running", attempt=StageAttempt("g0", 2))))
    seen.append(bodies(state, job(), has_secret=False))
    assert all(left != right for number, left in enumerate(seen) for right in seen[:number])
    context, errors = state.context(KEY, job(queueName="team"))
    assert context is None and "spec.queueName is 'team'" in errors


def test_desired_other_jobs_keep_spec_and_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """After rounds of other jobs, a spec is not validated again, and its objects are decoded, not built."""
    monkeypatch.setattr(desired, "KEPT_JOBS", 2)
    state, body = DesiredState(OperatorSettings(mlflow_uri="http://mlflow.example.org")), job()
    first = bodies(state, body)
    context, _ = state.context(KEY, body)
    for name in ("a", "b"):
        assert bodies(state, body, key=("lab", name)) == first
    for function in ("check", "build_context", "objects"):
        monkeypatch.delattr(desired, function)
    again = bodies(state, body)
    assert again is not first and again == first
    assert state.context(KEY, body)[0] == context is not None
    assert bodies(state, body) is again
