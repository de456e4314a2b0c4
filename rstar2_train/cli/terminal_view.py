"""The progress of `rstar2 run`, `eval` and `filter`: stages, metrics, states of the child processes.

    files in the state folder -> read_view -> View -> render (live panel) or lines (one line per step)

`run_view.py` has the loop around them. `render` and `lines` are pure.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rstar2_train.api.contracts import Outcome, Progress
from rstar2_train.api.stages import Stage
from rstar2_train.api.state_dir import JobState, StageState

_LINE_SECONDS = 30.0
"""Interval of the lines of a stage without steps, if there is no terminal."""
_BAR = 24
"""Characters of a progress bar."""
_MARKS = {
    "completed": ("✓", "green"),
    "advanced": ("✓", "green"),
    "suspended": ("‖", "yellow"),
    "failed": ("✗", "red"),
}
_METRICS = (
    ("reward", "reward", "{:.3f}"),
    ("correct_so_far", "correct so far", "{:.1%}"),
    ("kept", "problems kept", "{:.0f}"),
    ("seen", "of", "{:.0f}"),
    ("tool_error_ratio", "tool errors", "{:.1%}"),
    ("truncated", "truncated", "{:.1%}"),
    ("all_correct", "all-correct groups", "{:.0%}"),
    ("response_tokens", "response tokens", "{:.1f}"),
    ("tokens_per_second", "tokens/s", "{:,.0f}"),
    ("engines_idle", "engines idle", "{:.0%}"),
    ("makespan_over_bound", "rollout time / bound", "{:.2f}"),
    ("loss", "loss", "{:.4f}"),
    ("pass_at_1", "pass@1", "{:.3f}"),
)
"""Progress metric, its label and its format, in the order of the display. Other metrics follow without a label."""


@dataclass(frozen=True)
class StageView:
    """A stage in the list of stages."""

    name: str
    type: str
    outcome: Outcome | None
    pass_at_1: float | None = None
    """Result of its model on the held-out set; None: not measured."""


@dataclass(frozen=True)
class View:
    """Everything that the view displays."""

    title: str
    stages: Sequence[StageView]
    progress: Progress | None
    """Last progress report of an orchestrator."""
    elapsed: float
    """Seconds since the start of the run."""
    now: float
    """Unix time."""
    health: Mapping[str, str] = field(default_factory=dict)
    """State of each child process."""
    history: Sequence[float] = ()
    """Rewards of the last steps of the running stage, for the sparkline."""

    @property
    def current(self) -> str | None:
        """The running stage: the one of the last progress report, unless that attempt has an outcome."""
        if self.progress is None:
            return None
        outcome = next((stage.outcome for stage in self.stages if stage.name == self.progress.stage), None)
        is_over = outcome is not None and outcome.attempt >= self.progress.attempt
        return None if is_over else self.progress.stage


def read_view(
    state: JobState, *, started: float, health: Mapping[str, str], history: Sequence[float] = (), title: str = ""
) -> View | None:
    """Read the state folder; None if it has no job file yet. `started`: Unix time."""
    if not state.job_file.exists():
        return None
    job = state.job()
    now = time.time()
    return View(
        title=title or f"rstar2 run: {job.metadata.name}",
        stages=[_read_stage(state.stage(stage.name), stage) for stage in job.spec.stages],
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
        outcome = None  # of an earlier attempt; another one runs
    return StageView(stage.name, stage.type, outcome, score)


def render(view: View) -> RenderableType:
    """Return the panel: stages, progress bar and metrics of the running stage, child processes."""
    rows: list[RenderableType] = [_stages(view)]
    progress = view.progress
    if progress is not None and view.current is not None:
        rows += [Text(""), _bar(progress), *([_metrics_table(progress, view)] if _metrics(progress) else [])]
    rows += [Text(""), _times(view)]
    if view.health:
        rows.append(_health(view.health))
    return Panel(Group(*rows), title=Text(view.title), title_align="left", border_style="dim")


def line(view: View) -> str:
    """Return the running stage as one line of text; empty if no stage runs."""
    progress = view.progress
    if progress is None or view.current is None:
        return ""
    parts = [f"{progress.stage}: {progress.phase.lower()}"]
    if progress.step or progress.total_steps:
        parts.append(f"step {_steps(progress)}")
    parts += [f"{label} {value}" for label, value in _metrics(progress)]
    remaining = _remaining(progress, view.now)
    if remaining is not None:
        parts.append(f"{clock(remaining)} remaining in this stage")
    return ", ".join(parts)


def outcome_line(stage: StageView) -> str:
    """Return the outcome of a stage as one line of text; empty if it has none."""
    if stage.outcome is None:
        return ""
    score = "" if stage.pass_at_1 is None else f", pass@1 {stage.pass_at_1:.3f}"
    return f"{stage.name}: {_outcome_text(stage.outcome)}{score}"


def lines(view: View) -> list[tuple[str, str]]:
    """Return the current lines, each with a key; a line with a new key has not been printed."""
    rows = [(outcome_line(stage), outcome_line(stage)) for stage in view.stages]
    progress = view.progress
    if progress is not None:
        key = f"{progress.stage} {progress.attempt} {progress.phase} {progress.step}"
        if progress.total_steps is None and progress.rollouts_done:
            key += f" {view.elapsed // _LINE_SECONDS}"
        rows.append((key, line(view)))
    return rows


def clock(seconds: float) -> str:
    """Return seconds as `m:ss` or `h:mm:ss`."""
    whole = max(0, int(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


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
            note = _outcome_text(stage.outcome)
        score = "" if stage.pass_at_1 is None else f"pass@1 {stage.pass_at_1:.3f}"
        table.add_row(
            Text(mark, style), Text(stage.name, style), Text(stage.type, "dim"), Text(score), Text(note, style)
        )
    return table


def _outcome_text(outcome: Outcome) -> str:
    steps = f"{outcome.checkpoint.step} steps" if outcome.checkpoint is not None and outcome.checkpoint.step else ""
    if outcome.outcome == "completed":
        return f"completed, {steps}" if steps else "completed"
    text = f"{outcome.outcome}: {outcome.reason}"
    if outcome.outcome == "failed" and outcome.message:
        text += f", {outcome.message}"
    return ", ".join(part for part in (text, steps) if part)


def _bar(progress: Progress) -> Table:
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    table.add_column(no_wrap=True, justify="right")
    done, total, text = progress.step, progress.total_steps, f"step {_steps(progress)}"
    if total is None and progress.rollouts_total:  # a stage without steps that samples
        done, total = progress.rollouts_done, progress.rollouts_total
        text = f"{done / total:.0%}"
    bar = ProgressBar(total=total or 1, completed=done if total else 0)
    table.add_row(Text(progress.stage, "bold"), bar, Text(text))
    return table


def _metrics_table(progress: Progress, view: View) -> Table:
    table = Table.grid(padding=(0, 3))
    cells = [Text.assemble((label, "dim"), " ", (value, "bold")) for label, value in _metrics(progress)]
    if len(view.history) > 1:
        cells.append(Text.assemble(("reward so far", "dim"), " ", (sparkline(view.history), "cyan")))
    for start in range(0, len(cells), 3):
        table.add_row(*cells[start : start + 3])
    return table


def _times(view: View) -> Text:
    text = Text.assemble(("elapsed", "dim"), f" {clock(view.elapsed)}")
    if view.progress is not None and view.current is not None:
        remaining = _remaining(view.progress, view.now)
        if remaining is not None:
            text.append_text(Text.assemble(("   remaining in this stage", "dim"), f" {clock(remaining)}"))
    return text


def _health(health: Mapping[str, str]) -> Columns:
    """Return the child processes, each with a mark, and with its state unless it is ready."""
    cells = []
    for name, state in health.items():
        style = "green" if state.startswith("ready") else "yellow"
        mark = "●" if style == "green" else "○"
        note = "" if state == "ready" else f" {state}"
        cells.append(Text.assemble((mark, style), f" {name}", (note, style)))
    return Columns(cells, padding=(0, 3))


def sparkline(values: Sequence[float]) -> str:
    """Return the values as a row of bars, scaled from the minimum to the maximum."""
    low, high = min(values), max(values)
    bars = "▁▂▃▄▅▆▇█"
    span = high - low
    return "".join(bars[round((value - low) / span * (len(bars) - 1)) if span else 0] for value in values)


def _metrics(progress: Progress) -> list[tuple[str, str]]:
    known = [(label, form.format(progress.metrics[key])) for key, label, form in _METRICS if key in progress.metrics]
    names = {key for key, _, _ in _METRICS}
    if progress.rollouts_total and progress.phase != "Training":
        known.insert(0, ("rollouts", f"{progress.rollouts_done}/{progress.rollouts_total}"))
    if progress.demonstrations_total and progress.phase == "Starting":
        share = progress.demonstrations_done / progress.demonstrations_total
        bar = "━" * round(share * _BAR) + "┄" * (_BAR - round(share * _BAR))
        count = f"{progress.demonstrations_done:,}/{progress.demonstrations_total:,}"
        known.insert(0, ("tokenised", f"{bar} {count}"))
    rest = [(key.replace("_", " "), f"{value:.4g}") for key, value in progress.metrics.items() if key not in names]
    return known + rest


def _steps(progress: Progress) -> str:
    return f"{progress.step}/{progress.total_steps}" if progress.total_steps is not None else str(progress.step)


def _remaining(progress: Progress, now: float) -> float | None:
    """Return the remaining seconds of the stage: the orchestrator's estimate, less the time since then."""
    if progress.estimated_remaining_seconds is None:
        return None
    return max(0.0, progress.estimated_remaining_seconds - (now - progress.updated_at))
