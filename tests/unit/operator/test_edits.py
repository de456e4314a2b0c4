"""Edits of a job while its pods run: they keep their rights and connections, and the next pods get the edit."""

from __future__ import annotations

from typing import Any

import pytest

from rstar2_train.api.contracts import SEQUENCE_TOKENS
from tests.support.simulated_cluster import SimulatedCluster, at_first_stage, kinds, manifest

AGENT = {"image": "registry/agent:1", "command": ["agent"]}
ENVIRONMENT = {"name": "game", "image": "registry/game:1"}


def patch(account: str, role: str = "trainer") -> list[dict[str, Any]]:
    """Return runtimePatches that give the pods of a role a ServiceAccount."""
    return [{"manager": "site", "roles": [role], "serviceAccountName": account}]


def subjects(cluster: SimulatedCluster) -> list[str]:
    """Return the accounts that may write progress and outcomes."""
    return [each["name"] for each in cluster.children["RoleBinding", "demo-trainer"]["subjects"]]


def policy(cluster: SimulatedCluster) -> Any:
    """Return the NetworkPolicy of the trainer."""
    return cluster.children["NetworkPolicy", "demo-trainer"]["spec"]


def end_attempt(cluster: SimulatedCluster) -> None:
    """Let the attempt fail, and the next one start."""
    cluster.finish_job("demo-g0-1", 1)
    cluster.now += 3600
    cluster.round(4)
    assert "demo-g0-2" in cluster.running()


def test_edit_of_an_account_keeps_the_rights_of_running_pods() -> None:
    """Without its rights an attempt, or the preparation, could not report its outcome."""
    cluster = at_first_stage("g", runtimePatches=patch("first"))
    cluster.job["spec"]["runtimePatches"] = patch("second")
    cluster.round()
    assert subjects(cluster) == ["demo-trainer", "first"]
    end_attempt(cluster)
    assert subjects(cluster) == ["demo-trainer", "second"]


@pytest.mark.parametrize("role", ["trainer", "prepare", "report"])
def test_account_of_each_job_has_the_rights(role: str) -> None:
    """A patch of any role whose pods write to the ConfigMap is bound."""
    cluster = SimulatedCluster(manifest("g", runtimePatches=patch("hub", role)))
    cluster.round()
    assert subjects(cluster) == ["demo-trainer", "hub"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"rollout": {"weightTransport": "Collective"}}, {"rollout": {"weightTransport": "Folder"}}),
        ({"agent": AGENT}, {"agent": None}),
    ],
)
def test_edit_of_the_network_is_for_the_next_attempt(before: dict[str, Any], after: dict[str, Any]) -> None:
    """A running attempt keeps the connections that it uses."""
    cluster = at_first_stage("g", **before)
    first = policy(cluster)
    cluster.job["spec"] |= {key: value for key, value in after.items() if value}
    for key in [key for key, value in after.items() if value is None]:
        del cluster.job["spec"][key]
    cluster.round()
    assert policy(cluster) == first
    end_attempt(cluster)
    assert policy(cluster) != first


@pytest.mark.parametrize(("field", "value"), [("agent", AGENT), ("environments", [ENVIRONMENT])])
def test_edit_that_removes_a_role_is_for_the_next_attempt(field: str, value: Any) -> None:
    """The rollouts of a running attempt still use the role."""
    cluster = at_first_stage("g", **{field: value})
    name = f"demo-{field.removesuffix('s')}"
    del cluster.job["spec"][field]
    cluster.round()
    assert name in kinds(cluster, "Deployment")
    end_attempt(cluster)
    assert name not in kinds(cluster, "Deployment")


def test_edit_of_replicas_keeps_the_budget_of_running_pods() -> None:
    """With fewer pods in the budget than run, a drain would evict one of them."""
    cluster = at_first_stage("g", trainer={"replicas": 4, "gpusPerReplica": 0, "disruptionPolicy": "Refuse"})
    cluster.job["spec"]["trainer"]["replicas"] = 1
    cluster.round()
    assert cluster.children["PodDisruptionBudget", "demo-trainer"]["spec"]["minAvailable"] == 4
    end_attempt(cluster)
    assert cluster.children["PodDisruptionBudget", "demo-trainer"]["spec"]["minAvailable"] == 1


def length(cluster: SimulatedCluster, role: str = "rollout") -> str:
    """Return the tokens of the longest sequence that the engines of a role take."""
    (container,) = cluster.children["Deployment", f"demo-{role}"]["spec"]["template"]["spec"]["containers"]
    return next(variable["value"] for variable in container["env"] if variable["name"] == SEQUENCE_TOKENS)


def test_edit_of_a_length_keeps_the_running_attempt() -> None:
    """Longer engines are needed before the next attempt; shorter ones would reject the rollouts of the running one."""
    objective = {"type": "Distillation", "teacher": {"source": "pvc://models/big"}}
    cluster = at_first_stage("g", grpo={"maxResponseTokens": 1000, "objective": objective}, teacher={})
    cluster.round()
    assert (length(cluster), length(cluster, "teacher")) == ("3048", "3049")
    for tokens, expected in ((3000, "5048"), (2000, "5048")):
        cluster.job["spec"]["grpo"]["maxResponseTokens"] = tokens
        cluster.round()
        assert length(cluster) == expected and int(length(cluster, "teacher")) == int(expected) + 1
    end_attempt(cluster)
    assert (length(cluster), length(cluster, "teacher")) == ("4048", "4049")


def test_edit_of_a_length_reaches_engines_that_do_not_start() -> None:
    """The KV cache of a longer sequence may not fit: a shorter one must replace them."""
    cluster = at_first_stage("g", grpo={"maxResponseTokens": 3000})
    cluster.round()
    cluster.children["Deployment", "demo-rollout"]["status"]["readyReplicas"] = 0
    cluster.job["spec"]["grpo"]["maxResponseTokens"] = 1000
    cluster.reconcile()
    assert length(cluster) == "3048"
