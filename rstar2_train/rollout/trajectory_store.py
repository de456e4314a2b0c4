"""Trajectories on disk: one Parquet file a step, complete or absent.

Written before the update that uses them; the resumed driver, the viewer, the analysis and the filter read these files
and nothing else. Readable by any Parquet reader: segments and calls are lists of structs.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rstar2_train.rollout.trajectory import Segment, ToolCall, Trajectory

FORMAT = b"1"
"""Version of the columns, in the file's metadata under `rstar2.trajectories`."""
BATCH = 64
"""Rows that `write` and `stream` hold as Python objects at a time."""
GROUP_BATCHES = 4
"""Of so many `write` makes a row group: a smaller one compresses worse."""
_KEY = b"rstar2.trajectories"
_STEP = re.compile(r"step-(\d+)\.parquet")
_TYPES: dict[str, pa.DataType] = {
    "str": pa.string(),
    "str | None": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "list[int]": pa.list_(pa.int32()),
    "list[float]": pa.list_(pa.float32()),
    "SegmentKind": pa.string(),
    "CallStatus": pa.string(),
    "StopReason": pa.string(),
    "Verdict": pa.string(),
    "LostTo | None": pa.string(),
}


class TrajectoryStoreError(ValueError):
    """A trajectory file that cannot be read."""


def step_path(folder: Path, step: int) -> Path:
    """File of the trajectories that lead to 1-based `step`."""
    return folder / f"step-{step:06d}.parquet"


def write(path: Path, trajectories: Iterable[Trajectory]) -> None:
    """Write a file whole or not at all, also under kill -9; an older one of that name is replaced.

    Rows are taken as they are written, a batch at a time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    rows = map(to_row, trajectories)
    try:
        with aside.open("wb") as file:
            with pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
                while (group := _group(rows)).num_rows:
                    writer.write_table(group)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def read(path: Path) -> list[Trajectory]:
    """The trajectories of a file, in the order they were written. Raises TrajectoryStoreError."""
    return [from_row(row) for row in stream(path)]


def stream(path: Path, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """The rows of a file one by one, as plain values, decoded a batch at a time. Raises as `read` does.

    `columns`: read these alone; None: all, of which `from_row` makes a trajectory.
    """
    try:
        with pq.ParquetFile(path) as file:
            version = (file.schema_arrow.metadata or {}).get(_KEY)
            if version != FORMAT:
                raise TrajectoryStoreError(
                    f"{path} does not hold trajectories of format {FORMAT.decode()} (found: {version!r})"
                )
            for batch in file.iter_batches(batch_size=BATCH, columns=columns):
                yield from batch.to_pylist()
    except (OSError, pa.ArrowInvalid) as error:
        raise TrajectoryStoreError(f"{path} cannot be read as trajectories: {error}") from error


def step_files(folder: Path) -> list[tuple[int, Path]]:
    """The step files of a folder with their steps, oldest first; none when there is no such folder."""
    return sorted(
        (int(match[1]), path) for path in folder.glob("step-*.parquet") if (match := _STEP.fullmatch(path.name))
    )


def prune(folder: Path, keep: int) -> list[Path]:
    """Delete all step files of a folder but the newest `keep`; returns what was deleted."""
    steps = step_files(folder)
    old = [path for _, path in steps[: max(0, len(steps) - keep)]]
    for path in old:
        path.unlink(missing_ok=True)
    return old


def to_row(trajectory: Trajectory) -> dict[str, Any]:
    """A trajectory as plain values; its lists of tokens are shared (`dataclasses.asdict` takes each apart)."""
    row = _values(trajectory)
    row["segments"] = [_values(segment) for segment in trajectory.segments]
    row["calls"] = [_values(call) for call in trajectory.calls]
    return row


def from_row(row: dict[str, Any]) -> Trajectory:
    """The trajectory that a whole row of `stream` or `to_row` holds."""
    row["segments"] = [Segment(**segment) for segment in row["segments"]]
    row["calls"] = [ToolCall(**call) for call in row["calls"]]
    return Trajectory(**row)


def _group(rows: Iterator[dict[str, Any]]) -> pa.Table:
    """The next row group; made of small tables, since a row takes ten times the space as Python objects."""
    batches = (list(itertools.islice(rows, BATCH)) for _ in range(GROUP_BATCHES))
    return pa.concat_tables([pa.Table.from_pylist(batch, schema=SCHEMA) for batch in batches])


def _values(record: Trajectory | Segment | ToolCall) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _schema() -> pa.Schema:
    """Columns straight from the dataclasses, so that a new field is stored without being named here again."""
    nested = {"list[Segment]": _struct(Segment), "list[ToolCall]": _struct(ToolCall)}
    columns = [(field.name, nested.get(str(field.type)) or _TYPES[str(field.type)]) for field in fields(Trajectory)]
    return pa.schema(columns, metadata={_KEY: FORMAT})


def _struct(record: type[Segment] | type[ToolCall]) -> pa.DataType:
    return pa.list_(pa.struct([(field.name, _TYPES[str(field.type)]) for field in fields(record)]))


SCHEMA = _schema()
"""The columns of a trajectory file."""
