"""The place of a rank's shard in a parameter."""

from __future__ import annotations

from torch.distributed.tensor import DTensor, Shard


def shard_position(parameter: DTensor) -> tuple[int, int, int]:
    """Return the index of this rank's shard of a parameter, the number of shards, and the index of its copy."""
    shard, count, copy = 0, 1, 0
    for dimension, placement in enumerate(parameter.placements):
        if isinstance(placement, Shard):
            shard, count = parameter.device_mesh.get_local_rank(dimension), parameter.device_mesh.size(dimension)
        else:
            copy = parameter.device_mesh.get_local_rank(dimension)
    return shard, count, copy


def first_row(parameter: DTensor) -> int:
    """Return the first row of this rank's shard of a parameter."""
    shard, count, _ = shard_position(parameter)
    rows = -(-parameter.shape[0] // count)  # fully_shard splits the first dimension as torch.chunk does
    return int(min(shard * rows, parameter.shape[0]))
