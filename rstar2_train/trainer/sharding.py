"""The place of a rank's shard in a parameter, and in the tensors of the files that the parameter consists of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.distributed.tensor import DTensor, Shard


@dataclass(frozen=True, slots=True)
class Piece:
    """A rank's part of one tensor of the files."""

    name: str
    shape: tuple[int, ...]
    """Shape of the whole tensor."""
    start: int
    """First element of the part in the whole tensor."""
    place: slice
    """Place of the part in the flat shard."""


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


def tensor_shape(parameter: Tensor, tensors: int) -> tuple[int, ...]:
    """Return the shape of each of the equal tensors of which a parameter consists: one, or those of its experts."""
    if tensors == 1:
        return tuple(parameter.shape)
    rows = parameter.shape[0] * parameter.shape[1] // tensors
    return (rows, *parameter.shape[2:])


def own_pieces(parameter: DTensor, names: Sequence[str]) -> Iterator[Piece]:
    """Yield this rank's part of each tensor of a parameter, in order. `names`: of the tensors (`file_names`)."""
    shape = tensor_shape(parameter, len(names))
    size = math.prod(shape)
    first = first_row(parameter) * math.prod(parameter.shape[1:])
    last = first + parameter.to_local().numel()
    for number, name in enumerate(names):
        start, stop = max(first, number * size), min(last, (number + 1) * size)
        if start < stop:
            yield Piece(name, shape, start - number * size, slice(start - first, stop - first))
