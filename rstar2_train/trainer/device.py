"""The device, the number format and the transport of a rank: the only module that depends on the accelerator.

All other modules of the package are the same on a CPU and on AMD or NVIDIA accelerators (torch names both "cuda").
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from rstar2_train.api.roles import Vendor


@dataclass(frozen=True, slots=True)
class ComputeDevice:
    """The device of a rank."""

    device: torch.device
    backend: str
    """Backends of torch.distributed; gloo in addition to NCCL/RCCL, for objects and CPU tensors."""
    dtype: torch.dtype
    """Number format of forward and backward; master weights, optimiser and reductions are always float32."""


def select_device(vendor: Vendor) -> ComputeDevice:
    """Return the device of this rank; Ray makes only that one visible.

    Raises:
        RuntimeError: if the job requires an accelerator and torch has none.
    """
    if vendor == "None":
        return ComputeDevice(device=torch.device("cpu"), backend="gloo", dtype=torch.float32)
    if not torch.cuda.is_available():
        raise RuntimeError(
            f"spec.accelerator.vendor is {vendor}, but torch finds no accelerator: check the device plugin, the driver "
            "and the build of torch, or set vendor: None to train on the CPU"
        )
    torch.cuda.set_device(0)
    # Float32 products of reduced precision lose accuracy in the softmax over a large vocabulary, most of all on ROCm.
    torch.set_float32_matmul_precision("highest")
    return ComputeDevice(device=torch.device("cuda", 0), backend="cpu:gloo,cuda:nccl", dtype=torch.bfloat16)


def thread_count(configured: int | None, ranks_here: int) -> int:
    """Return the CPU threads of a rank: the configured number, or the process's cores divided by the local ranks."""
    return configured or max(1, len(os.sched_getaffinity(0)) // ranks_here)
