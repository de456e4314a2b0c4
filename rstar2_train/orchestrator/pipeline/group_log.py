"""The complete groups of a batch on disk, while other groups of the batch are still sampled.

One append-only file per batch. Each record is one group: length, checksum, and the trajectories in the Arrow stream
format. A crash can truncate only the last record; the reader drops it. When the batch is complete, `seal` writes the
Parquet file of the step from the same tables and deletes the log.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from rstar2_train.rollout import trajectory_store
from rstar2_train.rollout.trajectory import Trajectory

_HEADER = struct.Struct("<QI")
"""Length and CRC-32 of the record that follows."""
LOG_SUFFIX = ".groups"
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")
GROUPS_PER_ROW_GROUP = 8
"""Groups per row group of the Parquet file: 256 rows with 32 rollouts per prompt."""


class GroupLog:
    """The log of one batch. Not thread-safe: use one thread at a time."""

    def __init__(self, parquet: Path) -> None:
        """`parquet`: the file of the step; the log is next to it."""
        self._parquet = parquet
        self._path = parquet.with_suffix(LOG_SUFFIX)
        self._tables: dict[str, pa.Table] = {}

    def read(self) -> list[list[Trajectory]]:
        """Return the complete groups of an earlier attempt, and truncate an incomplete last record."""
        groups, end = [], 0
        for payload, position in _records(self._path):
            table = pa.ipc.open_stream(payload).read_all()
            if not table.schema.equals(trajectory_store.SCHEMA):
                break  # written by a release with other columns
            groups.append([trajectory_store.from_row(row) for row in table.to_pylist()])
            self._tables[groups[-1][0].prompt_id] = table
            end = position
        if self._path.exists():
            os.truncate(self._path, end)
        return groups

    def append(self, group: Sequence[Trajectory]) -> None:
        """Write one complete group; it is durable on return. Replaces an earlier group of the same prompt."""
        table = trajectory_store.to_table(group)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=_COMPRESSED) as stream:
            stream.write_table(table)
        payload = sink.getvalue().to_pybytes()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(_HEADER.pack(len(payload), zlib.crc32(payload)) + payload)
            file.flush()
            os.fsync(file.fileno())
        self._tables[group[0].prompt_id] = table

    def seal(self, prompt_ids: Sequence[str]) -> None:
        """Write the Parquet file with the groups of `prompt_ids`, in this order, and delete the log."""
        tables = [self._tables[prompt_id] for prompt_id in prompt_ids]
        starts = range(0, len(tables), GROUPS_PER_ROW_GROUP)
        row_groups = (pa.concat_tables(tables[start : start + GROUPS_PER_ROW_GROUP]) for start in starts)
        trajectory_store.write_tables(self._parquet, row_groups)
        self.discard()

    def discard(self) -> None:
        """Delete the log."""
        self._tables.clear()
        self._path.unlink(missing_ok=True)


def _records(path: Path) -> Iterator[tuple[bytes, int]]:
    """Yield each intact record of a log, with the position of its end."""
    if not path.exists():
        return
    data = path.read_bytes()
    position = 0
    while position + _HEADER.size <= len(data):
        length, checksum = _HEADER.unpack_from(data, position)
        start, position = position + _HEADER.size, position + _HEADER.size + length
        payload = data[start:position]
        if len(payload) < length or zlib.crc32(payload) != checksum:
            return
        yield payload, position
