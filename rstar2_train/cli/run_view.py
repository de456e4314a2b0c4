"""The output of `rstar2 run`, `eval` and `filter`: their messages, the progress (terminal_view.py) and the report."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from rstar2_train.api.state_dir import JobState
    from rstar2_train.evaluation.records import JobReport
    from rstar2_train.launch.local.run_view import Tone

STYLES: dict[Tone, str] = {
    "plain": "",
    "progress": "dim",
    "success": "green",
    "warning": "yellow",
    "failure": "red",
}


@dataclass(frozen=True, slots=True)
class TerminalRunView:
    """A `launch.local.run_view.RunView` on a console."""

    console: Console

    def print_line(self, text: str, tone: Tone = "plain") -> None:
        """Print a text in the colour of its tone; the terminal breaks long lines."""
        self.console.print(text, style=STYLES[tone], markup=False, emoji=False, highlight=False, soft_wrap=True)

    def print_report(self, report: JobReport) -> None:
        """Print the tables after an empty line."""
        from rstar2_train.cli.report_tables import ReportTables

        self.console.print()
        self.console.print(ReportTables(report))

    async def follow(
        self,
        state: JobState,
        *,
        title: str,
        started: float,
        health: Callable[[], Mapping[str, str]],
        stop: asyncio.Event,
    ) -> None:
        """Display the panel in a terminal, else a line per step."""
        from rstar2_train.cli.terminal_view import watch

        await watch(state, stop=stop, health=health, title=title, console=self.console, started=started)
