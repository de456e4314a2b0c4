"""The data of the trajectory viewer: a table of all trajectories, and their text in chunks that are read one at a time.

The page (`viewer.js`) runs from file://, where a script may not read files but may add `<script src>`: each data file
is a script that calls one function with JSON. Whatever text a model wrote, it is only ever a string in that JSON, and
the page shows it as text nodes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rstar2_train.analysis.sources import TrajectoryFile
from rstar2_train.analysis.tokens import AnnotatedTurn, highest
from rstar2_train.rollout.trajectory import Trajectory

CHUNK_CHARACTERS = 1_000_000
"""A chunk is closed once it is as large: small enough to be read in a blink, large enough to be few files."""
NATS = 100
"""Values are stored as whole hundredths of a nat."""
COLUMNS = (
    "stage", "set", "step", "prompt", "sample", "slice", "verdict", "reward", "stop", "reason", "kept", "p_err",
    "p_format", "calls", "errors", "turns", "tokens", "surprisal", "entropy", "chunk", "place",
)  # fmt: skip
"""Of the table; `chunk` and `place` say where a trajectory's text is."""


class ViewerData:
    """Writes `index.js` and `chunk-*.js` into a folder, one trajectory after another."""

    def __init__(self, folder: Path) -> None:
        """`folder` is made."""
        folder.mkdir(parents=True)
        self._folder = folder
        self._columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        self._chunk = 0
        self._rows: list[str] = []
        self._prompts: dict[str, int] = {}
        self._size = 0

    def __len__(self) -> int:
        """Trajectories so far."""
        return len(self._columns["stage"])

    def add(self, source: TrajectoryFile, trajectory: Trajectory, turns: Sequence[AnnotatedTurn], prompt: str) -> None:
        """Put a trajectory behind the others. `prompt`: its prompt as text."""
        values = facts(source, trajectory, turns) | {"chunk": self._chunk, "place": len(self._rows)}
        for name, column in self._columns.items():
            column.append(values[name])
        if prompt not in self._prompts:
            self._prompts[prompt] = len(self._prompts)
            self._size += len(prompt)
        row = json.dumps({"prompt": self._prompts[prompt]} | body(trajectory, turns), separators=(",", ":"))
        self._rows.append(row)
        self._size += len(row)
        if self._size >= CHUNK_CHARACTERS:
            self._close_chunk()

    def finish(self, about: dict[str, Any]) -> None:
        """Write what is left, and the table with `about` beside it."""
        if self._rows:
            self._close_chunk()
        table = json.dumps(about | {"chunks": self._chunk, "columns": self._columns}, separators=(",", ":"))
        (self._folder / "index.js").write_text(f"rstar2.index({harmless(table)});\n", encoding="utf-8")

    def _close_chunk(self) -> None:
        prompts = json.dumps(list(self._prompts))
        text = f'{{"prompts":{prompts},"rows":[\n' + ",\n".join(self._rows) + "\n]}"
        (self._folder / f"chunk-{self._chunk}.js").write_text(
            f"rstar2.chunk({self._chunk},{harmless(text)});\n", encoding="utf-8"
        )
        self._chunk += 1
        self._rows, self._prompts, self._size = [], {}, 0


def harmless(text: str) -> str:
    r"""JSON (ASCII, as `json.dumps` writes it) that no HTML parser can mistake for markup: every `<` is `\u003c`."""
    return text.replace("<", "\\u003c")


def facts(source: TrajectoryFile, trajectory: Trajectory, turns: Sequence[AnnotatedTurn]) -> dict[str, Any]:
    """The row of a trajectory in the table, but for where its text is: what the list shows and filters by. Pure."""
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
        "reason": trajectory.kept_reason,
        "kept": trajectory.kept,
        "p_err": round(trajectory.p_err, 3),
        "p_format": round(trajectory.p_format, 3),
        "calls": len(trajectory.calls),
        "errors": trajectory.call_errors,
        "turns": trajectory.turns,
        "tokens": trajectory.response_tokens,
        "surprisal": _mean([value for turn in turns for value in turn.surprisal]),
        "entropy": _mean([value for turn in turns for value in turn.entropy]),
    }


def body(trajectory: Trajectory, turns: Sequence[AnnotatedTurn]) -> dict[str, Any]:
    """What the page shows of one trajectory; values in hundredths of a nat, regions as runs of equal ones. Pure.

    `high`: for each measure, the indices of the top 20 % among the trajectory's model tokens, in order.
    """
    marks: dict[str, list[bool]] = {
        "surprisal": highest([value for turn in turns for value in turn.surprisal]),
        "entropy": highest([value for turn in turns for value in turn.entropy]),
    }
    return {
        "turns": [_turn(turn) for turn in turns],
        "high": {name: [at for at, high in enumerate(column) if high] for name, column in marks.items()},
        "calls": [
            {"turn": call.turn, "name": call.name, "status": call.status, "code": call.code, "stdin": call.stdin,
             "queue": round(call.queue_seconds, 3), "run": round(call.run_seconds, 3)}
            for call in trajectory.calls
        ],
        "answer": trajectory.answer,
        "gold": trajectory.gold,
        "error": trajectory.error,
        "seconds": round(trajectory.seconds, 2),
    }  # fmt: skip


def _turn(turn: AnnotatedTurn) -> dict[str, Any]:
    if turn.kind == "tool":
        return {"kind": "tool", "text": "".join(turn.pieces), "seconds": round(turn.seconds, 3)}
    runs: list[list[Any]] = []
    for region in turn.regions:
        if runs and runs[-1][0] == region:
            runs[-1][1] += 1
        else:
            runs.append([region, 1])
    return {
        "kind": "model",
        "pieces": turn.pieces,
        "surprisal": [round(value * NATS) for value in turn.surprisal],
        "entropy": [round(value * NATS) for value in turn.entropy],
        "regions": runs,
        "forking": [at for at, forks in enumerate(turn.forking) if forks],
        "weights": turn.weights,
        "seconds": round(turn.seconds, 3),
    }


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None
