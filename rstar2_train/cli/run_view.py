"""The output of `rstar2 run`, `eval` and `filter` in a terminal or a log: messages, progress and report."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live

from rstar2_train.api.contracts import Progress
from rstar2_train.api.state_dir import JobState
from rstar2_train.cli.report_tables import ReportTables
from rstar2_train.cli.terminal_view import View, clock, lines, read_view, render
from rstar2_train.evaluation.records import JobReport
from rstar2_train.launch.local.run_view import Tone
from rstar2_train.utils.terminal import hidden_control_characters

STYLES: dict[Tone, str] = {
    "plain": "",
    "progress": "dim",
    "success": "green",
    "warning": "yellow",
    "failure": "red",
}
REFRESH_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class TerminalRunView:
    """A `launch.local.run_view.RunView` on a console."""

    console: Console

    def print_line(self, text: str, tone: Tone = "plain") -> None:
        """Print a text in the colour of its tone; the terminal breaks long lines."""
        self.console.print(text, style=STYLES[tone], markup=False, emoji=False, highlight=False, soft_wrap=True)

    def print_report(self, report: JobReport) -> None:
        """Print the tables after an empty line."""
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
        """Display the panel in a terminal, else a line per step. `health`: called at every refresh."""
        rewards, show = _Rewards(), self._new_lines()
        with contextlib.ExitStack() as terminal:
            if self.console.is_terminal:
                terminal.enter_context(hidden_control_characters())
                live = terminal.enter_context(Live(console=self.console, refresh_per_second=4, transient=False))
                show = lambda view: live.update(render(view))  # noqa: E731
            while True:
                last = stop.is_set()
                view = read_view(state, started=started, health=health(), history=rewards.values, title=title)
                if view is not None:
                    rewards.add(view.progress)
                    show(view)
                if last:
                    return
                await _pause(stop)

    def _new_lines(self) -> Callable[[View], None]:
        """Return a function that prints those lines of a view that it has not printed."""
        printed = {""}

        def show(view: View) -> None:
            for key, text in lines(view):
                if key not in printed and text:
                    self.print_line(f"[{clock(view.elapsed)}] {text}")
                    printed.add(key)

        return show


class _Rewards:
    """The rewards of the last steps of the running stage."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self._last = ("", -1)

    def add(self, progress: Progress | None) -> None:
        if progress is None or "reward" not in progress.metrics or (progress.stage, progress.step) == self._last:
            return
        if progress.stage != self._last[0]:
            self.values.clear()
        self._last = (progress.stage, progress.step)
        self.values.append(progress.metrics["reward"])
        del self.values[:-40]


async def _pause(stop: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REFRESH_SECONDS):
            await stop.wait()
