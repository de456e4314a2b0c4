"""NetworkPolicies: deny all traffic of the job's pods, then allow the flows of the design.

trainer ──> any address (engines, judge, API server, MLflow, MCP servers); ingress only from trainers (Ray, gloo, RCCL)
judge ──> redis, executor, DNS          prepare, report ──> any address (hub, MLflow)
agent ──> pod 0 of the trainer (endpoint of its programs), DNS
rollout, teacher, executor, redis, environment ──> no egress
With spec.storage.url also: rollout, teacher ──> DNS and the ports of the servers of its buckets, at any address
With rollout.weightTransport Collective also, on any port: trainer <──> rollout (the group that carries weights)
"""

from __future__ import annotations

from urllib.parse import urlsplit

from rstar2_operator import names
from rstar2_operator.builders.environment import own_environment
from rstar2_operator.builders.manifest import Manifest
from rstar2_operator.builders.pod import BuildContext
from rstar2_train.api.sources import BUCKETS
from rstar2_train.utils import ports

DNS: Manifest = {"ports": [{"protocol": protocol, "port": port} for port in (53, 5353) for protocol in ("UDP", "TCP")]}
"""Any address, because clusters differ in where DNS listens (a Service, a cache on the node). 5353: of OpenShift."""
ANYWHERE: Manifest = {}


Flows = dict[str, tuple[list[Manifest], list[Manifest]]]
"""Role -> ingress and egress rules."""


def network(context: BuildContext) -> list[Manifest]:
    """Return a deny-all policy for all pods of the job, and one policy per role that allows its flows."""
    # The members of a group (gloo, NCCL, RCCL) connect to each other, on ports that the system chooses.
    carries_weights = context.job.spec.rollout.weight_transport == "Collective"
    flows: Flows = {
        "trainer": (
            [{"from": [_pods(context, role) for role in (["trainer", "rollout"] if carries_weights else ["trainer"])]}],
            # The API server and MLflow may have any address and port. Roles that a trainer must not reach have
            # ingress rules of their own.
            [ANYWHERE],
        ),
        "prepare": ([], [ANYWHERE]),
        "report": ([], [ANYWHERE]),
        "rollout": (
            [
                {"from": [_pods(context, "trainer")]}
                if carries_weights
                else _from(context, "trainer", names.ENGINE_PORT)
            ],
            [{"to": [_pods(context, "trainer")]}]
            if carries_weights
            else _to_bucket(context, context.job.spec.model.source),
        ),
    }
    if context.job.spec.teacher is not None:
        teachers = [source for stage in context.job.spec.stages if (source := context.job.served_teacher(stage))]
        flows["teacher"] = ([_from(context, "trainer", names.ENGINE_PORT)], _to_bucket(context, *teachers))
    if context.job.spec.needs_judge:
        flows |= _judge_flows(context, caller="trainer")
    if context.job.spec.agent is not None:
        flows["trainer"][0].append(_from(context, "agent", ports.AGENT))
        flows["agent"] = ([], [DNS, _to(context, "trainer", ports.AGENT)])
    if own_environment(context) is not None:
        flows["environment"] = ([_from(context, "trainer", names.ENVIRONMENT_PORT)], [])
    return _policies(context, flows)


def _to_bucket(context: BuildContext, *models: str) -> list[Manifest]:
    """Return the egress rules of engines, which read state and models from buckets; none for a claim.

    A policy knows no names, so a server has any address. A proxy, the server of a pod's identity, and a server of S3
    that only the Secret names, have any port.
    """
    spec = context.job.spec
    if not spec.storage.url:
        return []
    schemes = {url.partition("://")[0] for url in (spec.storage.url, *models) if url.startswith(BUCKETS)}
    is_unknown = spec.storage.endpoint_url is None and "s3" in schemes
    if is_unknown or spec.secret_refs.proxy is not None or spec.secret_refs.storage is None:
        return [ANYWHERE]
    server = urlsplit(spec.storage.endpoint_url or "")
    numbers = {
        (server.port or (80 if server.scheme == "http" else 443)) if scheme == "s3" else 443 for scheme in schemes
    }
    return [DNS, {"ports": [_port(number) for number in sorted(numbers)]}]


def serving_network(context: BuildContext) -> list[Manifest]:
    """Return the policies of a served model: endpoint -> rollout, judge, MCP servers; judge -> redis, executor.

    Only `kubectl port-forward`, which connects from the pod's own node, reaches the endpoint.
    """
    flows: Flows = {
        "endpoint": (
            [],
            # An MCP server may have any address and port.
            [ANYWHERE]
            if context.job.spec.mcp_servers
            else [DNS, _to(context, "rollout", names.ENGINE_PORT), _to(context, "judge", names.JUDGE_PORT)],
        ),
        "rollout": ([_from(context, "endpoint", names.ENGINE_PORT)], []),
        **_judge_flows(context, caller="endpoint"),
    }
    return _policies(context, flows)


def _judge_flows(context: BuildContext, *, caller: str) -> Flows:
    """Return the flows of the judge, whose only client is `caller`, and of the roles behind it."""
    return {
        "judge": (
            [_from(context, caller, names.JUDGE_PORT)],
            [DNS, _to(context, "redis", names.REDIS_PORT), _to(context, "executor", names.EXECUTOR_PORT)],
        ),
        "executor": ([_from(context, "judge", names.EXECUTOR_PORT)], []),
        "redis": ([_from(context, "judge", names.REDIS_PORT)], []),
    }


def _policies(context: BuildContext, flows: Flows) -> list[Manifest]:
    all_pods = {"matchLabels": {names.MANAGED_BY: context.manager, names.JOB_LABEL: context.name}}
    policies = [_policy(f"{context.name}-deny", context.labels("config"), all_pods, [], [])]
    for role, (ingress, egress) in flows.items():
        labels = context.labels(role)
        policies.append(_policy(f"{context.name}-{role}", labels, {"matchLabels": labels}, ingress, egress))
    return policies


def _pods(context: BuildContext, role: str) -> Manifest:
    return {"podSelector": {"matchLabels": context.labels(role)}}


def _to(context: BuildContext, role: str, port: int) -> Manifest:
    return {"to": [_pods(context, role)], "ports": [_port(port)]}


def _from(context: BuildContext, role: str, port: int) -> Manifest:
    return {"from": [_pods(context, role)], "ports": [_port(port)]}


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
