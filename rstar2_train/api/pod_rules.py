"""Rules about pods: what a runtimePatch may change, contradictions between patches, and impossible amounts.

`rules.py` runs them with its own. A patch adds to a pod. Of the operator's own settings it may change only the tuning
of libraries (RCCL, NCCL, HSA, OpenMP), never identity, security, addresses, Ray or the number of devices. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from rstar2_train.api.base import amount
from rstar2_train.api.issue import Issue
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.objectives import TeacherSpec
from rstar2_train.api.roles import (
    ACCELERATOR_CLAIM,
    EXECUTOR_PATCH_FIELDS,
    GPU_RESOURCES,
    REDIS_DATA,
    RESERVED_DOMAINS,
    RESERVED_FOLDERS,
    RESERVED_LABELS,
    RESERVED_PREFIXES,
    RESERVED_VARIABLES,
    SANDBOX_ANNOTATIONS,
    Resources,
    RuntimePatch,
)

SANDBOX = "could weaken the sandbox of executors: container runtimes read it"
ENV_SOURCES = {
    "secret_key_ref": "secretKeyRef",
    "config_map_key_ref": "configMapKeyRef",
    "field_ref": "fieldRef",
}
VOLUME_KINDS = {
    "persistent_volume_claim": "persistentVolumeClaim",
    "config_map": "configMap",
    "secret": "secret",
    "empty_dir": "emptyDir",
}


def patches(job: AgenticRLJob) -> Iterator[Issue]:
    """Yield the issues of spec.runtimePatches."""
    for index, patch in enumerate(job.spec.runtime_patches):
        at = f"spec.runtimePatches[{index}]"
        if "executor" in patch.roles:
            accepted = {*EXECUTOR_PATCH_FIELDS, "manager", "roles"}
            for name in sorted(patch.model_fields_set):
                alias = type(patch).model_fields[name].alias
                if alias not in accepted:
                    message = f"executors accept only {', '.join(EXECUTOR_PATCH_FIELDS)}; use a separate patch for them"
                    yield Issue(f"{at}.{alias}", message)
        for number, variable in enumerate(patch.env):
            if variable.name in RESERVED_VARIABLES or variable.name.startswith(RESERVED_PREFIXES):
                yield Issue(f"{at}.env[{number}].name", "is reserved for the operator", variable.name)
        yield from metadata(patch, at)
        yield from _sources(patch, at)
        yield from _volumes(patch, at)
        yield from _devices(job, patch, at)
    yield from _contradictions(job.spec.runtime_patches)


def metadata(patch: RuntimePatch, at: str) -> Iterator[Issue]:
    """Yield the issues of the labels and annotations of a patch, at field `at`."""
    for field, entries in (("labels", patch.labels), ("annotations", patch.annotations)):
        for key in entries:
            domain, _, name = key.rpartition("/")
            if domain in RESERVED_DOMAINS or (field == "labels" and name in RESERVED_LABELS):
                yield Issue(f"{at}.{field}.{key}", "is reserved for the operator and the cluster's controllers")
    for key in patch.annotations if "executor" in patch.roles else ():
        if any(part in key for part in SANDBOX_ANNOTATIONS):
            yield Issue(f"{at}.annotations.{key}", SANDBOX)


def _sources(patch: RuntimePatch, at: str) -> Iterator[Issue]:
    for number, source in enumerate(patch.env_from):
        if (source.secret_ref is None) == (source.config_map_ref is None):
            yield Issue(f"{at}.envFrom[{number}]", "must set exactly one of secretRef, configMapRef")
    for number, variable in enumerate(patch.env):
        chosen = variable.value_from
        if chosen is not None and variable.value is not None:
            yield Issue(f"{at}.env[{number}].valueFrom", "must not be set together with value")
        if chosen is not None and sum(getattr(chosen, kind) is not None for kind in ENV_SOURCES) != 1:
            message = f"must set exactly one of {', '.join(ENV_SOURCES.values())}"
            yield Issue(f"{at}.env[{number}].valueFrom", message)
    seen: set[str] = set()
    for number, claim in enumerate(patch.resource_claims):
        field = f"{at}.resourceClaims[{number}]"
        if (claim.resource_claim_name is None) == (claim.resource_claim_template_name is None):
            yield Issue(field, "must set exactly one of resourceClaimName, resourceClaimTemplateName")
        if claim.name == ACCELERATOR_CLAIM:
            yield Issue(f"{field}.name", "is reserved for spec.accelerator.claimTemplates", claim.name)
        if claim.name in seen:
            yield Issue(f"{field}.name", "duplicate", claim.name)
        seen.add(claim.name)


def _volumes(patch: RuntimePatch, at: str) -> Iterator[Issue]:
    known = [volume.name for volume in patch.volumes]
    for number, volume in enumerate(patch.volumes):
        if sum(getattr(volume, kind) is not None for kind in VOLUME_KINDS) != 1:
            message = f"must set exactly one of {', '.join(VOLUME_KINDS.values())}"
            yield Issue(f"{at}.volumes[{number}]", message)
    for number, mount in enumerate(patch.volume_mounts):
        field = f"{at}.volumeMounts[{number}]"
        if mount.name not in known:
            message = f"must name a volume of the same patch, which has {', '.join(known) or 'none'}"
            yield Issue(f"{field}.name", message, mount.name)
        if {".", ".."} & set(mount.mount_path.split("/")):
            yield Issue(f"{field}.mountPath", "must not have '.' or '..' components", mount.mount_path)
        for folder in (*RESERVED_FOLDERS, *([REDIS_DATA] if "redis" in patch.roles else [])):
            covers = mount.mount_path == folder or folder.startswith(mount.mount_path + "/")
            if covers or (folder != "/tmp" and mount.mount_path.startswith(folder + "/")):
                message = f"must not cover {folder}" + ("" if folder == "/tmp" else " or be inside it")
                yield Issue(f"{field}.mountPath", message, mount.mount_path)


def devices(job: AgenticRLJob) -> frozenset[str]:
    """Return the extended resources whose number the job's own fields set: accelerators and RDMA devices."""
    accelerator = job.spec.accelerator
    names = {*GPU_RESOURCES.values(), accelerator.resource, accelerator.rdma.resource if accelerator.rdma else None}
    return frozenset(name for name in names if name)


