"""The terminal view of a state folder, in a terminal and in a log."""

import asyncio
import io
import json
import time
from pathlib import Path

import pytest
from rich.console import Console

from rstar2_train.api.contracts import AttemptRecord, CheckpointRef, Outcome, Progress, write_model
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.state_dir import JobState
from rstar2_train.cli.run_view import TerminalRunView
from rstar2_train.cli.terminal_view import StageView, View, clock, line, read_view, render, sparkline
from rstar2_train.utils.files import write_atomically


@pytest.fixture
def state(tmp_path: Path) -> JobState:
    """A job with a measured stage sft, and rl-1 in its second attempt."""
    state = JobState(tmp_path)
    stages = [
        {"name": "sft", "type": "SFT", "sft": {"data": "demos.jsonl"}},
        {"name": "rl-1", "type": "GRPO", "grpo": {"data": "rl.jsonl", "steps": 40}},
        {"name": "rl-2", "type": "GRPO", "grpo": {"data": "rl.jsonl", "steps": 20}},
    ]
    job = {"metadata": {"name": "tiny"}, "spec": {"model": {"source": "./base"}, "stages": stages}}
    write_model(state.job_file, AgenticRLJob.model_validate(job))
    end(state, "sft", "completed", "StepsReached", step=1300)
    write_atomically(state.stage("sft").evaluation_file, json.dumps({"pass_at_1": 0.2421}))
    show(state, step=10)
    return state


def end(state: JobState, stage: str, outcome: str, reason: str, *, step: int, message: str = "") -> None:
    model = Outcome.model_validate(
        {
            "stage": stage,
            "attempt": 2 if stage == "rl-1" else 1,
            "outcome": outcome,
            "reason": reason,
            "message": message,
            "checkpoint": CheckpointRef(path="x", step=step),
        }
    )
    write_model(state.stage(stage).outcome_file, model)


def show(state: JobState, *, step: int, stage: str = "rl-1") -> None:
    metrics = {"reward": 0.5, "tool_error_ratio": 0.125, "tokens_per_second": 4321.0, "new_one": 2.0}
    progress = Progress(
        stage=stage,
        attempt=2,
        phase="Training",
        step=step,
        total_steps=40,
        metrics=metrics,
        estimated_remaining_seconds=3690,
    )
    write_model(state.progress_file, progress)


def view_of(state: JobState) -> View:
    view = read_view(state, started=0.0, health={"redis": "ready", "engine-0": "restarting"}, history=[0.1, 0.5])
    assert view is not None
    return view


def panel(view: View) -> str:
    console = Console(file=io.StringIO(), width=110, record=True, color_system=None)
    console.print(render(view))
    return console.export_text()


def test_render_running_stage(state: JobState) -> None:
    """The panel has the stages, metrics, remaining time, child processes and rewards."""
    text = panel(view_of(state))
    rows = [row for row in text.splitlines() if "SFT" in row or "GRPO" in row]
    assert [row.strip("│ ").split()[0] for row in rows] == ["✓", "▶", "·"]
    assert "completed, 1300 steps" in rows[0] and "pass@1 0.242" in rows[0]
    assert "training, attempt 2" in rows[1]
    assert "step 10/40" in text and "reward 0.500" in text and "tool errors 12.5%" in text
    assert "tokens/s 4,321" in text and "new one 2" in text and "remaining in this stage 1:0" in text
    assert "● redis" in text and "○ engine-0 restarting" in text and "▁█" in text


def test_view_failed_stage_does_not_run(state: JobState) -> None:
    """Its outcome replaces its progress."""
    end(state, "rl-1", "failed", "EngineUnavailable", step=10, message="engine-0 did not answer")
    view = view_of(state)
    assert view.current is None and line(view) == ""
    text = panel(view)
    assert "failed: EngineUnavailable, engine-0 did not answer" in text and "step 10/40" not in text


