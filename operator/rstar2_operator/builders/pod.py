"""The pod that every role starts from: restricted, without an account token, with scratch space.

A role adds its command, environment, mounts and devices. `patch_pod` then applies the job's runtimePatches, within
their limits. Tuning variables of libraries come last, and do not override a patch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rstar2_operator import names
from rstar2_operator.decide.kueue import Placement
from rstar2_operator.settings import OperatorSettings
from rstar2_train.api.base import LocalReference, amount
from rstar2_train.api.job import AgenticRLJob, CAReference
from rstar2_train.api.pod_rules import devices
from rstar2_train.api.roles import Resources, Role, RuntimePatch

Manifest = dict[str, Any]
WITHOUT_INJECTION: tuple[dict[str, str], dict[str, str]] = (
    {"sidecar.istio.io/inject": "false", "admission.datadoghq.com/enabled": "false"},
    {"linkerd.io/inject": "disabled", "vault.hashicorp.com/agent-inject": "false"},
)
"""Labels and annotations by which injectors leave a pod alone, unless a patch sets them.

A proxy that never ends keeps the pod of a batch Job running, and an executor must have no other container.
"""
SHARED_WITH_HELPERS = (
    *("labels", "annotations", "image_pull_secrets", "tolerations", "node_selector"),
    *("env", "env_from", "volumes", "volume_mounts", "service_account_name"),
)
"""Fields by which patches of `trainer` reach the Jobs for preparation and report: not gangs, networks and devices."""
NOT_SHARED_LABELS = ("scheduling.x-k8s.io/", "scheduling.k8s.io/", "pod-group.scheduling.sigs.k8s.io", "k8s.v1.cni")
"""Prefixes of labels and annotations of gangs and networks, which are for the pods of an attempt."""
HEADLESS: Manifest = {"clusterIP": "None"}
"""Spec of a Service whose DNS name resolves to every pod."""
NO_SURGE: Manifest = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "25%"}}
"""Rollout strategy of a Deployment that fills its nodes: an old pod must free its devices before a new one starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContext:
    """Input of all builders."""

    job: AgenticRLJob
    """The job, with the site's defaults."""
    settings: OperatorSettings
    """Settings of the site."""
    resolved: AgenticRLJob
    """The job with every source as a path inside the pods."""
    claims: tuple[str, ...]
    """Claims of the job's pvc:// sources."""
    placements: Mapping[str, Placement] = field(default_factory=dict)
    """Role -> nodes that Kueue has assigned."""
    priority: int | None = None
    """Value of the job's PriorityClass."""
    manager: str = names.FIELD_MANAGER
    """managed-by label: the operator, or the name of the command whose output a person applies."""

    @property
    def name(self) -> str:
        """The job's name."""
        return self.job.metadata.name

    def labels(self, role: str) -> dict[str, str]:
        """Return the labels of every object of a role."""
        return names.labels(self.name, role, manager=self.manager)


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """One container of a role."""

    name: str
    image: str
    command: Sequence[str]
    """Empty: the image's own."""
    env: Mapping[str, str] = field(default_factory=dict)
    tuning: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of libraries, which a patch may override."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Environment variable -> key of the job's Secret."""
    site_secrets: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Environment variable -> name and key of a Secret of the site."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Environment variable -> field path of the pod."""
    env_from: Sequence[LocalReference | None] = ()
    """Secrets of the site whose keys become environment variables; None is skipped."""
    ports: Mapping[str, int] = field(default_factory=dict)
    mounts: Sequence[Manifest] = ()
    resources: Manifest = field(default_factory=dict)
    probes: Manifest = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTemplate:
    """The pod of a role, before patches."""

    role: str
    containers: Sequence[Container]
    patched_as: Role | None = None
    """Role whose runtimePatches apply; None: its own."""
    helper: Role | None = None
    """prepare or report: its own patches apply, and those of the trainer in part."""
    opts_out: bool = False
    """Whether injectors of sidecars leave the pod alone."""
    volumes: Sequence[Manifest] = ()
    account: str = ""
    """ServiceAccount, with its token; empty: the account without rights, without a token."""
    groups: Sequence[int] = ()
    """Supplemental groups, for devices."""
    labels: Mapping[str, str] = field(default_factory=dict)
    extra: Manifest = field(default_factory=dict)
    """Further fields of the pod spec."""


