"""The output of a run: messages, progress, report. `cli/run_view.py` prints it to a terminal or a log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Literal, Protocol

from rstar2_train.api.state_dir import JobState
from rstar2_train.evaluation.records import JobReport

Tone = Literal["plain", "progress", "success", "warning", "failure"]


class RunView(Protocol):
    """The output of a run for a person."""

    def print_line(self, text: str, tone: Tone = "plain") -> None:
        """Print a text as it is. It may have several lines."""

    def print_report(self, report: JobReport) -> None:
        """Print the tables of a report."""

    async def follow(
        self,
        state: JobState,
        *,
        title: str,
        started: float,
        health: Callable[[], Mapping[str, str]],
        stop: asyncio.Event,
    ) -> None:
        """Display the progress of a job until `stop` is set, then once more.

        `started`: Unix time of the start. `health`: returns the state of each child process.
        """
