"""Jobs whose rollouts run nothing in the judge have no judge, executors and Redis, and do not wait for them."""

from __future__ import annotations

from typing import Any

import pytest

from rstar2_operator import names
from rstar2_operator.builders.objects import build_context
from rstar2_operator.builders.workload import workload
from rstar2_operator.decide import kueue
from rstar2_operator.observed import labels
from rstar2_train.api.validation import check
from tests.support.simulated_cluster import SimulatedCluster, at_first_stage, manifest
from tests.unit.operator.test_builders import SETTINGS, all_objects, templates

AGENT = {"command": ["agent"], "image": "agents:1"}
WITHOUT_JUDGE = [{"agent": AGENT}, {"environments": [{"name": "game", "image": "games:1"}]}]
JUDGE_ROLES = {"judge", "executor", "redis"}


def roles(cluster: SimulatedCluster) -> set[str]:
    """Return the roles that have pods for rollouts."""
    kinds = ("Deployment", "StatefulSet")
    return {labels(child)[names.ROLE_LABEL] for (kind, _), child in cluster.children.items() if kind in kinds}


def condition(cluster: SimulatedCluster, kind: str) -> dict[str, Any]:
    (item,) = [each for each in cluster.job["status"]["conditions"] if each["type"] == kind]
    return item


@pytest.mark.parametrize("spec", WITHOUT_JUDGE)
def test_judge_is_not_built_without_its_use(spec: dict[str, Any]) -> None:
    """No object has a role of the judge, and the launcher gets no URL of one; other jobs have both."""
    for settings, expected in ((spec, set()), ({}, JUDGE_ROLES)):
        bodies = all_objects(manifest("g", **settings), "g0")
        assert {labels(body).get(names.ROLE_LABEL) for body in bodies} & JUDGE_ROLES == expected
        (container,) = dict(templates(bodies))["demo-g0-1"]["spec"]["containers"]
        assert ("--judge" in container["command"]) is bool(expected)


@pytest.mark.parametrize("spec", WITHOUT_JUDGE)
def test_judge_conditions_are_not_needed(spec: dict[str, Any]) -> None:
    """The stage runs and is Ready without a judge; the status lists only roles that the job has."""
    cluster = at_first_stage("g", **spec)
    cluster.progress("g0", 1, 1)
    cluster.reconcile()
    assert roles(cluster) == {"rollout", "agent" if "agent" in spec else "environment"}
    for kind in ("JudgeReady", "RedisReady"):
        assert (condition(cluster, kind)["status"], condition(cluster, kind)["reason"]) == ("False", "NotNeeded")
    assert condition(cluster, "RolloutReady")["status"] == condition(cluster, "Ready")["status"] == "True"
    assert {row["name"] for row in cluster.job["status"]["roles"]} == {"trainer", *roles(cluster)}


def test_judge_of_an_earlier_version_stays_for_its_attempt() -> None:
    """An upgrade deletes nothing that a running attempt was started with; the next attempt has no judge."""
    cluster, earlier = at_first_stage("g", agent=AGENT), at_first_stage("g")
    cluster.children |= {
        key: child
        for key, child in earlier.children.items()
        if labels(child).get(names.ROLE_LABEL) in JUDGE_ROLES and key[0] != "NetworkPolicy"
    }
    cluster.round()
    assert roles(cluster) == {"rollout", "agent", *JUDGE_ROLES}
    cluster.finish_job("demo-g0-1", 137)
    cluster.round()
    cluster.now += 3600
    cluster.round()
    assert cluster.running() == ["demo-g0-2"]
    assert roles(cluster) == {"rollout", "agent"}


def test_judge_of_an_edited_job_stays_for_its_attempt() -> None:
    """The running attempt keeps its settings after an edit, and so the judge that it calls."""
    cluster = at_first_stage("g")
    cluster.job["spec"]["agent"] = AGENT
    cluster.job["metadata"]["generation"] = 2
    cluster.round()
    assert roles(cluster) == {"rollout", "agent", *JUDGE_ROLES}
    cluster.job["spec"]["suspend"] = True
    cluster.round()
    cluster.finish_job("demo-g0-1", 76)
    cluster.round()
    assert roles(cluster) == set()


def test_judge_is_in_the_quota_request_if_needed() -> None:
    """The Workload has no pods of an unneeded judge, and a job that starts to need it asks for another quota."""
    requests = []
    for spec in ({"environments": [{"name": "game", "url": "http://game"}]}, {"rewards": [{"name": "math"}]}):
        data = manifest("g", queueName="team", environments=[{"name": "game", "url": "http://game"}])
        data["spec"] |= spec
        job, issues = check(data)
        assert job is not None, issues
        context, stage = build_context(job, SETTINGS), job.spec.stages[0]
        requests.append(kueue.request(job, stage))
        bodies = all_objects(data, "g0")
        made = workload(context, "demo-g0", stage, [body for body in bodies if body["kind"] != "Job"])
        has_judge = {each["name"] for each in made["spec"]["podSets"]} >= JUDGE_ROLES
        assert has_judge is job.spec.needs_judge is ("rewards" in spec)
    assert requests[0] != requests[1]
