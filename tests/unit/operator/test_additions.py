"""Edits of a person to the objects of a running stage, with managedFields: each of them is found, and undone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rstar2_operator import names
from rstar2_operator.cached_object import strip_fields
from rstar2_operator.drift import drifted, replacement
from rstar2_operator.observed import ObservedJob
from tests.support.memory_api import copied
from tests.support.simulated_cluster import manifest
from tests.unit.operator.test_drift import everything

Body = dict[str, Any]
KEYS = {
    **dict.fromkeys(("containers", "initContainers", "volumes", "env"), ("name",)),
    "ports": ("containerPort", "port", "protocol"),
    "volumeMounts": ("mountPath",),
}
"""List that the API server merges -> members that identify an entry. Other lists are atomic."""
ATOMIC = frozenset({"selector", "podSelector"})


def leaves(value: Any, field: str = "", path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield (path, value) of each field that managedFields has."""
    if isinstance(value, list) and field in KEYS:
        for entry in value:
            key = json.dumps({name: entry[name] for name in KEYS[field] if name in entry})
            yield from leaves(entry, "", (*path, f"k:{key}"))
    elif isinstance(value, dict) and value and field not in ATOMIC:
        for name, inner in value.items():
            yield from leaves(inner, name, (*path, f"f:{name}"))
    else:
        yield path, str(value)


def managed(manager: str, paths: Iterator[tuple[str, ...]]) -> Body:
    """Return the entry of a client in managedFields."""
    fields: Body = {}
    for path in paths:
        node = fields
        for key in path:
            node = node.setdefault(key, {})
    return {"manager": manager, "operation": "Update", "fieldsV1": fields}


def edited(body: Body, change: Callable[[Body], Any]) -> Body:
    """Return an object after the change of a person, who owns the new and the changed fields."""
    live = copied(body)
    change(live)
    before, after = dict(leaves(parts(body))), dict(leaves(parts(live)))
    own = (path for path, value in before.items() if after.get(path, value) == value)
    others = (path for path, value in after.items() if before.get(path) != value)
    live["metadata"]["managedFields"] = [managed(names.FIELD_MANAGER, own), managed("kubectl-edit", others)]
    return live


def parts(body: Body) -> Body:
    """Return the parts that the operator manages."""
    return {part: body[part] for part in body if part not in ("apiVersion", "kind", "metadata")}


def template(body: Body) -> Body:
    return body["spec"]["template"]["metadata"]  # type: ignore[no-any-return]


def pod(body: Body) -> Body:
    return body["spec"]["template"]["spec"]  # type: ignore[no-any-return]


def container(body: Body) -> Body:
    return pod(body)["containers"][0]  # type: ignore[no-any-return]


