"""The device, the number format and the transport of a rank: the only module that depends on the accelerator.

All other modules of the package are the same on a CPU and on AMD or NVIDIA accelerators (torch names both "cuda").
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from rstar2_train.capacity.config_file import read_config
from rstar2_train.capacity.layout import DEFAULT_TOKENS, DEVICE_SHARE, Layout, Machine, choose_layout
from rstar2_train.capacity.model_shape import shape_of
from rstar2_train.capacity.number_format import is_bfloat16
from rstar2_train.trainer.types import TrainConfig

if TYPE_CHECKING:
    from rstar2_train.api.roles import NumberFormat, Vendor

UNKNOWN_LAYERS = 1_000_000
"""More layers than any model has: no layer of a model of unknown shape is checkpointed."""


@dataclass(frozen=True, slots=True)
class ComputeDevice:
    """The device of a rank."""

    device: torch.device
    backend: str
    """Backends of torch.distributed; gloo in addition to NCCL/RCCL, for objects and CPU tensors."""
    dtype: torch.dtype
    """Number format of forward and backward; master weights, optimiser and reductions are always float32."""


def select_device(vendor: Vendor, *, dtype: NumberFormat, index: int = 0) -> ComputeDevice:
    """Return the device of this rank. `index`: its number among the visible ones; Ray makes only one visible.

    Raises:
        RuntimeError: if the job requires an accelerator and torch has none, or bfloat16 and the CPU has none.
    """
    number = torch.bfloat16 if is_bfloat16(dtype, vendor) else torch.float32
    if vendor == "None":
        return ComputeDevice(device=torch.device("cpu"), backend="gloo", dtype=number)
    if not torch.cuda.is_available():
        raise RuntimeError(
            f"spec.accelerator.vendor is {vendor}, but torch finds no accelerator: check the device plugin, the driver "
            "and the build of torch, or set vendor: None to train on the CPU"
        )
    torch.cuda.set_device(index)
    # Float32 products of reduced precision lose accuracy in the softmax over a large vocabulary, most of all on ROCm.
    torch.set_float32_matmul_precision("highest")
    return ComputeDevice(device=torch.device("cuda", index), backend="cpu:gloo,cuda:nccl", dtype=number)


def thread_count(configured: int | None, ranks_here: int) -> int:
    """Return the CPU threads of a rank: the configured number, or the process's cores divided by the local ranks."""
    return configured or max(1, len(os.sched_getaffinity(0)) // ranks_here)


def layout_of(
    model_dir: Path, config: TrainConfig, compute: ComputeDevice, *, ranks_here: int, ranks_per_host: int | None
) -> Layout:
    """Return the layout of the steps of a model by the free memory of the rank that has the least. Collective.

    A model of unknown shape has all layers checkpointed unless the settings state otherwise.

    Raises:
        FileNotFoundError: without config.json.
        ValueError: for sharding PerHost on hosts with different numbers of ranks.
    """
    ranks = dist.get_world_size()
    folder = None if config.reference_is_base(model_dir) else config.reference
    machine = Machine(
        ranks=ranks,
        ranks_per_host=ranks_per_host,
        memory=_least_memory(compute.device, ranks_here),
        value_bytes=compute.dtype.itemsize,
        accelerated=compute.device.type != "cpu",
    )
    try:
        shape = shape_of(read_config(model_dir), name=model_dir.name)
        reference = None if folder is None else shape_of(read_config(folder), name=folder.name)
    except ValueError:
        return Layout(
            ranks=ranks,
            shards=ranks,
            tokens=config.tokens_per_micro_batch or DEFAULT_TOKENS,
            unchecked=0 if config.activation_checkpointing is not False else UNKNOWN_LAYERS,
            offload=config.offload,
            published=config.publishes_changes,
        )
    lora = config.lora
    return choose_layout(
        shape,
        machine,
        chunk=config.logprob_chunk_tokens,
        tokens=config.tokens_per_micro_batch,
        checkpointing=config.activation_checkpointing,
        sharding=config.sharding,
        offload=config.offload,
        longest=config.longest_sequence,
        published=config.publishes_changes,
        reference=reference,
        adapter=None if lora is None else shape.adapter(rank=lora.rank, modules=lora.modules),
    )


def _least_memory(device: torch.device, ranks_here: int) -> float:
    if device.type == "cpu":
        import psutil

        free = float(psutil.virtual_memory().available) / ranks_here
    else:
        torch.cuda.empty_cache()
        available, total = torch.cuda.mem_get_info(device)
        free = min(float(available), total * float(os.environ.get(DEVICE_SHARE, "1")))
    least = torch.tensor(free, dtype=torch.float64)
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    return float(least)
