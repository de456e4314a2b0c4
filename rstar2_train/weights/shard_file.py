"""The file of one trainer rank in a weight version: its shards, whole or as changes to the version before.

Layout: magic, the blocks of all shards, a JSON index, the length of the index (8 bytes), and the SHA-256 of all bytes
before it. A shard of FSDP is a run of rows, so it is one run of flat positions of its tensor.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rstar2_train.utils.text import reason
from rstar2_train.weights import gap_codec

MAGIC = b"RSTAR2W1"
DIGEST_BYTES = 32
BITS: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.uint32),
    "bfloat16": np.dtype(np.uint16),
    "float16": np.dtype(np.uint16),
}
"""Unsigned integers that hold the bit patterns of each dtype. Bits are compared, not values: -0.0 differs from 0.0."""
DENSE_SHARE = 0.35
"""Share of changed elements above which a whole shard is smaller than its changes."""


class ShardFileInvalid(Exception):
    """A shard file is missing, truncated or damaged; the message names it."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's run of elements of a tensor, after the update."""

    name: str
    """Name in the model folder."""
    shape: tuple[int, ...]
    """Shape of the whole tensor."""
    dtype: str
    """Stored dtype, a key of BITS."""
    start: int
    """Flat position of the first element."""
    count: int
    """Number of elements."""
    checksum: int
    """Sum of all bit patterns of the shard as signed integers: a wrong base gives another sum."""
    positions: NDArray[np.int64] | None
    """Positions of the changed elements, relative to `start`; None: `values` is the whole shard."""
    values: NDArray[Any]
    """Bit patterns of the changed elements, or of all."""


@dataclass(frozen=True, slots=True)
class FileSummary:
    """A written file."""

    name: str
    bytes: int
    digest: str
    """SHA-256, hexadecimal."""
    changed: int
    """Number of elements with a new value; in a snapshot all elements."""


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    shape: list[int]
    dtype: str
    start: int
    count: int
    checksum: int
    sparse: bool
    sizes: list[int]
    """Bytes of each block."""


def bit_sum(bits: NDArray[Any]) -> int:
    """Return the checksum of bit patterns: their sum as signed integers."""
    return int(bits.view(np.dtype(f"i{bits.itemsize}")).sum(dtype=np.int64))


def write_shards(path: Path, shards: Iterable[Shard]) -> FileSummary:
    """Write a rank's file. The caller makes the file visible with the manifest of its version."""
    entries, changed = [], 0
    digest = hashlib.sha256()
    with path.open("wb") as file:

        def put(data: bytes | memoryview) -> None:
            digest.update(data)
            file.write(data)

        put(MAGIC)
        for shard in shards:
            changed += len(shard.values)
            if shard.positions is None:
                blocks: list[bytes | memoryview] = [np.ascontiguousarray(shard.values).view(np.uint8).data]
            else:
                blocks = [*gap_codec.encode_changes(shard.positions, shard.values)]
            for block in blocks:
                put(block)
            sizes = [len(block) for block in blocks]
            sparse = shard.positions is not None
            entries.append(
                _Entry(shard.name, [*shard.shape], shard.dtype, shard.start, shard.count, shard.checksum, sparse, sizes)
            )
        index = json.dumps([asdict(entry) for entry in entries]).encode()
        put(index)
        put(struct.pack("<Q", len(index)))
        file.write(digest.digest())
    return FileSummary(path.name, path.stat().st_size, digest.hexdigest(), changed)


class ShardFile:
    """A verified shard file in memory."""

    def __init__(self, data: memoryview, *, name: str, digest: str) -> None:
        """Verify the content of a file.

        Args:
            data: all bytes of the file.
            name: of the file, for messages.
            digest: SHA-256 that the manifest names.

        Raises:
            ShardFileInvalid: if the content is truncated or damaged, or is that of another file.
        """
        body = data[:-DIGEST_BYTES]
        if len(data) < len(MAGIC) + 8 + DIGEST_BYTES or data[: len(MAGIC)] != MAGIC:
            raise ShardFileInvalid(f"{name} is not a shard file, or is truncated")
        actual = hashlib.sha256(body).hexdigest()
        if actual != bytes(data[-DIGEST_BYTES:]).hex():
            raise ShardFileInvalid(f"{name} is damaged or truncated: its SHA-256 differs from that at its end")
        if actual != digest:
            raise ShardFileInvalid(f"{name} is not the file of its manifest: the SHA-256 differs")
        (length,) = struct.unpack("<Q", body[-8:])
        self.name = name
        self._blocks = body[len(MAGIC) : -8 - length]
        self._entries = [_Entry(**entry) for entry in json.loads(bytes(body[-8 - length : -8]))]

    @classmethod
    def read(cls, path: Path, *, digest: str) -> ShardFile:
        """Read and verify a file. Raises ShardFileInvalid, also if it is missing."""
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ShardFileInvalid(f"{path} cannot be read: {reason(error)}") from error
        return cls(memoryview(data), name=str(path), digest=digest)

    def shards(self) -> Iterator[Shard]:
        """Yield the shards, decoded one at a time. Raises ShardFileInvalid for blocks that cannot be decoded."""
        offset = 0
        for entry in self._entries:
            blocks = []
            for size in entry.sizes:
                blocks.append(self._blocks[offset : offset + size])
                offset += size
            dtype = BITS[entry.dtype]
            positions: NDArray[np.int64] | None = None
            if entry.sparse:
                try:
                    positions, values = gap_codec.decode_changes(blocks, dtype)
                except ValueError as error:
                    raise ShardFileInvalid(f"{self.name}: {entry.name}: {error}") from error
            else:
                values = np.frombuffer(blocks[0], dtype)
            yield Shard(
                entry.name,
                tuple(entry.shape),
                entry.dtype,
                entry.start,
                entry.count,
                entry.checksum,
                positions,
                values,
            )