def template(pod: PodTemplate, context: BuildContext) -> Manifest:
    """Return the pod template of a role, with patches."""
    job, user = context.job, context.settings.pod_user
    spec: Manifest = {
        "serviceAccountName": pod.account or names.pods_account(context.name),
        "automountServiceAccountToken": bool(pod.account),
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            **dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup") if user else (), user),
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
            **({"supplementalGroups": list(pod.groups)} if pod.groups else {}),
        },
        "containers": [_container(container, context) for container in pod.containers],
        "volumes": [{"name": "tmp", "emptyDir": {}}, *pod.volumes],
        **pod.extra,
    }
    if job.spec.priority_class_name:
        spec["priorityClassName"] = job.spec.priority_class_name
    role = pod.patched_as or pod.role
    if job.spec.secret_refs.ca is not None and role == "trainer":
        _trust(spec, job.spec.secret_refs.ca)
    own = {**context.labels(pod.role), **pod.labels}
    metadata: Manifest = {"labels": own}
    site = context.settings.job_pods
    for number, patch in [*_patches(job, role, pod.helper), *([(-1, site)] if site is not None else [])]:
        patch_metadata(metadata, patch)
        patch_pod(spec, patch, role=role, prefix=f"site-{number}-", fixed=devices(job), labels=own)
    if pod.opts_out:
        labels, annotations = WITHOUT_INJECTION
        metadata["labels"] = {**labels, **metadata["labels"]}
        metadata["annotations"] = {**annotations, **metadata.get("annotations", {})}
    if (placement := context.placements.get(pod.labels.get(names.ROLE_LABEL, pod.role))) is not None:
        spec["nodeSelector"] = {**spec.get("nodeSelector", {}), **placement.node_selector}
        spec["tolerations"] = [*spec.get("tolerations", []), *placement.tolerations]
        metadata["labels"] = {**placement.labels, **metadata["labels"]}
        if placement.annotations:
            metadata["annotations"] = {**metadata.get("annotations", {}), **placement.annotations}
        if placement.gates:
            gates = [{"name": name} for name in placement.gates]
            spec["schedulingGates"] = [*spec.get("schedulingGates", []), *gates]
    for body, container in zip(spec["containers"], pod.containers, strict=True):
        tuning = [{"name": name, "value": value} for name, value in container.tuning.items()]
        body["env"] += missing(tuning, body["env"], "name")
    return {"metadata": metadata, "spec": spec}


def _patches(job: AgenticRLJob, role: str, helper: Role | None) -> list[tuple[int, RuntimePatch]]:
    """Return a pod's patches with their numbers; those of a helper's own role first, because earlier values win."""
    numbered = list(enumerate(job.spec.runtime_patches))
    if helper is None:
        return [(number, patch) for number, patch in numbered if role in patch.roles]
    own = [(number, patch) for number, patch in numbered if helper in patch.roles]
    has_account = any(patch.service_account_name for _, patch in own)
    others = [(number, patch) for number, patch in numbered if role in patch.roles and helper not in patch.roles]
    return own + [(number, _shared(patch, account=not has_account)) for number, patch in others]


def _shared(patch: RuntimePatch, *, account: bool) -> RuntimePatch:
    """Return the part of a trainer's patch that its helpers share."""
    fields = {name: getattr(patch, name) for name in SHARED_WITH_HELPERS if name != "service_account_name" or account}
    for kind in ("labels", "annotations"):
        fields[kind] = {key: value for key, value in fields[kind].items() if not key.startswith(NOT_SHARED_LABELS)}
    return RuntimePatch.model_construct(**{**RuntimePatch(manager=patch.manager, roles=patch.roles).__dict__, **fields})