def test_view_next_attempt_runs(state: JobState) -> None:
    """An outcome of an earlier attempt does not end the stage."""
    end(state, "rl-1", "suspended", "Suspended", step=10)
    progress = state.progress()
    assert progress is not None
    write_model(state.progress_file, progress.model_copy(update={"attempt": 3}))
    assert view_of(state).current == "rl-1"


def test_view_ignores_outcome_of_earlier_attempt(state: JobState) -> None:
    """A new attempt file without an outcome means that the stage runs."""
    end(state, "rl-1", "failed", "Crashed", step=10)  # of the second attempt
    write_model(state.stage("rl-1").attempt_file, AttemptRecord(attempt=3, uid=None))
    assert next(stage for stage in view_of(state).stages if stage.name == "rl-1").outcome is None


def test_view_counts_rollouts(state: JobState) -> None:
    """In the phase Rollout, the line and the panel have the finished rollouts."""
    write_model(
        state.progress_file, Progress(stage="rl-1", attempt=2, phase="Rollout", rollouts_done=7, rollouts_total=64)
    )
    view = view_of(state)
    assert "rollouts 7/64" in line(view) and "rollouts 7/64" in panel(view)


def test_view_has_a_bar_of_the_tokenisation(state: JobState) -> None:
    """Before the first step of an SFT stage, the line and the panel have the tokenised demonstrations."""
    counts = {"demonstrations_done": 1200, "demonstrations_total": 2400}
    write_model(state.progress_file, Progress(stage="rl-1", attempt=2, **counts))
    view = view_of(state)
    bar = "tokenised " + "━" * 12 + "┄" * 12 + " 1,200/2,400"
    assert bar in line(view) and bar in panel(view)


def test_read_view_without_job_is_none(tmp_path: Path) -> None:
    """A view without progress can be rendered."""
    assert read_view(JobState(tmp_path), started=0.0, health={}) is None
    panel(View(title="tiny", stages=[StageView("sft", "SFT", None)], progress=None, elapsed=1, now=1))


def test_watch_without_terminal_prints_lines(state: JobState) -> None:
    """One line per step, and one per outcome."""

    async def scenario() -> str:
        output = io.StringIO()
        stop = asyncio.Event()
        console = Console(file=output, width=80)
        watching = asyncio.create_task(
            TerminalRunView(console).follow(state, title="t", started=time.time(), health=dict, stop=stop)
        )

        async def until(text: str) -> None:
            while text not in output.getvalue():
                await asyncio.sleep(0.01)

        await until("step 10/40")
        show(state, step=11)
        await until("step 11/40")
        end(state, "rl-1", "advanced", "AllCorrect", step=11)
        stop.set()
        await watching
        return output.getvalue()

    lines = asyncio.run(asyncio.wait_for(scenario(), 60)).splitlines()
    assert [row.split("] ", 1)[1].split(", ")[0] for row in lines] == [
        "sft: completed",
        "rl-1: training",
        "rl-1: training",
        "rl-1: advanced: AllCorrect",
    ]
    assert "step 11/40, reward 0.500, tool errors 12.5%" in lines[2]


def test_watch_terminal_displays_the_panel(state: JobState) -> None:
    """The panel is displayed once more after the stop."""
    output = io.StringIO()
    stop = asyncio.Event()
    stop.set()
    console = Console(file=output, force_terminal=True, width=110)
    asyncio.run(TerminalRunView(console).follow(state, title="t", started=time.time(), health=dict, stop=stop))
    assert "rl-1" in output.getvalue() and "step 10/40" in output.getvalue()


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (65.9, "1:05"), (3725, "1:02:05"), (-3, "0:00")])
def test_clock(seconds: float, text: str) -> None:
    """Negative seconds count as 0."""
    assert clock(seconds) == text


def test_sparkline_is_scaled_to_the_values() -> None:
    """Equal values have the lowest bar."""
    assert sparkline([0, 1, 2]) == "▁▅█"
    assert sparkline([3, 3]) == "▁▁"
