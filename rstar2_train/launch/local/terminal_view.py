"""The terminal view of `rstar2 run`: which stage, how far, how well, and whether the helpers are up.

Reads what the drivers write into the state folder. `read_view` gathers, `render` and `line` are pure (view in, picture
out), `watch` is the thin loop: a live picture on a terminal, one line a step where there is none (CI logs).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rstar2_train.api.contracts import Outcome, Progress
from rstar2_train.api.stages import Stage
from rstar2_train.api.state_dir import JobState, StageState

_REFRESH_SECONDS = 0.5
_MARKS = {
    "completed": ("✓", "green"),
    "advanced": ("✓", "green"),
    "suspended": ("‖", "yellow"),
    "failed": ("✗", "red"),
}
_METRICS = (
    ("reward", "reward", "{:.3f}"),
    ("tool_error_ratio", "tool errors", "{:.1%}"),
    ("truncated", "cut off", "{:.1%}"),
    ("all_correct", "all-correct groups", "{:.0%}"),
    ("response_tokens", "response tokens", "{:.1f}"),
    ("tokens_per_second", "tokens/s", "{:,.0f}"),
    ("loss", "loss", "{:.4f}"),
    ("pass_at_1", "pass@1", "{:.3f}"),
)
"""Progress metric, its label, its form; in the order shown. Metrics not named here come after, as they are."""


@dataclass(frozen=True)
class StageView:
    """One line of the list of stages."""

    name: str
    type: str
    outcome: Outcome | None
    pass_at_1: float | None = None
    """What its model reached on the held-out set, once that was measured."""


@dataclass(frozen=True)
class View:
    """All that is shown."""

    job: str
    stages: Sequence[StageView]
    progress: Progress | None
    """What the running stage last said."""
    elapsed: float
    """Seconds since the run began."""
    now: float
    """Unix time."""
    health: Mapping[str, str] = field(default_factory=dict)
    """A word on each child process."""
    history: Sequence[float] = ()
    """Rewards of the running stage's last steps, for the sparkline."""

    @property
    def current(self) -> str | None:
        """The stage that runs: the one that progress is of, unless it has ended."""
        if self.progress is None:
            return None
        ended = next((one.outcome for one in self.stages if one.name == self.progress.stage), None)
        over = ended is not None and ended.attempt >= self.progress.attempt
        return None if over else self.progress.stage


def read_view(
    state: JobState, *, started: float, health: Mapping[str, str], history: Sequence[float] = ()
) -> View | None:
    """Gather what the state folder says now; None before the job file is there. `started`: Unix time."""
    if not state.job_file.exists():
        return None
    job = state.job()
    now = time.time()
    return View(
        job=job.metadata.name,
        stages=[_read_stage(state.stage(one.name), one) for one in job.spec.stages],
        progress=state.progress(),
        elapsed=now - started,
        now=now,
        health=health,
        history=history,
    )


def _read_stage(folder: StageState, stage: Stage) -> StageView:
    score = None
    if folder.evaluation_file.exists():
        score = json.loads(folder.evaluation_file.read_text(encoding="utf-8"))["pass_at_1"]
    outcome = folder.outcome()
    attempt = folder.attempt()
    if outcome is not None and attempt is not None and outcome.attempt < attempt.attempt:
        outcome = None  # an earlier attempt's: another one runs
    return StageView(stage.name, stage.type, outcome, score)


def render(view: View) -> RenderableType:
    """The picture: stages, the running one's bar and figures, health."""
    rows: list[RenderableType] = [_stages(view)]
    progress = view.progress
    if progress is not None and view.current is not None:
        rows += [Text(""), _bar(progress), *([_figures(progress, view)] if _named(progress) else [])]
    rows += [Text(""), _times(view)]
    if view.health:
        rows.append(_health(view.health))
    return Panel(Group(*rows), title=f"rstar2 run: {view.job}", title_align="left", border_style="dim")


def line(view: View) -> str:
    """The running stage in one line of plain text; empty when no stage runs."""
    progress = view.progress
    if progress is None or view.current is None:
        return ""
    parts = [f"{progress.stage}: {progress.phase.lower()}"]
    if progress.step or progress.total_steps:
        parts.append(f"step {_steps(progress)}")
    parts += [f"{label} {value}" for label, value in _named(progress)]
    left = _left(progress, view.now)
    if left is not None:
        parts.append(f"{clock(left)} left in this stage")
    return ", ".join(parts)


def ending_line(stage: StageView) -> str:
    """How a stage ended, in one line of plain text; empty when it has not."""
    if stage.outcome is None:
        return ""
    score = "" if stage.pass_at_1 is None else f", pass@1 {stage.pass_at_1:.3f}"
    return f"{stage.name}: {_ending(stage.outcome)}{score}"


