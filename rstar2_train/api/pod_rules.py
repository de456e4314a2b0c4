"""Rules about what a job asks of its pods: what a runtimePatch may change, and that patches do not contradict.

Called by rules.py with its own. A patch adds; of what the operator sets it may change the tuning of libraries alone
(RCCL, NCCL, HSA, OpenMP), never identity, security, addresses, Ray or the number of accelerators. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from rstar2_train.api.base import amount
from rstar2_train.api.issue import Issue, duplicates
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.roles import (
    EXECUTORS_TAKE,
    GPU_RESOURCES,
    REDIS_DATA,
    RESERVED_FOLDERS,
    RESERVED_PREFIXES,
    RESERVED_VARIABLES,
    Resources,
    RuntimePatch,
)


def patches(job: AgenticRLJob) -> Iterator[Issue]:
    """What is wrong with spec.runtimePatches."""
    for index, patch in enumerate(job.spec.runtime_patches):
        at = f"spec.runtimePatches[{index}]"
        if "executor" in patch.roles:
            taken = {*EXECUTORS_TAKE, "manager", "roles"}
            for name in sorted(patch.model_fields_set):
                alias = type(patch).model_fields[name].alias
                if alias not in taken:
                    message = f"executors take only {', '.join(EXECUTORS_TAKE)}; patch them apart"
                    yield Issue(f"{at}.{alias}", message)
        for number, variable in enumerate(patch.env):
            if variable.name in RESERVED_VARIABLES or variable.name.startswith(RESERVED_PREFIXES):
                yield Issue(f"{at}.env[{number}].name", "is the operator's own variable", variable.name)
        yield from _volumes(patch, at)
        yield from _devices(job, patch, at)
    yield from _contradictions(job.spec.runtime_patches)


def _volumes(patch: RuntimePatch, at: str) -> Iterator[Issue]:
    known = [volume.name for volume in patch.volumes]
    for number, volume in enumerate(patch.volumes):
        kinds = {"persistent_volume_claim", "config_map", "secret", "empty_dir"}
        if sum(getattr(volume, kind) is not None for kind in kinds) != 1:
            message = "is exactly one of persistentVolumeClaim, configMap, secret, emptyDir"
            yield Issue(f"{at}.volumes[{number}]", message)
    yield from duplicates(known, f"{at}.volumes", "a patch")
    for number, mount in enumerate(patch.volume_mounts):
        here = f"{at}.volumeMounts[{number}]"
        if mount.name not in known:
            message = f"must name a volume of the same patch ({', '.join(known) or 'it has none'})"
            yield Issue(f"{here}.name", message, mount.name)
        if {".", ".."} & set(mount.mount_path.split("/")):
            yield Issue(f"{here}.mountPath", "must have no . or .. in it", mount.mount_path)
        for folder in (*RESERVED_FOLDERS, *([REDIS_DATA] if "redis" in patch.roles else [])):
            covers = mount.mount_path == folder or folder.startswith(mount.mount_path + "/")
            if covers or (folder != "/tmp" and mount.mount_path.startswith(folder + "/")):
                message = f"must not cover {folder}" + ("" if folder == "/tmp" else " or lie in it")
                yield Issue(f"{here}.mountPath", message, mount.mount_path)


def devices(job: AgenticRLJob) -> frozenset[str]:
    """Extended resources whose number the job's own fields say: accelerators, RDMA devices."""
    wanted = job.spec.accelerator
    rdma = wanted.rdma.resource if wanted.rdma else ""
    return frozenset({*GPU_RESOURCES.values(), wanted.resource, rdma} - {""})


def _devices(job: AgenticRLJob, patch: RuntimePatch, at: str) -> Iterator[Issue]:
    asked = patch.resources
    for kind, amounts in (("requests", asked.requests), ("limits", asked.limits)) if asked else ():
        for name in devices(job) & set(amounts):
            message = "a patch cannot change the number of devices: spec.trainer.gpusPerReplica and "
            message += "spec.rollout.tensorParallel say it of accelerators, spec.accelerator.rdma of RDMA devices"
            yield Issue(f"{at}.resources.{kind}.{name}", message, amounts[name])