def _devices(job: AgenticRLJob, patch: RuntimePatch, at: str) -> Iterator[Issue]:
    resources = patch.resources
    for kind, amounts in (("requests", resources.requests), ("limits", resources.limits)) if resources else ():
        for name in devices(job) & set(amounts):
            message = "a patch cannot change the number of devices: use spec.trainer.gpusPerReplica and "
            message += "spec.rollout.tensorParallel for accelerators, spec.accelerator.rdma for RDMA devices"
            yield Issue(f"{at}.resources.{kind}.{name}", message, amounts[name])


def amounts(job: AgenticRLJob) -> Iterator[Issue]:
    """Yield amounts that the API server would reject only in pods or claims: zero, or a limit below a request."""
    spec = job.spec
    for field, size in (
        ("storage.size", spec.storage.size),
        ("redis.storage", spec.redis.storage),
        ("executor.cpu", spec.executor.cpu),
    ):
        if size is not None and amount(size) == 0:
            yield Issue(f"spec.{field}", "must be greater than 0", size)
    for role in ("trainer", "rollout", "teacher", "redis"):
        resources = getattr(getattr(spec, role), "resources", Resources())
        yield from _limits_below_requests(resources, resources, f"spec.{role}")
    for index, environment in enumerate(spec.environments):
        resources = environment.resources
        yield from _limits_below_requests(resources, resources, f"spec.environments[{index}]")
    for index, patch in enumerate(spec.runtime_patches):
        if patch.resources is None:
            continue
        roles = [spec.environments[0] if role == "environment" and spec.environments else getattr(spec, role, None)
                 for role in patch.roles if role != "executor"]  # fmt: skip
        bases = [getattr(role, "resources", Resources()) for role in roles]
        at = f"spec.runtimePatches[{index}]"
        issues = [issue for base in bases for issue in _limits_below_requests(base, patch.resources, at)]
        yield from dict.fromkeys(issues)


