"""NetworkPolicies: nothing may talk to the job's pods or out of them, but for the flows of the design.

trainer -> rollout, judge, trainer (Ray, gloo, RCCL), API server, MLflow;   judge -> redis, executor;
prepare, report -> anywhere (a hub, MLflow);   executor -> nobody;   everybody but executors -> DNS
"""

from __future__ import annotations

from rstar2_operator import names
from rstar2_operator.build.pod import Built, Manifest

DNS: Manifest = {"ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]}
"""Any address: where a cluster's DNS listens differs (a Service, a cache on the node)."""
ANYWHERE: Manifest = {}


def network(built: Built) -> list[Manifest]:
    """A deny-all policy for every pod of the job, and one policy a role that opens its flows."""
    name = built.name
    everyone = {"matchLabels": {names.MANAGED_BY: names.FIELD_MANAGER, names.JOB_LABEL: name}}

    def role(which: str) -> Manifest:
        return {"podSelector": {"matchLabels": names.labels(name, which)}}

    def to(which: str, port: int) -> Manifest:
        return {"to": [role(which)], "ports": [_port(port)]}

    def from_(which: str, port: int) -> Manifest:
        return {"from": [role(which)], "ports": [_port(port)]}

    flows: dict[str, tuple[list[Manifest], list[Manifest]]] = {
        "trainer": (
            [{"from": [role("trainer")]}],
            # The API server and MLflow can be at any address and port; what must not be reached from a trainer is
            # protected on its own side.
            [ANYWHERE],
        ),
        "prepare": ([], [ANYWHERE]),
        "report": ([], [ANYWHERE]),
        "rollout": ([from_("trainer", names.ENGINE_PORT)], [DNS, {"to": [role("rollout")]}]),
        "judge": (
            [from_("trainer", names.JUDGE_PORT)],
            [DNS, to("redis", names.REDIS_PORT), to("executor", names.EXECUTOR_PORT)],
        ),
        "executor": ([from_("judge", names.EXECUTOR_PORT)], []),
        "redis": ([from_("judge", names.REDIS_PORT)], []),
    }
    made = [_policy(f"{name}-deny", names.labels(name, "config"), everyone, [], [])]
    for which, (ingress, egress) in flows.items():
        labels = names.labels(name, which)
        made.append(_policy(f"{name}-{which}", labels, {"matchLabels": labels}, ingress, egress))
    return made


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
