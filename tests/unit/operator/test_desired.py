"""The objects of a job are computed again only when an input has changed."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from rstar2_operator import desired
from rstar2_operator.decide.decision import Decision, StageAttempt
from rstar2_operator.decide.restarts import NO_RESTARTS
from rstar2_operator.desired import DesiredJob, DesiredState
from rstar2_operator.settings import OperatorSettings
from tests.support.simulated_cluster import manifest

PLAN = Decision("g0", NO_RESTARTS, phase="Running", serving=True, attempt=StageAttempt("g0", 1))


def job(**spec: Any) -> dict[str, Any]:
    """Return a job as the API server sends it."""
    body = manifest("g", **spec)
    body["metadata"] |= {"namespace": "lab", "uid": "u1"}
    return body


def bodies(
    state: DesiredState, known: DesiredJob, body: dict[str, Any], decision: Decision = PLAN, *, has_secret: bool = True
) -> list[Any]:
    """Return the objects of a decision, as a reconciliation computes them."""
    context, errors = state.context(known, body)
    assert context is not None, errors
    return state.bodies(known, body, context, decision, has_secret=has_secret)


def test_desired_explanation_keeps_the_objects() -> None:
    """Another status, message or wake-up returns the same list; it equals that of a new process."""
    state, known, body = DesiredState(OperatorSettings()), DesiredJob(), job()
    first = bodies(state, known, body)
    later = copy.deepcopy(body) | {"status": {"phase": "Running"}}
    decision = replace(PLAN, message="m", wake_at=3.0)
    assert bodies(state, known, later, decision) is first
    assert bodies(DesiredState(OperatorSettings()), DesiredJob(), later, decision) == first


def test_desired_each_input_changes_the_objects() -> None:
    """Spec, UID, decision and Secret are inputs; an invalid spec has errors, and no objects."""
    state, known = DesiredState(OperatorSettings()), DesiredJob()
    seen = [bodies(state, known, job())]
    seen.append(bodies(state, known, job(rollout={"replicas": 3})))
    recreated = job()
    recreated["metadata"]["uid"] = "u2"
    seen.append(bodies(state, known, recreated))
    seen.append(
        bodies(state, known, job(), Decision("g0", NO_RESTARTS, phase="Running", attempt=StageAttempt("g0", 2)))
    )
    seen.append(bodies(state, known, job(), has_secret=False))
    assert all(left != right for number, left in enumerate(seen) for right in seen[:number])
    context, errors = state.context(known, job(queueName="team"))
    assert context is None and "spec.queueName is 'team'" in errors


def test_desired_other_jobs_keep_spec_and_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """After rounds of other jobs, a spec is not validated again, and its objects are decoded, not built."""
    monkeypatch.setattr(desired, "KEPT_JOBS", 2)
    state, known, body = DesiredState(OperatorSettings(mlflow_uri="http://mlflow.example.org")), DesiredJob(), job()
    first = bodies(state, known, body)
    context, _ = state.context(known, body)
    for other in (DesiredJob(), DesiredJob()):
        assert bodies(state, other, body) == first
    for function in ("check", "build_context", "objects"):
        monkeypatch.delattr(desired, function)
    again = bodies(state, known, body)
    assert again is not first and again == first
    assert state.context(known, body)[0] == context is not None
    assert bodies(state, known, body) is again


def test_desired_field_of_a_newer_definition_names_the_cause() -> None:
    """The API server drops fields that its definition lacks, so the operator is the older one: after a roll back."""
    errors = DesiredState(OperatorSettings()).context(DesiredJob(), job(newField=1))[1]
    assert errors.startswith("The definition of AgenticRLJob in the cluster is newer than this operator")
    assert "spec.newField: unknown field" in errors
    errors = DesiredState(OperatorSettings()).context(DesiredJob(), job(seed=-1))[1]
    assert "spec.seed" in errors and "newer" not in errors