EXECUTOR = "Deployment", "demo-executor"
JUDGE = "Deployment", "demo-judge"
REDIS = "StatefulSet", "demo-redis"
NETWORK = "NetworkPolicy", "demo-executor"
BUDGET = "PodDisruptionBudget", "demo-trainer"
SERVICE = "Service", "demo-judge"
ACCOUNT = "ServiceAccount", "demo-pods"
HOST = {"name": "root", "hostPath": {"path": "/"}}
SSH = {"name": "ssh", "port": 22, "protocol": "TCP"}
SECRETS = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
EDITS: dict[str, tuple[tuple[str, str], Callable[[Body], Any]]] = {
    "volume": (EXECUTOR, lambda body: pod(body)["volumes"].append(HOST)),
    "mount": (EXECUTOR, lambda body: container(body)["volumeMounts"].append({"name": "tmp", "mountPath": "/x"})),
    "size of an emptyDir": (JUDGE, lambda body: pod(body)["volumes"][0].update(emptyDir={"sizeLimit": "1Mi"})),
    "container": (EXECUTOR, lambda body: pod(body)["containers"].append({"name": "spy", "image": "spy"})),
    "init container": (EXECUTOR, lambda body: pod(body).update(initContainers=[{"name": "spy", "image": "spy"}])),
    "annotation": (EXECUTOR, lambda body: template(body).update(annotations={"inject": "yes"})),
    "label": (EXECUTOR, lambda body: template(body)["labels"].update(mesh="on")),
    "port": (JUDGE, lambda body: container(body)["ports"].append({"containerPort": 22, "protocol": "TCP"})),
    "host port": (JUDGE, lambda body: container(body)["ports"][0].update(hostPort=80)),
    "toleration": (EXECUTOR, lambda body: pod(body).update(tolerations=[{"operator": "Exists"}])),
    "node selector": (EXECUTOR, lambda body: pod(body).update(nodeSelector={"disk": "fast"})),
    "privileged": (EXECUTOR, lambda body: container(body)["securityContext"].update(privileged=True)),
    "capability": (EXECUTOR, lambda body: container(body)["securityContext"]["capabilities"].update(add=["SYS_ADMIN"])),
    "escalation": (EXECUTOR, lambda body: container(body)["securityContext"].update(allowPrivilegeEscalation=True)),
    "no escalation": (EXECUTOR, lambda body: container(body)["securityContext"].pop("allowPrivilegeEscalation")),
    "root": (EXECUTOR, lambda body: pod(body)["securityContext"].update(runAsNonRoot=False, runAsUser=0)),
    "no security context": (EXECUTOR, lambda body: container(body).pop("securityContext")),
    "host network": (EXECUTOR, lambda body: pod(body).update(hostNetwork=True)),
    "token": (EXECUTOR, lambda body: pod(body).update(automountServiceAccountToken=True)),
    "default of the token": (EXECUTOR, lambda body: pod(body).pop("automountServiceAccountToken")),
    "account": (EXECUTOR, lambda body: pod(body).update(serviceAccountName="admin")),
    "token of an account": (ACCOUNT, lambda body: body.update(automountServiceAccountToken=True)),
    "default of an account": (ACCOUNT, lambda body: body.pop("automountServiceAccountToken")),
    "runtime class": (EXECUTOR, lambda body: pod(body).pop("runtimeClassName")),
    "variable": (EXECUTOR, lambda body: container(body).update(env=[{"name": "X", "value": "1"}])),
    "value": (JUDGE, lambda body: container(body)["env"][0].update(value="other")),
    "variables": (EXECUTOR, lambda body: container(body).update(envFrom=[{"secretRef": {"name": "x"}}])),
    "request": (EXECUTOR, lambda body: container(body)["resources"].update(requests={"amd.com/gpu": "1"})),
    "no limits": (EXECUTOR, lambda body: container(body)["resources"].pop("limits")),
    "probe": (JUDGE, lambda body: container(body).update(startupProbe={"exec": {"command": ["false"]}})),
    "egress": (NETWORK, lambda body: body["spec"]["egress"].append({})),
    "policy types": (NETWORK, lambda body: body["spec"].update(policyTypes=["Ingress"])),
    "selector of a policy": (NETWORK, lambda body: body["spec"]["podSelector"]["matchLabels"].update(mesh="on")),
    "budget": (BUDGET, lambda body: body["spec"].update(minAvailable=0)),
    "eviction policy": (BUDGET, lambda body: body["spec"].update(unhealthyPodEvictionPolicy="IfHealthyBudget")),
    "key": (("ConfigMap", "demo-job"), lambda body: body["data"].update(other="x")),
    "strategy": (JUDGE, lambda body: body["spec"].update(strategy={"type": "Recreate"})),
    "paused": (JUDGE, lambda body: body["spec"].update(paused=True)),
    "minReadySeconds": (JUDGE, lambda body: body["spec"].update(minReadySeconds=3600)),
    "updateStrategy": (REDIS, lambda body: body["spec"].update(updateStrategy={"type": "OnDelete"})),
    "type of a Service": (SERVICE, lambda body: body["spec"].update(type="NodePort")),
    "port of a Service": (SERVICE, lambda body: body["spec"]["ports"].append(SSH)),
    "selector of a Service": (SERVICE, lambda body: body["spec"]["selector"].update(mesh="on")),
    "right": (("Role", "demo-trainer"), lambda body: body["rules"].append(SECRETS)),
    "subject": (("RoleBinding", "demo-trainer"), lambda body: body["subjects"].append({"name": "default"})),
}


@pytest.mark.parametrize("edit", EDITS)
def test_edit_of_an_object_is_undone(edit: str) -> None:
    """Added, changed and removed fields, in all parts of a pod template, and of a policy, a right or a Service."""
    (kind, name), change = EDITS[edit]
    made = everything()
    body = made[kind, name]
    live = strip_fields(kind, edited(body, change))
    observed = ObservedJob(manifest("g"), {**made, (kind, name): live})
    assert drifted(made.values(), observed) == [(body, live)]
    for operation in replacement(live, body):
        live[operation["path"].strip("/")] = operation["value"]
    assert parts(live) == parts(body)
