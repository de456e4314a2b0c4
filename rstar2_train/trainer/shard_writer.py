"""A rank's file of a weight version: its own shards, whole or as changes to the version before. No gather.

The writer keeps the shards of the last committed version in its number format. They change only in `commit`, after all
ranks' files and the manifest are in place: a failed publication is followed by a delta to the last committed version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rstar2_train.trainer.rounding import rounded
from rstar2_train.trainer.sharding import own_pieces, shard_position
from rstar2_train.weights.shard_file import BITS, DENSE_SHARE, FileSummary, Shard, bit_sum, write_shards

_VIEWS = {2: torch.int16, 4: torch.int32}


class ShardWriter:
    """Writes the versions of one rank."""

    def __init__(self, *, rank: int, dtype: torch.dtype) -> None:
        """`dtype`: number format of the versions."""
        self._rank = rank
        self._dtype = dtype
        self._name = str(dtype).removeprefix("torch.")
        if self._name not in BITS:
            raise ValueError(f"weights of dtype {self._name} cannot be published as deltas: use {', '.join(BITS)}")
        self._id: str | None = None
        """Id of the last committed version."""
        self._committed: dict[str, Tensor] = {}
        """Bit patterns of each shard in the last committed version, flat."""
        self._pending: dict[str, tuple[Tensor | None, Tensor]] = {}
        """Positions (None: all) and bit patterns of each shard that the uncommitted version changes."""

    def write(
        self,
        folder: Path,
        shards: dict[str, Any],
        *,
        base: str | None,
        tensors: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> FileSummary:
        """Write this rank's file; commit it later.

        Args:
            folder: the folder of the version, not yet visible to readers.
            shards: this rank's part of each parameter, a DTensor, by name.
            base: id of the version to which the file has the changes; None: write the whole shards.
            tensors: names of the tensors of each parameter that is several of them, such as the experts of a mixture.

        Raises:
            ValueError: if `base` is not the last committed version.
        """
        if base is not None and base != self._id:
            raise ValueError(
                f"rank {self._rank} cannot write the changes to version {base}: its last version is {self._id}; "
                "publish a snapshot first"
            )
        self._pending = {}
        file = folder / f"rank-{self._rank:04d}.shards"
        return write_shards(file, self._shards(shards, tensors, snapshot=base is None))

    def commit(self, version_id: str) -> None:
        """Take the last written version, with this id, as the base of the next one."""
        self._id = version_id
        for name, (positions, values) in self._pending.items():
            if positions is None:
                self._committed[name] = values
            else:
                self._committed[name][positions] = values
        self._pending = {}

    def tensors(self) -> Iterable[Tensor]:
        """Return the shards of the last committed version, to move them."""
        return self._committed.values()

    @torch.no_grad()
    def _shards(
        self, shards: dict[str, Any], tensors: Mapping[str, Sequence[str]], *, snapshot: bool
    ) -> Iterator[Shard]:
        for name, parameter in shards.items():
            if shard_position(parameter)[2]:
                continue  # the ranks of the first copy write the model
            whole = signed_bits(rounded(parameter.to_local().detach(), self._dtype, name=name))
            for piece in own_pieces(parameter, tensors.get(name, (name,))):
                bits = whole[piece.place]
                positions = None if snapshot else changed_positions(self._committed[piece.name], bits)
                if positions is not None and not len(positions):
                    continue
                if positions is not None and len(positions) > DENSE_SHARE * len(bits):
                    positions = None
                # A float32 shard is the live parameter itself: without a copy, the base would follow the next update.
                values = bits.clone() if positions is None else bits[positions]
                self._pending[piece.name] = (positions, values)
                yield Shard(
                    name=piece.name,
                    shape=piece.shape,
                    dtype=self._name,
                    start=piece.start,
                    count=len(bits),
                    checksum=tensor_bit_sum(bits),
                    positions=None if positions is None else positions.cpu().numpy(),
                    values=_array(values, self._name),
                )


def changed_positions(before: Tensor, after: Tensor) -> Tensor:
    """Return the ascending positions at which two flat tensors of bit patterns differ."""
    if after.device.type == "cpu":  # three times as fast as torch on one core
        return torch.from_numpy(np.flatnonzero(before.numpy() != after.numpy()))
    return (before != after).nonzero().squeeze(1)


def fingerprint(shards: dict[str, Any], dtype: torch.dtype) -> list[int]:
    """Return the bit sum of each of this rank's shards in a number format: another version has other sums."""
    sums = []
    for parameter in shards.values():
        sums.append(tensor_bit_sum(signed_bits(parameter.to_local().detach().to(dtype))))
    return sums


def signed_bits(values: Tensor) -> Tensor:
    """Return the bit patterns of a float tensor as a flat tensor of signed integers of the same width."""
    return values.reshape(-1).view(_VIEWS[values.dtype.itemsize])


def tensor_bit_sum(bits: Tensor) -> int:
    """Return the checksum of flat bit patterns, as `shard_file.bit_sum`."""
    if bits.device.type == "cpu":  # ten times as fast as torch on one core
        return bit_sum(bits.numpy())
    return int(bits.sum(dtype=torch.int64))


def _array(bits: Tensor, dtype: str) -> NDArray[Any]:
    array: NDArray[Any] = bits.cpu().numpy().view(BITS[dtype])
    return array
