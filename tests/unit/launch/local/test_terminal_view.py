"""The terminal view: what is read from a state folder is what is shown, on a terminal and in a log."""

import asyncio
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from rstar2_train.api.contracts import AttemptRecord, CheckpointRef, Outcome, Progress, write_model
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.state_dir import JobState
from rstar2_train.launch.local.terminal_view import StageView, View, clock, line, read_view, render, sparkline, watch
from rstar2_train.utils.files import write_atomically


@pytest.fixture
def state(tmp_path: Path) -> JobState:
    """SFT is done and measured, rl-1 runs in its second attempt."""
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
    ended = Outcome.model_validate(
        {
            "stage": stage,
            "attempt": 2 if stage == "rl-1" else 1,
            "outcome": outcome,
            "reason": reason,
            "message": message,
            "checkpoint": CheckpointRef(path="x", step=step),
        }
    )
    write_model(state.stage(stage).outcome_file, ended)


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


def picture(view: View) -> str:
    console = Console(file=io.StringIO(), width=110, record=True, color_system=None)
    console.print(render(view))
    return console.export_text()


def test_picture_of_a_running_stage(state: JobState) -> None:
    shown = picture(view_of(state))
    rows = [row for row in shown.splitlines() if "SFT" in row or "GRPO" in row]
    assert [row.strip("│ ").split()[0] for row in rows] == ["✓", "▶", "·"]
    assert "completed, 1300 steps" in rows[0] and "pass@1 0.242" in rows[0]
    assert "training, attempt 2" in rows[1]
    assert "step 10/40" in shown and "reward 0.500" in shown and "tool errors 12.5%" in shown
    assert "tokens/s 4,321" in shown and "new one 2" in shown and "left in this stage 1:0" in shown
    assert "● redis" in shown and "○ engine-0 restarting" in shown and "▁█" in shown


def test_a_stage_that_has_ended_no_longer_runs(state: JobState) -> None:
    end(state, "rl-1", "failed", "EngineUnavailable", step=10, message="engine-0 did not answer")
    view = view_of(state)
    assert view.current is None and line(view) == ""
    shown = picture(view)
    assert "failed: EngineUnavailable, engine-0 did not answer" in shown and "step 10/40" not in shown


def test_the_next_attempt_runs_although_the_last_one_ended(state: JobState) -> None:
    end(state, "rl-1", "suspended", "Suspended", step=10)
    progress = state.progress()
    assert progress is not None
    write_model(state.progress_file, progress.model_copy(update={"attempt": 3}))
    assert view_of(state).current == "rl-1"


def test_an_earlier_attempts_outcome_is_not_shown_beside_the_present_ones_figures(state: JobState) -> None:
    end(state, "rl-1", "failed", "Crashed", step=10)  # the second attempt's
    write_model(state.stage("rl-1").attempt_file, AttemptRecord(attempt=3, uid=None))
    assert next(stage for stage in view_of(state).stages if stage.name == "rl-1").outcome is None


def test_rollouts_are_counted_while_they_are_made(state: JobState) -> None:
    write_model(
        state.progress_file, Progress(stage="rl-1", attempt=2, phase="Rollout", rollouts_done=7, rollouts_total=64)
    )
    view = view_of(state)
    assert "rollouts 7/64" in line(view) and "rollouts 7/64" in picture(view)


def test_nothing_to_show_before_the_job_is_there(tmp_path: Path) -> None:
    assert read_view(JobState(tmp_path), started=0.0, health={}) is None
    picture(View(job="tiny", stages=[StageView("sft", "SFT", None)], progress=None, elapsed=1, now=1))


def test_a_log_gets_a_line_a_step_and_one_a_stage(state: JobState) -> None:
    async def scenario() -> str:
        output = io.StringIO()
        stop = asyncio.Event()
        console = Console(file=output, width=80)
        watching = asyncio.create_task(watch(state, stop=stop, health=dict, console=console))

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
    assert [one.split("] ", 1)[1].split(", ")[0] for one in lines] == [
        "sft: completed",
        "rl-1: training",
        "rl-1: training",
        "rl-1: advanced: AllCorrect",
    ]
    assert "step 11/40, reward 0.500, tool errors 12.5%" in lines[2]


def test_a_terminal_gets_the_picture(state: JobState) -> None:
    output = io.StringIO()
    stop = asyncio.Event()
    stop.set()
    console = Console(file=output, force_terminal=True, width=110)
    asyncio.run(watch(state, stop=stop, health=dict, console=console))
    assert "rl-1" in output.getvalue() and "step 10/40" in output.getvalue()


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (65.9, "1:05"), (3725, "1:02:05"), (-3, "0:00")])
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_sparkline_goes_from_least_to_greatest() -> None:
    assert sparkline([0, 1, 2]) == "▁▅█"
    assert sparkline([3, 3]) == "▁▁"
