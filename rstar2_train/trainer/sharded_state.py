"""A rank's part of a checkpoint: shards of the weights, the optimiser's moments, the generator's state.

`snapshot` copies it into host memory, `write` writes the copy, while training continues. Both use
torch.distributed.checkpoint, so that M ranks can read a checkpoint of N. The module `checkpoint` ensures that the
folder is complete.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.tensor import DTensor

from rstar2_train.trainer.model import Policy, trained_shards
from rstar2_train.trainer.optimizer import named_state
from rstar2_train.utils.files import file_sha256

FileDigest = tuple[int, str]
"""Size in bytes and SHA-256 of a file."""


def snapshot(policy: Policy, optimizer: torch.optim.AdamW, buffers: dict[str, Tensor]) -> dict[str, Any]:
    """Return a copy of this rank's shards, moments and generator in host memory. No collective.

    `buffers`: pinned memory of the copies of an accelerator, kept for the next time: it is slow to allocate. The
    copy must have been written before. On the CPU it is freed instead, for the activations.
    """
    state = _state(policy, optimizer) | {f"generator.{dist.get_rank()}": torch.get_rng_state()}
    copy: dict[str, Any] = _copied(state, "", buffers)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return copy


@torch.no_grad()
def _copied(value: Any, key: str, buffers: dict[str, Tensor]) -> Any:
    if isinstance(value, dict):
        return {name: _copied(part, f"{key}/{name}", buffers) for name, part in value.items()}
    if isinstance(value, DTensor):
        return DTensor(_copied(value.to_local(), key, buffers), value._spec, requires_grad=False)
    pinned = value.device.type != "cpu" and value.numel() > 0
    buffer = buffers.get(key)
    if buffer is None:
        buffer = torch.empty(value.shape, dtype=value.dtype, pin_memory=pinned)
        if pinned:
            buffers[key] = buffer
    return buffer.copy_(value, non_blocking=pinned)


def write(folder: Path, copy: dict[str, Any], group: dist.ProcessGroup) -> dict[str, FileDigest]:
    """Write the copy of this rank under `folder`, which exists; fsynced. Collective over `group`.

    Args:
        folder: the folder of the checkpoint.
        copy: the result of `snapshot`.
        group: a gloo group of all ranks for this purpose, because the step uses the others at the same time.

    Returns:
        The files of this rank with their size and hash; rank 0 includes the common index.
    """
    writer = dcp.FileSystemWriter(folder, single_file_per_rank=True, sync_files=True)
    dcp.save(copy, storage_writer=writer, process_group=group)
    mine = sorted(folder.glob(f"__{dist.get_rank()}_*.distcp"))
    if dist.get_rank() == 0:
        mine.append(folder / ".metadata")
    return {path.name: file_digest(path) for path in mine}


def restore(folder: Path, policy: Policy, optimizer: torch.optim.AdamW | None) -> None:
    """Load weights, and the moments of an optimiser if one is given, in place. Collective."""
    state = _state(policy, optimizer)
    reader = dcp.FileSystemReader(folder)
    generator = f"generator.{dist.get_rank()}"
    if generator in reader.read_metadata().state_dict_metadata:
        state[generator] = torch.get_rng_state()
    dcp.load(state, storage_reader=reader)
    if generator in state:
        torch.set_rng_state(state[generator])


def file_digest(path: Path) -> FileDigest:
    """Return size and SHA-256 of a file."""
    return path.stat().st_size, file_sha256(path)


def _state(policy: Policy, optimizer: torch.optim.AdamW | None) -> dict[str, Any]:
    state: dict[str, Any] = {"model": dict(trained_shards(policy))}
    if optimizer is not None:
        state["optimizer"] = named_state(policy, optimizer)
    return state
