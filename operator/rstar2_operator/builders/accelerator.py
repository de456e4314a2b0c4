"""Accelerators in pods, for AMD, NVIDIA or none: the device plugin's resource or a claim, groups, variables.

The AMD device plugin mounts /dev/kfd and /dev/dri; a non-root pod needs the groups that own them. Without such hardware
only golden files and vLLM's argument parser test this module.
"""

from __future__ import annotations

from typing import Literal

from rstar2_operator.builders.manifest import Manifest
from rstar2_operator.builders.pod import BuildContext
from rstar2_train.api.roles import ACCELERATOR_CLAIM

AMD_ENV = {
    "HIP_FORCE_DEV_KERNARG": "1",
    "TORCH_BLAS_PREFER_HIPBLASLT": "1",
    "NCCL_MIN_NCHANNELS": "112",
    "HSA_NO_SCRATCH_RECLAIM": "1",
}
"""Settings of HIP, HSA and RCCL for MI300X, from ROCm's guide "vLLM V1 performance optimization"."""
NVIDIA_ENV = {"NCCL_CUMEM_ENABLE": "0"}


def devices(context: BuildContext, count: int) -> Manifest:
    """Return requests and limits of `count` accelerators, which must be equal for extended resources; or the claim."""
    spec = context.job.spec.accelerator
    if spec.claim_templates is not None:
        return {"claims": [{"name": ACCELERATOR_CLAIM}]}
    return _extended(spec.resource, count) if spec.resource is not None and count else {}


def claims(context: BuildContext, role: Literal["trainer", "rollout", "teacher"]) -> Manifest:
    """Return the part of a pod's spec with the claim of its accelerators; empty with a device plugin."""
    templates = context.job.spec.accelerator.claim_templates
    template = None if templates is None else getattr(templates, role)
    if template is None:
        return {}
    return {"resourceClaims": [{"name": ACCELERATOR_CLAIM, "resourceClaimTemplateName": template}]}


def rdma(context: BuildContext) -> Manifest:
    """Return the RDMA devices of a trainer pod, whose ranks communicate with other pods."""
    spec = context.job.spec.accelerator.rdma
    return {} if spec is None else _extended(spec.resource, spec.count)


def engine_rdma(context: BuildContext) -> Manifest:
    """Return the RDMA devices of an engine: with Collective one per accelerator, at most as many as a trainer pod has.

    The members of a group over NCCL or RCCL must use the same network.
    """
    spec, rollout = context.job.spec.accelerator.rdma, context.job.spec.rollout
    if spec is None or rollout.weight_transport != "Collective" or context.job.spec.accelerator.vendor == "None":
        return {}
    return _extended(spec.resource, min(spec.count, rollout.tensor_parallel))


def _extended(resource: str, count: int) -> Manifest:
    amounts = {resource: str(count)}
    return {"requests": amounts, "limits": dict(amounts)}


def environment(context: BuildContext) -> dict[str, str]:
    """Return the environment variables of the vendor's libraries."""
    return {"AMD": AMD_ENV, "NVIDIA": NVIDIA_ENV, "None": {}}[context.job.spec.accelerator.vendor]


def groups(context: BuildContext) -> tuple[int, ...]:
    """Return the groups that own the devices."""
    return context.settings.gpu_groups if context.job.spec.accelerator.vendor == "AMD" else ()
