"""A rank's part of a checkpoint: shards of the weights, the optimiser's moments, the generator's state.

Written and read with torch.distributed.checkpoint, so that a checkpoint of N ranks can be read by M. Whether a folder
is complete is the business of `checkpoints`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from rstar2_train.trainer.model import Policy, named_shards
from rstar2_train.trainer.optimizer import named_state

FileSeal = tuple[int, str]
"""Size in bytes and SHA-256 of a file."""


def save(folder: Path, policy: Policy, optimizer: torch.optim.AdamW) -> dict[str, FileSeal]:
    """Write this rank's shards under `folder`, which exists; fsynced. Collective.

    Returns:
        The files this rank wrote, with their size and hash; rank 0 adds the common index.
    """
    state = _state(policy, optimizer) | {f"generator.{dist.get_rank()}": torch.get_rng_state()}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(folder, single_file_per_rank=True, sync_files=True))
    mine = sorted(folder.glob(f"__{dist.get_rank()}_*.distcp"))
    if dist.get_rank() == 0:
        mine.append(folder / ".metadata")
    return {path.name: seal(path) for path in mine}


def restore(folder: Path, policy: Policy, optimizer: torch.optim.AdamW | None) -> None:
    """Read weights, and with an optimiser its moments, in place. Collective."""
    state = _state(policy, optimizer)
    reader = dcp.FileSystemReader(folder)
    generator = f"generator.{dist.get_rank()}"
    if generator in reader.read_metadata().state_dict_metadata:
        state[generator] = torch.get_rng_state()
    dcp.load(state, storage_reader=reader)
    if generator in state:
        torch.set_rng_state(state[generator])


def seal(path: Path) -> FileSeal:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:
        return path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()


def _state(policy: Policy, optimizer: torch.optim.AdamW | None) -> dict[str, Any]:
    state: dict[str, Any] = {"model": dict(named_shards(policy))}
    if optimizer is not None:
        state["optimizer"] = named_state(policy, optimizer)
    return state
