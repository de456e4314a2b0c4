"""The pod that every role starts from: restricted, no account token, the job file and scratch space mounted.

A role adds its command, environment, mounts and devices; `patched` then lays the site's runtimePatches over it, which
reach only what they are allowed to. Tuning of libraries comes last: what a patch has set stays.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rstar2_operator import names
from rstar2_operator.settings import OperatorSettings
from rstar2_train.api.base import LocalReference, amount
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.pod_rules import devices
from rstar2_train.api.roles import Resources, Role, RuntimePatch

USER = 65532
"""Neither root nor anyone: the user of every pod, and the group of every volume."""

Manifest = dict[str, Any]
HEADLESS: Manifest = {"clusterIP": "None"}
"""Of a Service whose name gives the address of every pod."""
NO_SURGE: Manifest = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "25%"}}
"""Of a Deployment that fills its nodes: a new pod finds no accelerator, or no cores, while the old one holds them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContext:
    """What builders work from."""

    job: AgenticRLJob
    settings: OperatorSettings
    located: AgenticRLJob
    """The job with every source as a path inside the pods."""
    claims: tuple[str, ...]
    """Claims of its pvc:// sources."""
    manager: str = names.FIELD_MANAGER
    """Who looks after the objects: the operator, or, where it must leave them alone, whoever applied them."""

    @property
    def name(self) -> str:
        """The job's name."""
        return self.job.metadata.name

    def labels(self, role: str) -> dict[str, str]:
        """Labels of every object of a role."""
        return names.labels(self.name, role, manager=self.manager)


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """One container of a role."""

    name: str
    image: str
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    tuning: Mapping[str, str] = field(default_factory=dict)
    """Environment of libraries, which a patch may set otherwise."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Environment variable -> key of the job's Secret."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Environment variable -> field path of the pod."""
    env_from: Sequence[LocalReference | None] = ()
    """Secrets of the site whose every key becomes a variable; None is skipped."""
    ports: Mapping[str, int] = field(default_factory=dict)
    mounts: Sequence[Manifest] = ()
    resources: Manifest = field(default_factory=dict)
    probes: Manifest = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTemplate:
    """A role's pod before it becomes a template."""

    role: str
    containers: Sequence[Container]
    patched_as: Role | None = None
    """Role whose runtimePatches it takes; None: its own."""
    volumes: Sequence[Manifest] = ()
    account: str = ""
    """ServiceAccount with a token; empty: the one that may do nothing, without a token."""
    groups: Sequence[int] = ()
    """Further groups (devices)."""
    labels: Mapping[str, str] = field(default_factory=dict)
    extra: Manifest = field(default_factory=dict)
    """Further fields of the pod spec."""


def template(pod: PodTemplate, built: BuildContext) -> Manifest:
    """The pod template of a role, patches applied."""
    job = built.job
    spec: Manifest = {
        "serviceAccountName": pod.account or names.pods_account(built.name),
        "automountServiceAccountToken": bool(pod.account),
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
            **({"supplementalGroups": list(pod.groups)} if pod.groups else {}),
        },
        "containers": [_container(one, built) for one in pod.containers],
        "volumes": [{"name": "tmp", "emptyDir": {}}, *pod.volumes],
        **pod.extra,
    }
    if job.spec.priority_class_name:
        spec["priorityClassName"] = job.spec.priority_class_name
    for number, patch in enumerate(job.spec.runtime_patches):
        if (role := pod.patched_as or pod.role) in patch.roles:
            patched(spec, patch, role=role, prefix=f"site-{number}-", fixed=devices(job))
    for made, one in zip(spec["containers"], pod.containers, strict=True):
        tuning = [{"name": name, "value": value} for name, value in one.tuning.items()]
        made["env"] += added(tuning, made["env"], "name")
    labels = {**built.labels(pod.role), **pod.labels}
    return {"metadata": {"labels": labels}, "spec": spec}


def _container(one: Container, built: BuildContext) -> Manifest:
    secret = names.secrets(built.name)
    env: list[Manifest] = [{"name": "HOME", "value": "/tmp"}]
    env += [{"name": name, "value": value} for name, value in one.env.items()]
    env += [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}} for name, key in one.secrets.items()
    ]
    env += [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in one.fields.items()]
    made: Manifest = {
        "name": one.name,
        "image": one.image,
        "imagePullPolicy": built.settings.image_pull_policy,
        "command": list(one.command),
        "env": env,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *one.mounts],
        **one.probes,
    }
    if one.ports:
        made["ports"] = [{"name": name, "containerPort": port} for name, port in one.ports.items()]
    if froms := [{"secretRef": {"name": secret.name}} for secret in one.env_from if secret is not None]:
        made["envFrom"] = froms
    if one.resources:
        made["resources"] = one.resources
    return made


