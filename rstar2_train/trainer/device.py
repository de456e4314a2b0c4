"""The one place that knows what a rank computes on: its device, its numbers, its transport.

Everything else in this room is the same code on a CPU and on AMD or NVIDIA accelerators (both are "cuda" to torch).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from rstar2_train.api.roles import Vendor


@dataclass(frozen=True, slots=True)
class ComputeDevice:
    """What a rank computes on."""

    device: torch.device
    backend: str
    """Backends of torch.distributed; gloo beside NCCL/RCCL, for objects and CPU tensors."""
    dtype: torch.dtype
    """Of forward and backward; master weights, optimiser and reductions are float32 on every device."""


def pick(vendor: Vendor) -> ComputeDevice:
    """The device of this rank, which sees only its own (Ray sets the visible devices).

    Raises:
        RuntimeError: when an accelerator is asked for and torch sees none.
    """
    if vendor == "None":
        return ComputeDevice(device=torch.device("cpu"), backend="gloo", dtype=torch.float32)
    if not torch.cuda.is_available():
        raise RuntimeError(
            f"spec.accelerator.vendor is {vendor}, but torch sees no accelerator: check the device plugin, the driver, "
            "and that this torch is built for it; use vendor: None to train on the CPU"
        )
    torch.cuda.set_device(0)
    # Reduced-precision float32 products cost accuracy in the softmax over a large vocabulary, on ROCm most of all.
    torch.set_float32_matmul_precision("highest")
    return ComputeDevice(device=torch.device("cuda", 0), backend="cpu:gloo,cuda:nccl", dtype=torch.bfloat16)


def threads(asked: int | None, ranks_here: int) -> int:
    """CPU threads of a rank: as asked, else the cores this process may use shared out among the machine's ranks."""
    return asked or max(1, len(os.sched_getaffinity(0)) // ranks_here)