def amounts(job: AgenticRLJob) -> Iterator[Issue]:
    """Amounts that would be refused only when pods or claims are made: no storage, a limit below a request."""
    spec = job.spec
    for field, size in (("storage.size", spec.storage.size), ("redis.storage", spec.redis.storage)):
        if size is not None and amount(size) == 0:
            yield Issue(f"spec.{field}", "must be more than nothing", size)
    for role in ("trainer", "rollout", "redis"):
        asked = getattr(spec, role).resources
        yield from _fitting(asked, asked, f"spec.{role}")
    for index, patch in enumerate(spec.runtime_patches):
        if (asked := patch.resources) is not None:
            under = [
                getattr(getattr(spec, role), "resources", Resources()) for role in patch.roles if role != "executor"
            ]
            found = [one for base in under for one in _fitting(base, asked, f"spec.runtimePatches[{index}]")]
            yield from dict.fromkeys(found)


def _fitting(under: Resources, over: Resources, at: str) -> Iterator[Issue]:
    """Problems of what `over`, the amounts at field `at`, says on top of `under`."""
    requests, limits = {**under.requests, **over.requests}, {**under.limits, **over.limits}
    for name in requests.keys() & limits.keys() & (over.requests.keys() | over.limits.keys()):
        if amount(requests[name]) > amount(limits[name]):
            message = f"is less than the request, {requests[name]}"
            yield Issue(f"{at}.resources.limits.{name}", message, limits[name])
        elif "/" in name and amount(requests[name]) != amount(limits[name]):
            message = f"a device has one number, and {requests[name]} are requested"
            yield Issue(f"{at}.resources.limits.{name}", message, limits[name])


def counts(job: AgenticRLJob) -> Iterator[Issue]:
    """Amounts of trainer and engines that say another number of devices than the fields that are there for it."""
    spec = job.spec
    for role, field, count in (
        ("trainer", "gpusPerReplica", spec.trainer.gpus_per_replica),
        ("rollout", "tensorParallel", spec.rollout.tensor_parallel),
    ):
        asked = (spec.trainer if role == "trainer" else spec.rollout).resources
        for kind, amounts in (("requests", asked.requests), ("limits", asked.limits)):
            given = amounts.get(spec.accelerator.resource)
            if given is not None and str(given) != str(count):
                message = f"spec.{role}.{field} says it, and that is {count}: leave it out here"
                yield Issue(f"spec.{role}.resources.{kind}.{spec.accelerator.resource}", message, given)


def _contradictions(asked: list[RuntimePatch]) -> Iterator[Issue]:
    """Patches of one role add up; what a pod has one of they may say twice, but not in two ways."""
    first: dict[tuple[str, str], tuple[int, object]] = {}
    for index, patch in enumerate(asked):
        said: set[str] = set()
        for field, what, value in _said(patch):
            at = f"spec.runtimePatches[{index}].{field}"
            if what in said:
                yield Issue(at, f"stands twice: a patch gives {what} once")
                continue
            said.add(what)
            for role in patch.roles:
                where, before = first.setdefault((role, what), (index, value))
                if where != index and (value is None or value != before):
                    other = f"spec.runtimePatches[{where}] ({asked[where].manager})"
                    yield Issue(at, f"{other} gives {role} pods {what} already: say it in one of the two patches")
                    break


def _said(patch: RuntimePatch) -> Iterator[tuple[str, str, object]]:
    """What a patch says that a pod has one of: field, what it is, value (None: never the same as another)."""
    for number, variable in enumerate(patch.env):
        yield f"env[{number}].name", f"the variable {variable.name}", variable.value
    for number, mount in enumerate(patch.volume_mounts):
        yield f"volumeMounts[{number}].mountPath", f"the mount at {mount.mount_path}", None
    for label, value in patch.node_selector.items():
        yield f"nodeSelector.{label}", f"the node label {label}", value
    if patch.affinity is not None:
        yield "affinity", "affinity", patch.affinity
    asked = patch.resources
    for kind, wanted in (("requests", asked.requests), ("limits", asked.limits)) if asked else ():
        for name, size in wanted.items():
            yield f"resources.{kind}.{name}", f"resources.{kind}.{name}", str(size)