def patched(spec: Manifest, patch: RuntimePatch, *, role: Role, prefix: str, fixed: Collection[str] = ()) -> None:
    """Lay a runtime patch over a pod spec, in place; it never replaces what the builder set.

    `prefix` goes before the names of its volumes, so that they cannot meet the builder's or another patch's; `fixed`:
    resources that it cannot change. Executors take placement and pull secrets only. What it asks for beyond that is
    refused before (api/pod_rules.py), and so are patches that contradict one another.
    """
    asked = patch.model_dump(mode="json", exclude_none=True)
    if patch.node_selector:
        spec["nodeSelector"] = {**patch.node_selector, **spec.get("nodeSelector", {})}
    if patch.tolerations:
        spec["tolerations"] = [*spec.get("tolerations", []), *asked["tolerations"]]
    if patch.image_pull_secrets:
        before = spec.get("imagePullSecrets", [])
        spec["imagePullSecrets"] = [*before, *added(asked["imagePullSecrets"], before, "name")]
    if role == "executor":
        return
    if patch.affinity is not None:
        spec["affinity"] = asked["affinity"]
    for one in (*asked["volumes"], *asked["volumeMounts"]):
        one["name"] = prefix + one["name"]
    spec["volumes"] += asked["volumes"]
    for container in spec["containers"]:
        container["env"] += added(asked["env"], container["env"], "name")
        container["volumeMounts"] += added(asked["volumeMounts"], container["volumeMounts"], "mountPath")
        if patch.resources is not None:
            over = {
                kind: {name: amount for name, amount in amounts.items() if name not in fixed}
                for kind, amounts in resources(patch.resources).items()
            }
            container["resources"] = merge(container.get("resources", {}), over)


def added(more: Sequence[Manifest], to: Sequence[Manifest], key: str) -> list[Manifest]:
    """What of `more` is not in `to` yet, by the value under `key`."""
    known = {one[key] for one in to}
    return [one for one in more if one[key] not in known]


def resources(wanted: Resources) -> Manifest:
    """Requests and limits as Kubernetes takes them."""
    return {key: dict(value) for key, value in (("requests", wanted.requests), ("limits", wanted.limits)) if value}


def merge(base: Manifest, over: Manifest) -> Manifest:
    """Resources, the second over the first.

    Where only one of request and limit is asked for, and a default contradicts it, the default gives way.
    """
    made: dict[str, dict[str, Any]] = {
        key: {**base.get(key, {}), **over.get(key, {})} for key in ("requests", "limits") if key in base or key in over
    }
    requests, limits = made.get("requests", {}), made.get("limits", {})
    for name in requests.keys() & limits.keys():
        if amount(requests[name]) > amount(limits[name]):
            if name in over.get("requests", {}):
                limits[name] = requests[name]
            else:
                requests[name] = limits[name]
    return made


def image(chosen: str | None, default: str, built: BuildContext) -> str:
    """The image of a role: the job's own as it is, else the site's, behind the site's registry prefix."""
    if chosen:
        return chosen
    prefix = built.job.spec.registry_prefix
    return f"{prefix.rstrip('/')}/{default}" if prefix else default


def job_file(built: BuildContext) -> tuple[Manifest, Manifest]:
    """Volume and mount of the job file."""
    folder, _, _ = names.JOB_FILE.rpartition("/")
    volume = {"name": "job", "configMap": {"name": names.job_file(built.name)}}
    return volume, {"name": "job", "mountPath": folder, "readOnly": True}


def storage(built: BuildContext) -> tuple[list[Manifest], list[Manifest]]:
    """Volumes and mounts of the job's storage and of the claims that its sources name."""
    claim = built.job.spec.storage.claim_name or names.claim(built.name)
    volumes: list[Manifest] = [{"name": "state", "persistentVolumeClaim": {"claimName": claim}}]
    mounts: list[Manifest] = [{"name": "state", "mountPath": names.STORAGE_MOUNT}]
    for number, other in enumerate(built.claims):
        # A claim is one volume of a pod, or the kubelet waits for the second one for ever.
        name = "state" if other == claim else f"claim-{number}"
        if other != claim:
            volumes.append({"name": name, "persistentVolumeClaim": {"claimName": other, "readOnly": True}})
        mounts.append({"name": name, "mountPath": f"{names.CLAIM_MOUNT}/{other}", "readOnly": True})
    return volumes, mounts


def shared_memory(size: str) -> tuple[Manifest, Manifest]:
    """Volume and mount of /dev/shm: 64 MiB, the container runtime's default, is too small for tensors."""
    volume = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}
    return volume, {"name": "shm", "mountPath": "/dev/shm"}


def service(name: str, labels: Mapping[str, str], port_name: str, port: int, **spec: Any) -> Manifest:
    """A Service in front of the pods with these labels. `spec`: further fields of it, such as HEADLESS."""
    ports = [{"name": port_name, "port": port}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": dict(labels)},
        "spec": {**spec, "selector": dict(labels), "ports": ports},
    }


def deployment(
    name: str, labels: Mapping[str, str], replicas: int, pod: Manifest, *, deadline: int, **spec: Any
) -> Manifest:
    """A Deployment of a pod's template.

    `deadline`: seconds after which one that does not come up is told as such; `spec`: further fields, such as a
    strategy.
    """
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            **spec,
            "progressDeadlineSeconds": deadline,
            "template": pod,
        },
    }
