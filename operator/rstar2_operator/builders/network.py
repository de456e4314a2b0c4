"""NetworkPolicies: nothing may talk to the job's pods or out of them, but for the flows of the design.

trainer -> anywhere (rollout, judge, trainer, API server, MLflow), and is reached by trainers alone (Ray, gloo, RCCL);
judge -> redis, executor, DNS;   prepare, report -> anywhere (a hub, MLflow);   rollout, executor, redis -> nobody
"""

from __future__ import annotations

from rstar2_operator import names
from rstar2_operator.builders.pod import BuildContext, Manifest

DNS: Manifest = {"ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]}
"""Any address: where a cluster's DNS listens differs (a Service, a cache on the node)."""
ANYWHERE: Manifest = {}


Flows = dict[str, tuple[list[Manifest], list[Manifest]]]
"""Role -> its ingress and egress rules."""


def network(built: BuildContext) -> list[Manifest]:
    """A deny-all policy for every pod of the job, and one policy a role that opens its flows."""
    flows: Flows = {
        "trainer": (
            [{"from": [_pods(built, "trainer")]}],
            # The API server and MLflow can be at any address and port; what must not be reached from a trainer is
            # protected on its own side.
            [ANYWHERE],
        ),
        "prepare": ([], [ANYWHERE]),
        "report": ([], [ANYWHERE]),
        "rollout": (
            [_from(built, "trainer", names.ENGINE_PORT)],
            [],
        ),
        **_judge_flows(built, caller="trainer"),
    }
    return _policies(built, flows)


def serving_network(built: BuildContext) -> list[Manifest]:
    """The same for a served model: endpoint -> rollout, judge;   judge -> redis, executor.

    Nobody but `kubectl port-forward`, which comes from the pod's own node, reaches the endpoint.
    """
    flows: Flows = {
        "endpoint": (
            [],
            [DNS, _to(built, "rollout", names.ENGINE_PORT), _to(built, "judge", names.JUDGE_PORT)],
        ),
        "rollout": ([_from(built, "endpoint", names.ENGINE_PORT)], []),
        **_judge_flows(built, caller="endpoint"),
    }
    return _policies(built, flows)


def _judge_flows(built: BuildContext, *, caller: str) -> Flows:
    """Of the judge that `caller` asks, and of what stands behind it."""
    return {
        "judge": (
            [_from(built, caller, names.JUDGE_PORT)],
            [DNS, _to(built, "redis", names.REDIS_PORT), _to(built, "executor", names.EXECUTOR_PORT)],
        ),
        "executor": ([_from(built, "judge", names.EXECUTOR_PORT)], []),
        "redis": ([_from(built, "judge", names.REDIS_PORT)], []),
    }


def _policies(built: BuildContext, flows: Flows) -> list[Manifest]:
    everyone = {"matchLabels": {names.MANAGED_BY: built.manager, names.JOB_LABEL: built.name}}
    made = [_policy(f"{built.name}-deny", built.labels("config"), everyone, [], [])]
    for role, (ingress, egress) in flows.items():
        labels = built.labels(role)
        made.append(_policy(f"{built.name}-{role}", labels, {"matchLabels": labels}, ingress, egress))
    return made


def _pods(built: BuildContext, role: str) -> Manifest:
    return {"podSelector": {"matchLabels": built.labels(role)}}


def _to(built: BuildContext, role: str, port: int) -> Manifest:
    return {"to": [_pods(built, role)], "ports": [_port(port)]}


def _from(built: BuildContext, role: str, port: int) -> Manifest:
    return {"from": [_pods(built, role)], "ports": [_port(port)]}


def _port(number: int) -> Manifest:
    return {"protocol": "TCP", "port": number}


def _policy(
    name: str, labels: dict[str, str], pods: Manifest, ingress: list[Manifest], egress: list[Manifest]
) -> Manifest:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "podSelector": pods,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": egress,
        },
    }
