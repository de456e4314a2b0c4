"""The curves of the live view, from the metrics that the job writes to its tracking journal.

The first four are the plots of the report (`figures.PLOTS`), which has no journal; here the held-out results and the
pipeline are added.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rstar2_train.analysis.figures import PLOTS, Plot
from rstar2_train.tracking.journal import read_entries

TRAINER_IDLE = "idle/trainer_ratio"
"""Share of a step in which the trainer waited for rollouts: wait / step."""
_HELD_OUT = {
    "reward.svg": ("evaluation/pass_at_1", "held out, pass@1"),
    "tool-errors.svg": ("evaluation/tool_error_ratio", "held out"),
    "length.svg": ("evaluation/mean_tokens", "held out"),
    "truncation.svg": ("evaluation/truncated", "held out"),
}
LIVE_PLOTS = (
    *(dataclasses.replace(plot, curves=(*plot.curves, _HELD_OUT[plot.file])) for plot in PLOTS),
    Plot(
        "",
        "Staleness",
        "steps",
        (("staleness/mean", "mean"), ("staleness/max", "maximum")),
        "Steps between the weights that sampled a token and those that train on it.",
    ),
    Plot(
        "",
        "Idle shares",
        "share of the step",
        ((TRAINER_IDLE, "trainer waits for rollouts"), ("engines/idle_ratio", "engines without a request")),
        "Engines report a share in steps of at least 30 s.",
    ),
    Plot(
        "",
        "Time of a step",
        "seconds",
        (("time/step_seconds", "step"), ("time/rollout_seconds", "rollouts"), ("time/update_seconds", "update")),
        "Rollouts of a later step may run during an update, so the parts may exceed the step.",
    ),
    Plot("", "Loss of SFT", "nats per token", (("sft/loss", "demonstrations"),), "Supervised stages only."),
)
"""The curves of the page. Figures of an evaluation are drawn at the end of its stage."""
DRAWN = frozenset(metric for plot in LIVE_PLOTS for metric, _ in plot.curves)


def plots_data() -> list[dict[str, Any]]:
    """Return the plots for the page."""
    return [
        {"title": plot.title, "unit": plot.unit, "curves": plot.curves, "caption": plot.caption} for plot in LIVE_PLOTS
    ]


def drawn_values(values: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of one event that the page draws."""
    drawn = {name: value for name, value in values.items() if name in DRAWN}
    wait, step = values.get("time/wait_seconds"), values.get("time/step_seconds")
    if wait is not None and step:
        drawn[TRAINER_IDLE] = min(1.0, wait / step)
    return drawn


class JournalCurves:
    """The drawn metrics of a journal, in the order of their events. A repeated step has a later event, which counts."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._offset = 0
        self._file: tuple[int, int] | None = None
        self.points: list[tuple[str, int, dict[str, float]]] = []
        """(stage, step, metric -> value)."""

    def read(self) -> bool:
        """Read the new events. Return whether the journal was replaced, so that all points are new."""
        if not self._journal.exists():
            return False
        status = self._journal.stat()
        file = (status.st_dev, status.st_ino)
        is_replaced = self._file not in (None, file) or status.st_size < self._offset
        if is_replaced:
            self._offset, self.points = 0, []
        self._file = file
        for event, end in read_entries(self._journal, self._offset):
            self._offset = end
            is_of_stage = event is not None and event.get("kind") == "metrics" and event["run"]
            if event is not None and is_of_stage and (drawn := drawn_values(event["values"])):
                self.points.append((event["run"], event["step"], drawn))
        return is_replaced
