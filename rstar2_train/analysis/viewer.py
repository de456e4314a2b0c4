"""Writes the data files of the trajectory viewer: a table of all trajectories, and their texts in chunks.

The page (`viewer.js`) runs from file://, where a script cannot read files but can add `<script src>`. Each data file is
therefore a script that calls one function with JSON. Texts of models are only strings in that JSON, and the page
inserts them as text nodes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rstar2_train.analysis.sources import TrajectoryFile
from rstar2_train.analysis.tokens import AnnotatedTurn, mark_highest
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.utils.numbers import mean

CHUNK_CHARACTERS = 1_000_000
"""Size at which a chunk is complete: fast to load, but not too many files."""
UNITS_PER_NAT = 100
"""Values are stored as integers, in hundredths of a nat."""
COLUMNS = (
    "stage", "set", "step", "prompt", "sample", "slice", "verdict", "reward", "stop", "reason", "kept", "p_err",
    "p_format", "calls", "errors", "turns", "tokens", "surprisal", "entropy", "chunk", "place",
)  # fmt: skip
"""Columns of the table. `chunk` and `place` are the location of a trajectory's texts."""


class ViewerData:
    """Writes `index.js` and `chunk-*.js` into a folder, one trajectory at a time."""

    def __init__(self, folder: Path) -> None:
        """Create `folder`."""
        folder.mkdir(parents=True)
        self._folder = folder
        self._columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        self._chunk = 0
        self._rows: list[str] = []
        self._prompts: dict[str, int] = {}
        self._size = 0

    def __len__(self) -> int:
        """Return the number of added trajectories."""
        return len(self._columns["stage"])

    def add(self, source: TrajectoryFile, trajectory: Trajectory, turns: Sequence[AnnotatedTurn], prompt: str) -> None:
        """Append a trajectory. `prompt`: text of its prompt."""
        values = table_row(source, trajectory, turns) | {"chunk": self._chunk, "place": len(self._rows)}
        for name, column in self._columns.items():
            column.append(values[name])
        if prompt not in self._prompts:
            self._prompts[prompt] = len(self._prompts)
            self._size += len(prompt)
        row = json.dumps({"prompt": self._prompts[prompt]} | trajectory_data(trajectory, turns), separators=(",", ":"))
        self._rows.append(row)
        self._size += len(row)
        if self._size >= CHUNK_CHARACTERS:
            self._close_chunk()

    def finish(self, constants: dict[str, Any]) -> None:
        """Write the last chunk, and the table with `constants` for the page."""
        if self._rows:
            self._close_chunk()
        table = json.dumps(constants | {"chunks": self._chunk, "columns": self._columns}, separators=(",", ":"))
        (self._folder / "index.js").write_text(f"rstar2.index({escape_markup(table)});\n", encoding="utf-8")

    def _close_chunk(self) -> None:
        prompts = json.dumps(list(self._prompts))
        text = f'{{"prompts":{prompts},"rows":[\n' + ",\n".join(self._rows) + "\n]}"
        (self._folder / f"chunk-{self._chunk}.js").write_text(
            f"rstar2.chunk({self._chunk},{escape_markup(text)});\n", encoding="utf-8"
        )
        self._chunk += 1
        self._rows, self._prompts, self._size = [], {}, 0


def escape_markup(text: str) -> str:
    r"""Return JSON without `<`, which becomes `\u003c`, so that an HTML parser finds no markup in it."""
    return text.replace("<", "\\u003c")


def table_row(source: TrajectoryFile, trajectory: Trajectory, turns: Sequence[AnnotatedTurn]) -> dict[str, Any]:
    """Return the row of a trajectory in the table, without the location of its texts. Pure."""
    return {
        "stage": source.stage,
        "set": source.set,
        "step": source.step,
        "prompt": trajectory.prompt_id,
        "sample": trajectory.sample,
        "slice": trajectory.slice,
        "verdict": trajectory.verdict,
        "reward": trajectory.reward,
        "stop": trajectory.stop,
        "reason": trajectory.selection_reason,
        "kept": trajectory.kept,
        "p_err": round(trajectory.p_err, 3),
        "p_format": round(trajectory.p_format, 3),
        "calls": len(trajectory.calls),
        "errors": trajectory.call_errors,
        "turns": trajectory.turns,
        "tokens": trajectory.response_tokens,
        "surprisal": _rounded_mean([value for turn in turns for value in turn.surprisal]),
        "entropy": _rounded_mean([value for turn in turns for value in turn.entropy]),
    }


def trajectory_data(trajectory: Trajectory, turns: Sequence[AnnotatedTurn]) -> dict[str, Any]:
    """Return the data of one trajectory: values in hundredths of a nat, regions as (region, tokens) runs. Pure.

    `high`: measure -> indices of the top 20 % of the trajectory's model tokens, in order.
    """
    marks: dict[str, list[bool]] = {
        "surprisal": mark_highest([value for turn in turns for value in turn.surprisal]),
        "entropy": mark_highest([value for turn in turns for value in turn.entropy]),
    }
    return {
        "turns": [_turn(turn) for turn in turns],
        "high": {name: [index for index, high in enumerate(column) if high] for name, column in marks.items()},
        "calls": [
            {"turn": call.turn, "name": call.name, "status": call.status, "code": call.code, "stdin": call.stdin,
             "queue": round(call.queue_seconds, 3), "run": round(call.run_seconds, 3)}
            for call in trajectory.calls
        ],
        "answer": trajectory.answer,
        "gold": trajectory.gold,
        "why": trajectory.reason,
        "error": trajectory.error,
        "seconds": round(trajectory.seconds, 2),
    }  # fmt: skip


def _turn(turn: AnnotatedTurn) -> dict[str, Any]:
    if turn.kind == "tool":
        return {"kind": "tool", "text": "".join(turn.texts), "seconds": round(turn.seconds, 3)}
    runs: list[list[Any]] = []
    for region in turn.regions:
        if runs and runs[-1][0] == region:
            runs[-1][1] += 1
        else:
            runs.append([region, 1])
    return {
        "kind": "model",
        "pieces": turn.texts,
        "surprisal": [round(value * UNITS_PER_NAT) for value in turn.surprisal],
        "entropy": [round(value * UNITS_PER_NAT) for value in turn.entropy],
        "regions": runs,
        "forking": [index for index, is_forking in enumerate(turn.forking) if is_forking],
        "weights": turn.weights,
        "seconds": round(turn.seconds, 3),
    }


def _rounded_mean(values: Sequence[float]) -> float | None:
    value = mean(values)
    return None if value is None else round(value, 4)