def _limits_below_requests(base: Resources, overlay: Resources, at: str) -> Iterator[Issue]:
    """Return the issues of the amounts of `overlay`, at field `at`, merged over `base`."""
    requests, limits = {**base.requests, **overlay.requests}, {**base.limits, **overlay.limits}
    for name in requests.keys() & limits.keys() & (overlay.requests.keys() | overlay.limits.keys()):
        field = f"{at}.resources.limits.{name}"
        if amount(requests[name]) > amount(limits[name]):
            yield Issue(field, f"must not be less than the request, which is {requests[name]}", limits[name])
        elif "/" in name and amount(requests[name]) != amount(limits[name]):
            yield Issue(field, f"must equal the request for devices, which is {requests[name]}", limits[name])


def device_counts(job: AgenticRLJob) -> Iterator[Issue]:
    """Yield resources of trainer and engines that contradict gpusPerReplica or tensorParallel."""
    spec = job.spec
    accelerator, teacher = spec.accelerator.resource or "", spec.teacher or TeacherSpec()
    for role, field, count, resources in (
        ("trainer", "gpusPerReplica", spec.trainer.gpus_per_replica, spec.trainer.resources),
        ("rollout", "tensorParallel", spec.rollout.tensor_parallel, spec.rollout.resources),
        ("teacher", "tensorParallel", teacher.tensor_parallel, teacher.resources),
    ):
        for kind, amounts in (("requests", resources.requests), ("limits", resources.limits)):
            value = amounts.get(accelerator)
            if value is not None and str(value) != str(count):
                message = f"contradicts spec.{role}.{field}, which is {count}: remove it here"
                yield Issue(f"spec.{role}.resources.{kind}.{accelerator}", message, value)


def _contradictions(runtime_patches: list[RuntimePatch]) -> Iterator[Issue]:
    """Report two patches of one role that set the same single-valued setting to different values."""
    first: dict[tuple[str, str], tuple[int, object]] = {}
    for index, patch in enumerate(runtime_patches):
        for field, setting, value in _single_valued(patch):
            for role in patch.roles:
                earlier, before = first.setdefault((role, setting), (index, value))
                if earlier != index and (value is None or value != before):
                    other = f"spec.runtimePatches[{earlier}] ({runtime_patches[earlier].manager})"
                    message = f"{other} already sets {setting} of {role} pods: remove it from one of the two patches"
                    yield Issue(f"spec.runtimePatches[{index}].{field}", message)
                    break


def _single_valued(patch: RuntimePatch) -> Iterator[tuple[str, str, object]]:
    """Return the settings that a pod has once: field, description, value (None: conflicts with any other)."""
    for number, variable in enumerate(patch.env):
        yield f"env[{number}].name", f"the variable {variable.name}", (variable.value, variable.value_from)
    for number, mount in enumerate(patch.volume_mounts):
        yield f"volumeMounts[{number}].mountPath", f"the mount at {mount.mount_path}", None
    for label, wanted in patch.node_selector.items():
        yield f"nodeSelector.{label}", f"the node label {label}", wanted
    for kind, entries in (("label", patch.labels), ("annotation", patch.annotations)):
        for key, text in entries.items():
            yield f"{kind}s.{key}", f"the {kind} {key}", text
    settings: list[tuple[str, str, object]] = [
        ("affinity", "the affinity", patch.affinity),
        ("schedulerName", "the scheduler", patch.scheduler_name),
        ("serviceAccountName", "the ServiceAccount", patch.service_account_name),
    ]
    yield from (setting for setting in settings if setting[2] is not None)
    for number, claim in enumerate(patch.resource_claims):
        yield f"resourceClaims[{number}].name", f"the claim {claim.name}", None
    resources = patch.resources
    for kind, amounts in (("requests", resources.requests), ("limits", resources.limits)) if resources else ():
        for name, size in amounts.items():
            yield f"resources.{kind}.{name}", f"resources.{kind}.{name}", str(size)