async def watch(
    state: JobState,
    *,
    stop: asyncio.Event,
    health: Callable[[], Mapping[str, str]],
    console: Console | None = None,
    started: float | None = None,
) -> None:
    """Show the job until `stop` is set, then once more. `health` is asked at every refresh."""
    out = console or Console()
    began = started or time.time()
    rewards = _Rewards()
    if out.is_terminal:
        with Live(console=out, refresh_per_second=4, transient=False) as live:
            while True:
                ending = stop.is_set()
                view = read_view(state, started=began, health=health(), history=rewards.values)
                if view is not None:
                    rewards.add(view.progress)
                    live.update(render(view))
                if ending:
                    return
                await _pause(stop)
    said = {""}
    while True:
        ending = stop.is_set()
        view = read_view(state, started=began, health=health())
        if view is not None:
            for key, text in _news(view):
                if key not in said and text:
                    out.print(f"[{clock(view.elapsed)}] {text}", markup=False, highlight=False, soft_wrap=True)
                    said.add(key)
        if ending:
            return
        await _pause(stop)


def _news(view: View) -> list[tuple[str, str]]:
    """What there is to say, each with a key that changes when it is news."""
    news = [(ending_line(stage), ending_line(stage)) for stage in view.stages]
    progress = view.progress
    if progress is not None:
        news.append((f"{progress.stage} {progress.attempt} {progress.phase} {progress.step}", line(view)))
    return news


def clock(seconds: float) -> str:
    """Seconds as `m:ss` or `h:mm:ss`."""
    whole = max(0, int(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


class _Rewards:
    """The rewards of the running stage, one a step."""

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


def _stages(view: View) -> Table:
    table = Table.grid(padding=(0, 2))
    for stage in view.stages:
        running = stage.name == view.current
        mark, style = ("▶", "bold cyan") if running else ("·", "dim")
        note = ""
        if running and view.progress is not None:
            note = view.progress.phase.lower()
            if view.progress.attempt > 1:
                note += f", attempt {view.progress.attempt}"
        elif stage.outcome is not None:
            mark, style = _MARKS[stage.outcome.outcome]
            note = _ending(stage.outcome)
        score = "" if stage.pass_at_1 is None else f"pass@1 {stage.pass_at_1:.3f}"
        table.add_row(
            Text(mark, style), Text(stage.name, style), Text(stage.type, "dim"), Text(score), Text(note, style)
        )
    return table


def _ending(outcome: Outcome) -> str:
    steps = f"{outcome.checkpoint.step} steps" if outcome.checkpoint is not None and outcome.checkpoint.step else ""
    if outcome.outcome == "completed":
        return f"completed, {steps}" if steps else "completed"
    words = f"{outcome.outcome}: {outcome.reason}"
    if outcome.outcome == "failed" and outcome.message:
        words += f", {outcome.message}"
    return ", ".join(part for part in (words, steps) if part)


def _bar(progress: Progress) -> Table:
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    table.add_column(no_wrap=True, justify="right")
    known = progress.total_steps is not None
    bar = ProgressBar(total=progress.total_steps or 1, completed=progress.step if known else 0)
    table.add_row(Text(progress.stage, "bold"), bar, Text(f"step {_steps(progress)}"))
    return table


def _figures(progress: Progress, view: View) -> Table:
    table = Table.grid(padding=(0, 3))
    cells = [Text.assemble((label, "dim"), " ", (value, "bold")) for label, value in _named(progress)]
    if len(view.history) > 1:
        cells.append(Text.assemble(("reward so far", "dim"), " ", (sparkline(view.history), "cyan")))
    for start in range(0, len(cells), 3):
        table.add_row(*cells[start : start + 3])
    return table


def _times(view: View) -> Text:
    text = Text.assemble(("elapsed", "dim"), f" {clock(view.elapsed)}")
    left = _left(view.progress, view.now) if view.progress is not None and view.current is not None else None
    if left is not None:
        text.append_text(Text.assemble(("   left in this stage", "dim"), f" {clock(left)}"))
    return text


def _health(health: Mapping[str, str]) -> Columns:
    """The children, each with a mark; more than a name only where there is something to say."""
    cells = []
    for name, word in health.items():
        good = word == "ready"
        style = "green" if word.startswith("ready") else "yellow"
        cells.append(
            Text.assemble(("●" if style == "green" else "○", style), f" {name}", ("" if good else f" {word}", style))
        )
    return Columns(cells, padding=(0, 3))


def sparkline(values: Sequence[float]) -> str:
    """Values as a row of bars between their least and their greatest."""
    low, high = min(values), max(values)
    bars = "▁▂▃▄▅▆▇█"
    span = high - low
    return "".join(bars[round((value - low) / span * (len(bars) - 1)) if span else 0] for value in values)


def _named(progress: Progress) -> list[tuple[str, str]]:
    known = [(label, form.format(progress.metrics[key])) for key, label, form in _METRICS if key in progress.metrics]
    names = {key for key, _, _ in _METRICS}
    if progress.rollouts_total and progress.phase != "Training":
        known.insert(0, ("rollouts", f"{progress.rollouts_done}/{progress.rollouts_total}"))
    rest = [(key.replace("_", " "), f"{value:.4g}") for key, value in progress.metrics.items() if key not in names]
    return known + rest


def _steps(progress: Progress) -> str:
    return f"{progress.step}/{progress.total_steps}" if progress.total_steps is not None else str(progress.step)


def _left(progress: Progress, now: float) -> float | None:
    """Time left in the stage: what the driver said, less the time since."""
    if progress.estimated_remaining_seconds is None:
        return None
    return max(0.0, progress.estimated_remaining_seconds - (now - progress.updated_at))


async def _pause(stop: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_REFRESH_SECONDS):
            await stop.wait()
