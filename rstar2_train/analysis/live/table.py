"""Reads the rows of the viewer's table from a trajectory file, by computations over Arrow columns.

A step may have millions of tokens, and a page that follows a job reads every new step. Python objects per token would
take minutes; the lengths and sums of columns take milliseconds. `viewer.table_row` computes the same values from one
trajectory; a test compares them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rstar2_train.analysis.sources import TrajectoryFile
from rstar2_train.analysis.viewer import COLUMNS
from rstar2_train.rollout import trajectory_store

ROW_COLUMNS = tuple(name for name in COLUMNS if name not in ("chunk", "place"))
"""The columns without the location of the texts: the view loads a trajectory by its row."""
_STORED = {
    "prompt": "prompt_id", "sample": "sample", "slice": "slice", "verdict": "verdict", "reward": "reward",
    "stop": "stop", "reason": "selection_reason", "kept": "kept", "p_err": "p_err", "p_format": "p_format",
    "turns": "turns",
}  # fmt: skip
"""Column of the table -> column of the file with the same values."""
_NESTED = (
    "calls.list.element.status",
    "segments.list.element.kind",
    "segments.list.element.token_ids",
    "segments.list.element.logprobs",
)


def read_table(source: TrajectoryFile) -> dict[str, list[Any]]:
    """Return the columns of the table for all rows of a file. Raises TrajectoryStoreError."""
    columns: dict[str, list[Any]] = {name: [] for name in ROW_COLUMNS}
    for batch in trajectory_store.batches(source.path, [*_STORED.values(), *_NESTED]):
        for name, values in _batch_columns(batch).items():
            columns[name] += values
    rows = len(columns["prompt"])
    constants = {"stage": source.stage, "set": source.set, "step": source.step, "entropy": None}
    return columns | {name: [value] * rows for name, value in constants.items()}


def matching_rows(path: Path, text: str, prompts: dict[str, str], decode: Any) -> list[int]:
    """Return the rows of a file whose prompt, prompt id or response contains `text`, in any case.

    `prompts`: prompt id -> lower-case text of the prompt; extended by the prompts that are not in it.
    """
    matches: list[int] = []
    start = 0
    text = text.lower()
    for batch in trajectory_store.batches(path, ["prompt_id", "prompt_ids", "text"]):
        response = pc.match_substring(batch["text"], text, ignore_case=True).to_pylist()
        for place, prompt_id in enumerate(batch["prompt_id"].to_pylist()):
            if prompt_id not in prompts:
                prompts[prompt_id] = decode(batch["prompt_ids"][place].as_py()).lower()
            if response[place] or text in prompt_id.lower() or text in prompts[prompt_id]:
                matches.append(start + place)
        start += batch.num_rows
    return matches


def _batch_columns(batch: pa.RecordBatch) -> dict[str, list[Any]]:
    rows = batch.num_rows
    columns: dict[str, list[Any]] = {name: batch[stored].to_pylist() for name, stored in _STORED.items()}
    for name in ("p_err", "p_format"):
        columns[name] = [round(value, 3) for value in columns[name]]
    calls, call_row = _members(batch["calls"])
    failed = _numpy(pc.not_equal(pc.struct_field(calls, "status"), "ok"))
    columns["calls"] = np.bincount(call_row, minlength=rows).tolist()
    columns["errors"] = np.bincount(call_row[failed], minlength=rows).tolist()
    segments, segment_row = _members(batch["segments"])
    kinds = pc.struct_field(segments, "kind")
    lengths = _numpy(pc.list_value_length(pc.struct_field(segments, "token_ids")))
    responses = _numpy(pc.not_equal(kinds, "prompt"))
    columns["tokens"] = _sums(segment_row[responses], lengths[responses], rows).astype(int).tolist()
    logprobs, position = _members(pc.struct_field(segments, "logprobs"))
    sampled = _numpy(pc.equal(kinds, "model"))[position]
    row = segment_row[position][sampled]
    totals = _sums(row, np.maximum(-_numpy(logprobs).astype(np.float64), 0.0)[sampled], rows)
    counts = np.bincount(row, minlength=rows)
    columns["surprisal"] = [
        round(total / count, 4) if count else None
        for total, count in zip(totals.tolist(), counts.tolist(), strict=True)
    ]
    return columns


def _members(lists: pa.ListArray) -> tuple[Any, Any]:
    """Return the members of all lists, and for each the index of its list."""
    return pc.list_flatten(lists), _numpy(pc.list_parent_indices(lists))


def _numpy(values: Any) -> Any:
    return values.to_numpy(zero_copy_only=False)


def _sums(index: Any, values: Any, rows: int) -> Any:
    return np.bincount(index, weights=values, minlength=rows)
