"""Trajectories on disk: one Parquet file per step, complete or absent.

A step writes its file before the update that uses it. The restarted stage, the viewer, the analysis and the Filter
stage read these files and nothing else. Any Parquet reader can read them: segments and calls are lists of structs.
"""

from __future__ import annotations

import itertools
import os
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rstar2_train.judge.types import ReturnedFile
from rstar2_train.rollout.trajectory import Segment, ToolCall, Trajectory
from rstar2_train.utils.files import sync_to_disk

FORMAT = b"2"
"""Version of the columns, in the file's metadata under `rstar2.trajectories`. A new nullable column keeps it."""
BATCH = 64
"""Number of rows that `write` and `stream` hold as Python objects at a time."""
GROUP_BATCHES = 4
"""Number of batches per row group; a smaller row group compresses worse."""
_KEY = b"rstar2.trajectories"
_STEP = re.compile(r"step-(\d+)\.parquet")
_TYPES: dict[str, pa.DataType] = {
    "str": pa.string(),
    "bytes": pa.binary(),
    "str | None": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "array[int]": pa.list_(pa.int32()),
    "list[tuple[str, int]]": pa.list_(pa.struct([("version", pa.string()), ("start", pa.int32())])),
    "array[float]": pa.list_(pa.float32()),
    "SegmentKind": pa.string(),
    "CallStatus": pa.string(),
    "StopReason": pa.string(),
    "Verdict": pa.string(),
    "LostTo | None": pa.string(),
    "list[ReturnedFile]": pa.list_(
        pa.struct([("name", pa.string()), ("size", pa.int64()), ("content", pa.string())])  # content in base64
    ),
}


class TrajectoryStoreError(ValueError):
    """A trajectory file cannot be read."""


def step_path(folder: Path, step: int) -> Path:
    """Return the file of the trajectories that 1-based `step` trains on."""
    return folder / f"step-{step:06d}.parquet"


def write(path: Path, trajectories: Iterable[Trajectory]) -> None:
    """Write a complete file or none, even under kill -9. Replaces an existing file.

    Takes the trajectories one batch at a time.
    """
    rest = iter(trajectories)
    write_tables(path, itertools.takewhile(lambda table: table.num_rows, (_group(rest) for _ in itertools.count())))


def write_tables(path: Path, row_groups: Iterable[pa.Table]) -> None:
    """Write a complete file or none, as `write` does, from tables with the columns of `SCHEMA`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            with pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
                for table in row_groups:
                    writer.write_table(table)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_to_disk(path.parent)


def read(path: Path) -> list[Trajectory]:
    """Return the trajectories of a file, in the order in which they were written. Raises TrajectoryStoreError."""
    return [from_row(row) for row in stream(path)]


def stream(path: Path, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file as plain values, decoded one batch at a time. Raises TrajectoryStoreError.

    `columns`: the columns to read; None: all, for `from_row`.
    """
    for batch in batches(path, columns):
        yield from batch.to_pylist()