def _container(container: Container, context: BuildContext) -> Manifest:
    secret = names.secrets(context.name)
    env: list[Manifest] = [{"name": "HOME", "value": "/tmp"}]
    if not context.settings.pod_user:
        env.append({"name": "USER", "value": "rstar2"})  # libraries fail if a user has no name
    env += [{"name": name, "value": value} for name, value in container.env.items()]
    env += [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
        for name, key in container.secrets.items()
    ]
    env += [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": site, "key": key}}}
        for name, (site, key) in container.site_secrets.items()
    ]
    env += [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in container.fields.items()]
    body: Manifest = {
        "name": container.name,
        "image": container.image,
        "imagePullPolicy": context.settings.image_pull_policy,
        "env": env,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *container.mounts],
        **container.probes,
    }
    if container.command:
        body["command"] = list(container.command)
    if container.ports:
        body["ports"] = [{"name": name, "containerPort": port} for name, port in container.ports.items()]
    if env_from := [{"secretRef": {"name": source.name}} for source in container.env_from if source is not None]:
        body["envFrom"] = env_from
    if container.resources:
        body["resources"] = container.resources
    return body


def _trust(spec: Manifest, bundle: CAReference) -> None:
    """Replace the certificate authorities of a pod's containers by those of a Secret, in place."""
    items = [{"key": bundle.key, "path": "ca.crt"}]
    spec["volumes"].append({"name": "ca", "secret": {"secretName": bundle.name, "items": items}})
    for container in spec["containers"]:
        container["env"] += [{"name": name, "value": f"{names.CA_MOUNT}/ca.crt"} for name in names.CA_VARIABLES]
        container["volumeMounts"].append({"name": "ca", "mountPath": names.CA_MOUNT, "readOnly": True})


def patch_metadata(metadata: Manifest, patch: RuntimePatch) -> None:
    """Add the labels and annotations of a runtime patch, in place; those of the builder win."""
    metadata["labels"] = {**patch.labels, **metadata["labels"]}
    if patch.annotations:
        metadata["annotations"] = {**patch.annotations, **metadata.get("annotations", {})}


def patch_pod(
    spec: Manifest,
    patch: RuntimePatch,
    *,
    role: str,
    prefix: str,
    fixed: Collection[str] = (),
    labels: Mapping[str, str] | None = None,
) -> None:
    """Apply a runtime patch to a pod spec, in place. It replaces no value of the builder but the ServiceAccount.

    `prefix`: of the patch's volume names, which keeps them distinct from those of the builder and of other patches;
    `fixed`: resources that the patch cannot change; `labels`: of the role's pods. Executors accept only placement,
    labels and pull secrets. api/pod_rules.py has rejected every other field for them, and contradictions between
    patches.
    """
    values = patch.model_dump(mode="json", exclude_none=True)
    if patch.node_selector:
        spec["nodeSelector"] = {**patch.node_selector, **spec.get("nodeSelector", {})}
    if patch.tolerations:
        spec["tolerations"] = [*spec.get("tolerations", []), *values["tolerations"]]
    if patch.image_pull_secrets:
        before = spec.get("imagePullSecrets", [])
        spec["imagePullSecrets"] = [*before, *missing(values["imagePullSecrets"], before, "name")]
    if patch.topology_spread_constraints:
        same = {"labelSelector": {"matchLabels": dict(labels or {})}}
        spread = [{**constraint, **same} for constraint in values["topologySpreadConstraints"]]
        spec["topologySpreadConstraints"] = [*spec.get("topologySpreadConstraints", []), *spread]
    if patch.scheduler_name:
        spec["schedulerName"] = patch.scheduler_name
    if patch.scheduling_gates:
        before = spec.get("schedulingGates", [])
        spec["schedulingGates"] = [*before, *missing(values["schedulingGates"], before, "name")]
    if role == "executor":
        return
    if patch.affinity is not None:
        spec["affinity"] = values["affinity"]
    if patch.service_account_name:
        spec["serviceAccountName"] = patch.service_account_name
    if patch.resource_claims:
        spec["resourceClaims"] = [*spec.get("resourceClaims", []), *values["resourceClaims"]]
    for named in (*values["volumes"], *values["volumeMounts"]):
        named["name"] = prefix + named["name"]
    spec["volumes"] += values["volumes"]
    for container in spec["containers"]:
        container["env"] += missing(values["env"], container["env"], "name")
        if patch.env_from:
            container["envFrom"] = [*container.get("envFrom", []), *values["envFrom"]]
        container["volumeMounts"] += missing(values["volumeMounts"], container["volumeMounts"], "mountPath")
        if patch.resources is not None:
            overlay = {
                kind: {name: amount for name, amount in amounts.items() if name not in fixed}
                for kind, amounts in resources(patch.resources).items()
            }
            container["resources"] = merge(container.get("resources", {}), overlay)
        if patch.resource_claims:
            claims = [{"name": claim.name} for claim in patch.resource_claims]
            before = container.get("resources", {})
            container["resources"] = {**before, "claims": [*before.get("claims", []), *claims]}


