"""A rank's part of a checkpoint: shards of the weights, the optimiser's moments, the generator's state.

`snapshot` copies it into host memory, `write` writes the copy, while training continues. Both use
torch.distributed.checkpoint, so that M ranks can read a checkpoint of N. The module `checkpoint` ensures that the
folder is complete.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import DefaultLoadPlanner, Metadata
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
    state = _state(policy, optimizer) | {_generator(): torch.get_rng_state()}
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
    reader = dcp.FileSystemReader(folder)
    state = _restored_state(reader.read_metadata(), policy, optimizer)
    dcp.load(state, storage_reader=reader)
    if (generator := _generator()) in state:
        torch.set_rng_state(state[generator])


def needed_blocks(folder: Path, policy: Policy, optimizer: torch.optim.AdamW | None, size: int) -> dict[str, list[int]]:
    """Return the blocks of `size` bytes that `restore` reads on this rank, by file. Only the index is read.

    Tensors that several ranks have, such as the steps of the optimiser, are in the file of one of them.
    """
    metadata = dcp.FileSystemReader(folder).read_metadata()
    planner = DefaultLoadPlanner()
    planner.set_up_planner(_restored_state(metadata, policy, optimizer), metadata)
    blocks = defaultdict[str, set[int]](set)
    for place in (metadata.storage_data[item.storage_index] for item in planner.create_local_plan().items):
        end = place.offset + place.length
        blocks[place.relative_path].update(range(place.offset // size, -(-end // size)))
    return {name: sorted(numbers) for name, numbers in blocks.items()}


def _restored_state(metadata: Metadata, policy: Policy, optimizer: torch.optim.AdamW | None) -> dict[str, Any]:
    """Return the tensors that a restore fills: with the generator of this rank, if the checkpoint has one."""
    state = _state(policy, optimizer)
    if _generator() in metadata.state_dict_metadata:
        state[_generator()] = torch.get_rng_state()
    return state


def _generator() -> str:
    return f"generator.{dist.get_rank()}"


def file_digest(path: Path) -> FileDigest:
    """Return size and SHA-256 of a file."""
    return path.stat().st_size, file_sha256(path)


def _state(policy: Policy, optimizer: torch.optim.AdamW | None) -> dict[str, Any]:
    state: dict[str, Any] = {"model": dict(trained_shards(policy))}
    if optimizer is not None:
        state["optimizer"] = named_state(policy, optimizer)
    return state