def batches(path: Path, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file as Arrow batches, for computations over columns. Raises TrajectoryStoreError.

    `columns`: as in `stream`; `calls.list.element.status` reads one member of the calls.
    """
    with _open(path, complete=columns is None) as file:
        yield from file.iter_batches(batch_size=BATCH, columns=columns)


def read_row(path: Path, place: int) -> Trajectory:
    """Return the trajectory at 0-based `place` of a file. Raises TrajectoryStoreError, IndexError."""
    with _open(path, complete=True) as file:
        for number in range(file.num_row_groups):
            count = file.metadata.row_group(number).num_rows
            if place < count:
                (row,) = file.read_row_group(number).slice(place, 1).to_pylist()
                return from_row(row)
            place -= count
    raise IndexError(f"{path} has no row {place}")


def count_rows(path: Path) -> int:
    """Return the number of trajectories of a file. Raises TrajectoryStoreError."""
    with _open(path) as file:
        return int(file.metadata.num_rows)


@contextmanager
def _open(path: Path, *, complete: bool = False) -> Iterator[pq.ParquetFile]:
    """Open a file of this format. Raises TrajectoryStoreError, also for a fault that shows while it is read.

    `complete`: refuse a file with a column that this version does not have, because its rows would lose it.
    """
    try:
        with pq.ParquetFile(path) as file:
            version = (file.schema_arrow.metadata or {}).get(_KEY)
            if version != FORMAT:
                raise TrajectoryStoreError(
                    f"{path} does not contain trajectories of format {FORMAT.decode()} (its format: {version!r})"
                )
            if complete and (unknown := _names(file.schema_arrow) - _KNOWN_NAMES):
                names = ", ".join(sorted(unknown))
                raise TrajectoryStoreError(
                    f"another version wrote {path}; this one has no columns of these names: {names}"
                )
            yield file
    except (OSError, pa.ArrowInvalid) as error:
        raise TrajectoryStoreError(f"{path} cannot be read as trajectories: {error}") from error


def step_files(folder: Path) -> list[tuple[int, Path]]:
    """Return (step, file) of each step file in a folder, oldest first; empty if the folder does not exist."""
    return sorted(
        (int(match[1]), path) for path in folder.glob("step-*.parquet") if (match := _STEP.fullmatch(path.name))
    )


def prune(folder: Path, keep: int) -> list[Path]:
    """Delete all step files of a folder except the newest `keep`; return the deleted files."""
    steps = step_files(folder)
    old = [path for _, path in steps[: max(0, len(steps) - keep)]]
    for path in old:
        path.unlink(missing_ok=True)
    return old


def to_table(trajectories: Iterable[Trajectory]) -> pa.Table:
    """Return trajectories as the rows of one table."""
    return pa.Table.from_pylist(list(map(_row, trajectories)), schema=SCHEMA)


def to_bytes(trajectory: Trajectory) -> bytes:
    """Return a trajectory as a compressed stream of Arrow, for `from_bytes`."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(to_table([trajectory]))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def has_known_columns(data: bytes) -> bool:
    """Return whether `from_bytes` reads the data of this or another version."""
    with pa.ipc.open_stream(data) as reader:
        return _names(reader.schema) <= _KNOWN_NAMES


def from_bytes(data: bytes) -> Trajectory:
    """Return the trajectory of `to_bytes`. Raises pyarrow.ArrowInvalid for other data."""
    with pa.ipc.open_stream(data) as reader:
        (row,) = reader.read_all().to_pylist()
    return from_row(row)


def from_row(row: dict[str, Any]) -> Trajectory:
    """Return the trajectory of a complete row of `stream`. A missing column has its default."""
    row["prompt_ids"] = array("i", row["prompt_ids"])
    row["segments"] = [_segment_from_row(segment) for segment in row["segments"]]
    row["calls"] = [_call_from_row(call) for call in row["calls"]]
    return Trajectory(**row)


def _segment_from_row(row: dict[str, Any]) -> Segment:
    numbers = {"token_ids": array("i", row["token_ids"]), "logprobs": array("f", row["logprobs"])}
    versions = [(span["version"], span["start"]) for span in row["versions"]]
    routes = row.get("routes") or b""  # None in a file from before this field
    return Segment(**row | numbers | {"versions": versions, "routes": routes})


def _call_from_row(row: dict[str, Any]) -> ToolCall:
    files = [ReturnedFile(**file) for file in row.get("files") or ()]  # None in a file from before this field
    return ToolCall(**row | {"files": files})


def _names(fields_of: Iterable[pa.Field], prefix: str = "") -> set[str]:
    """Return the names of the columns, and as COLUMN.MEMBER those of the members of structs."""
    names = set()
    for field in fields_of:
        names.add(prefix + field.name)
        kind = field.type.value_type if pa.types.is_list(field.type) else field.type
        if pa.types.is_struct(kind):
            names |= _names(kind.fields, f"{prefix}{field.name}.")
    return names


def _group(trajectories: Iterator[Trajectory]) -> pa.Table:
    """Return the next row group, built from small tables."""
    return pa.concat_tables([to_table(itertools.islice(trajectories, BATCH)) for _ in range(GROUP_BATCHES)])


def _row(trajectory: Trajectory) -> dict[str, Any]:
    """Return a trajectory as plain values. pyarrow copies a NumPy array; any other sequence it reads by objects."""

    def values(record: Trajectory | Segment | ToolCall | ReturnedFile) -> dict[str, Any]:
        fields_of = {field.name: getattr(record, field.name) for field in fields(record)}
        return {name: np.asarray(value) if isinstance(value, array) else value for name, value in fields_of.items()}

    row = values(trajectory)
    row["segments"] = [
        values(segment) | {"versions": [{"version": version, "start": start} for version, start in segment.versions]}
        for segment in trajectory.segments
    ]
    row["calls"] = [values(call) | {"files": list(map(values, call.files))} for call in trajectory.calls]
    return row


def _schema() -> pa.Schema:
    """Return the columns, derived from the dataclasses: a new field needs no change here."""
    nested = {"list[Segment]": _struct(Segment), "list[ToolCall]": _struct(ToolCall)}
    columns = [(field.name, nested.get(str(field.type)) or _TYPES[str(field.type)]) for field in fields(Trajectory)]
    return pa.schema(columns, metadata={_KEY: FORMAT})


def _struct(record: type[Segment] | type[ToolCall]) -> pa.DataType:
    return pa.list_(pa.struct([(field.name, _TYPES[str(field.type)]) for field in fields(record)]))


SCHEMA = _schema()
"""The columns of a trajectory file."""
_KNOWN_NAMES = _names(SCHEMA)