def server_tokens(job: AgenticRLJob) -> dict[str, tuple[str, str]]:
    """Return variable -> Secret and key of the tokens of the job's MCP servers."""
    servers = ((server.token_variable, server.secret_ref) for server in job.spec.mcp_servers)
    return {variable: (ref.name, ref.key) for variable, ref in servers if ref is not None}


def missing(entries: Sequence[Manifest], existing: Sequence[Manifest], key: str) -> list[Manifest]:
    """Return the entries whose value under `key` no existing entry has."""
    known = {entry[key] for entry in existing}
    return [entry for entry in entries if entry[key] not in known]


def resources(spec: Resources) -> Manifest:
    """Return requests and limits as a container has them."""
    return {key: dict(value) for key, value in (("requests", spec.requests), ("limits", spec.limits)) if value}


def merge(base: Manifest, overlay: Manifest) -> Manifest:
    """Return the resources of `overlay` over those of `base`.

    If the overlay sets only the request or only the limit, and the base contradicts it, the other one is adapted.
    """
    merged: dict[str, dict[str, Any]] = {
        key: {**base.get(key, {}), **overlay.get(key, {})}
        for key in ("requests", "limits")
        if key in base or key in overlay
    }
    requests, limits = merged.get("requests", {}), merged.get("limits", {})
    for name in requests.keys() & limits.keys():
        if amount(requests[name]) > amount(limits[name]):
            if name in overlay.get("requests", {}):
                limits[name] = requests[name]
            else:
                requests[name] = limits[name]
    claims = [*base.get("claims", ()), *overlay.get("claims", ())]
    return {**base, **merged, **({"claims": claims} if claims else {})}


def image(own: str | None, default: str, context: BuildContext) -> str:
    """Return the image of a role: the job's own unchanged, or the site's with the job's registryPrefix."""
    if own:
        return own
    prefix = context.job.spec.registry_prefix or context.settings.registry_prefix
    return f"{prefix.rstrip('/')}/{default}" if prefix else default


def job_file(context: BuildContext) -> tuple[Manifest, Manifest]:
    """Return volume and mount of the job file."""
    folder, _, _ = names.JOB_FILE.rpartition("/")
    volume = {"name": "job", "configMap": {"name": names.job_file(context.name)}}
    return volume, {"name": "job", "mountPath": folder, "readOnly": True}


def storage(context: BuildContext) -> tuple[list[Manifest], list[Manifest]]:
    """Return volumes and mounts of the job's storage and of the claims of its sources."""
    claim = context.job.spec.storage.claim_name or names.claim(context.name)
    volumes: list[Manifest] = [{"name": "state", "persistentVolumeClaim": {"claimName": claim}}]
    mounts: list[Manifest] = [{"name": "state", "mountPath": names.STORAGE_MOUNT}]
    for number, other in enumerate(context.claims):
        # A claim must be only one volume of a pod: the kubelet would wait for the second one indefinitely.
        name = "state" if other == claim else f"claim-{number}"
        if other != claim:
            volumes.append({"name": name, "persistentVolumeClaim": {"claimName": other, "readOnly": True}})
        mounts.append({"name": name, "mountPath": f"{names.CLAIM_MOUNT}/{other}", "readOnly": True})
    return volumes, mounts


def shared_memory(size: str) -> tuple[Manifest, Manifest]:
    """Return volume and mount of /dev/shm. The container runtime's default of 64 MiB is too small for tensors."""
    volume = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}
    return volume, {"name": "shm", "mountPath": "/dev/shm"}


def service(name: str, labels: Mapping[str, str], port_name: str, port: int, **spec: Any) -> Manifest:
    """Return a Service for the pods with these labels. `spec`: further fields, such as HEADLESS."""
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
    """Return a Deployment.

    `deadline`: seconds until a rollout without progress counts as failed; `spec`: further fields, such as a strategy.
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
