"""The pod that every role starts from: restricted, without an account token, with scratch space.

A role adds its command, environment, mounts and devices. `patches.py` then applies the job's runtimePatches. Tuning
variables of libraries come last, and do not override a patch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rstar2_operator import names
from rstar2_operator.builders.manifest import Manifest, missing
from rstar2_operator.builders.patches import patch_metadata, patch_pod, patches_of
from rstar2_operator.decide.kueue import Placement
from rstar2_operator.settings import OperatorSettings
from rstar2_train.api.base import LocalReference
from rstar2_train.api.job import AgenticRLJob, CAReference
from rstar2_train.api.pod_rules import devices
from rstar2_train.api.roles import Role

WITHOUT_INJECTION: tuple[dict[str, str], dict[str, str]] = (
    {"sidecar.istio.io/inject": "false", "admission.datadoghq.com/enabled": "false"},
    {"linkerd.io/inject": "disabled", "vault.hashicorp.com/agent-inject": "false"},
)
"""Labels and annotations by which injectors leave a pod alone, unless a patch sets them.

A proxy that never ends keeps the pod of a batch Job running, and an executor must have no other container.
"""
CACHE = "state"
"""Volume of the job's storage: its claim or, with spec.storage.url, a cache on the disk of the pod's node."""
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
    kept_lengths: Mapping[str, int] = field(default_factory=dict)
    """Role -> tokens of the longest sequence that its engines must at least take."""
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
    uses_bucket = role in ("rollout", "teacher") and job.spec.storage.url
    if job.spec.secret_refs.ca is not None and (role == "trainer" or uses_bucket):
        _trust(spec, job.spec.secret_refs.ca)
    own = {**context.labels(pod.role), **pod.labels}
    metadata: Manifest = {"labels": own}
    site = context.settings.job_pods
    for number, patch in [*patches_of(job, role, pod.helper), *([(-1, site)] if site is not None else [])]:
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
    """Replace the certificate authorities of a pod's containers by those of a Secret or a ConfigMap, in place."""
    items = [{"key": bundle.key, "path": "ca.crt"}]
    is_secret = bundle.kind == "Secret"
    source = {"secretName" if is_secret else "name": bundle.name, "items": items}
    spec["volumes"].append({"name": "ca", "secret" if is_secret else "configMap": source})
    for container in spec["containers"]:
        container["env"] += [{"name": name, "value": f"{names.CA_MOUNT}/ca.crt"} for name in names.CA_VARIABLES]
        container["volumeMounts"].append({"name": "ca", "mountPath": names.CA_MOUNT, "readOnly": True})


def server_tokens(job: AgenticRLJob) -> dict[str, tuple[str, str]]:
    """Return variable -> Secret and key of the tokens of the job's MCP servers."""
    servers = ((server.token_variable, server.secret_ref) for server in job.spec.mcp_servers)
    return {variable: (ref.name, ref.key) for variable, ref in servers if ref is not None}


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
    """Return volumes and mounts of the job's storage and of the claims of its sources.

    With spec.storage.url the storage of a pod is a cache on its node's disk.
    """
    spec_storage = context.job.spec.storage
    claim = "" if spec_storage.url else spec_storage.claim_name or names.claim(context.name)
    limit = {"sizeLimit": str(spec_storage.size)} if spec_storage.size else {}
    source: Manifest = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": limit}
    volumes: list[Manifest] = [{"name": CACHE, **source}]
    mounts: list[Manifest] = [{"name": CACHE, "mountPath": names.STORAGE_MOUNT}]
    for number, other in enumerate(context.claims):
        # A claim must be only one volume of a pod: the kubelet would wait for the second one indefinitely.
        name = CACHE if other == claim else f"claim-{number}"
        if other != claim:
            volumes.append({"name": name, "persistentVolumeClaim": {"claimName": other, "readOnly": True}})
        mounts.append({"name": name, "mountPath": f"{names.CLAIM_MOUNT}/{other}", "readOnly": True})
    return volumes, mounts


def bucket_access(context: BuildContext) -> Sequence[LocalReference | None]:
    """Return the Secrets of the pods that use the job's bucket; none for a claim."""
    secrets = context.job.spec.secret_refs
    return [secrets.proxy, secrets.storage] if context.job.spec.storage.url else []


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
