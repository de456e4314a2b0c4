"""What a pod needs to use accelerators: the device plugin's resource, groups, environment; for AMD, NVIDIA or none.

The AMD device plugin mounts /dev/kfd and /dev/dri itself; a pod that is not root needs the groups that own them.
Nothing of this can run without such hardware: golden files and vLLM's own argument parser check it.
"""

from __future__ import annotations

from rstar2_operator.builders.pod import BuildContext, Manifest

AMD_ENV = {
    "HIP_FORCE_DEV_KERNARG": "1",
    "TORCH_BLAS_PREFER_HIPBLASLT": "1",
    "NCCL_MIN_NCHANNELS": "112",
    "HSA_NO_SCRATCH_RECLAIM": "1",
}
"""HIP, HSA and RCCL as ROCm's guide "vLLM V1 performance optimization" advises for MI300X."""
NVIDIA_ENV = {"NCCL_CUMEM_ENABLE": "0"}


def devices(built: BuildContext, count: int) -> Manifest:
    """Resources of `count` accelerators: limits, which for extended resources are requests too."""
    resource = built.job.spec.accelerator.resource
    return _extended(resource, count) if resource is not None and count else {}


def rdma(built: BuildContext) -> Manifest:
    """The RDMA device of a pod whose ranks talk to those of other pods: a trainer's, no engine's."""
    wanted = built.job.spec.accelerator.rdma
    return {} if wanted is None else _extended(wanted.resource, 1)


def _extended(resource: str, count: int) -> Manifest:
    asked = {resource: str(count)}
    return {"requests": asked, "limits": dict(asked)}


def environment(built: BuildContext) -> dict[str, str]:
    """Variables of the vendor's libraries."""
    return {"AMD": AMD_ENV, "NVIDIA": NVIDIA_ENV, "None": {}}[built.job.spec.accelerator.vendor]


def groups(built: BuildContext) -> tuple[int, ...]:
    """Groups that own the devices."""
    return built.settings.gpu_groups if built.job.spec.accelerator.vendor == "AMD" else ()
