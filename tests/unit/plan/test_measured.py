"""Figures of a run: read from its journal, and fitted so that the plan reproduces the measured stage."""

import dataclasses
from pathlib import Path

import pytest

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.loader import read_manifest
from rstar2_train.api.state_dir import JobState
from rstar2_train.api.validation import load
from rstar2_train.capacity.hardware_profile import load_profile
from rstar2_train.capacity.model_shape import read_shape
from rstar2_train.cli.main import main
from rstar2_train.plan.job_plan import plan_job
from rstar2_train.plan.measured import (
    NoFigures,
    SFTFigures,
    StageFigures,
    fit_profile,
    read_figures,
    read_sft_figures,
)
from rstar2_train.tracking.journal import Journal
from rstar2_train.tracking.tracker import journal_file

MANIFEST = Path(__file__).parents[3] / "examples" / "tiny.yaml"
STEP = {
    "time/rollout_seconds": 5.7,
    "time/update_seconds": 0.5,
    "time/step_seconds": 6.3,
    "trainer/sequences": 96.0,
    "rollout/tokens_per_second": 740.0,
    "tools/calls_per_trajectory": 1.2,
    "tools/latency_mean_seconds": 0.08,
    "tools/queue_mean_seconds": 0.05,
}


SFT_STEP = {"sft/seconds": 0.2, "sft/tokens_per_second": 14400.0, "sft/sequences": 32.0}


def run_of(folder: Path, *, steps: int, sft_steps: int = 0) -> JobState:
    """Return a state folder whose journal has steps of sft and of rl-1."""
    journal = Journal(journal_file(folder))
    for step in range(sft_steps):
        journal.append({"kind": "metrics", "run": "sft", "step": step + 1, "values": SFT_STEP})
    for step in range(steps):
        journal.append({"kind": "metrics", "run": "rl-1", "step": step + 1, "values": STEP})
    journal.close()
    return JobState(folder)


def tiny() -> AgenticRLJob:
    """Return the demo's job."""
    return load(read_manifest(MANIFEST))


def test_measured_profile_reproduces_the_stage(tmp_path: Path) -> None:
    """With the fitted profile, rollouts and update of the fitted stage last as long as in the run."""
    job, shape = tiny(), read_shape("generated://tiny/base")
    figures = read_figures(run_of(tmp_path, steps=5), job)
    assert figures["rl-1"].mean_tokens == pytest.approx(740 * 5.7 / 256)
    assert figures["rl-1"].trained_share == 0.75 and figures["rl-1"].call_seconds == pytest.approx(0.03)
    profile = fit_profile(job, shape, load_profile("cpu"), figures)
    plan = plan_job(job, shape, profile, measured={"rl-1": figures["rl-1"].inputs})
    stage = plan.as_json()["stages"]["rl-1"]
    assert stage["rolloutSeconds"] == pytest.approx(5.7, rel=0.05)
    assert stage["updateSeconds"] == pytest.approx(0.5, rel=0.05)
    assert stage["measuredStepSeconds"] == 6.3
    assert "fitted to 5 steps of stage rl-1 of job tiny" in profile.sources["trainFlops"]


def test_measured_calls_that_wait_determine_the_rollouts(tmp_path: Path) -> None:
    """If calls wait longer than they run, twice as many calls take twice the time; otherwise the engine decides."""
    job, shape = tiny(), read_shape("generated://tiny/base")
    busy = read_figures(run_of(tmp_path, steps=5), job)["rl-1"]
    assert busy.queue_seconds > busy.call_seconds

    def rollouts(figures: StageFigures) -> float:
        """Return the seconds of rl-2 with twice the calls of rl-1, and as many tokens."""
        profile = fit_profile(job, shape, load_profile("cpu"), {"rl-1": figures})
        inputs = dataclasses.replace(figures.inputs, calls=2 * figures.calls)
        stages = plan_job(job, shape, profile, measured={"rl-2": inputs}).as_json()["stages"]
        return float(stages["rl-2"]["rolloutSeconds"])

    assert rollouts(busy) == pytest.approx(2 * 5.7)
    assert rollouts(dataclasses.replace(busy, queue_seconds=0.0, call_seconds=0.01)) < 1.5 * 5.7


def test_measured_sft_fits_the_seconds_of_an_update(tmp_path: Path) -> None:
    """With an SFT stage in the run, the plan reproduces its step too, by fixed seconds per update."""
    job, shape = tiny(), read_shape("generated://tiny/base")
    state = run_of(tmp_path, steps=5, sft_steps=5)
    figures, sft = read_figures(state, job), read_sft_figures(state, job)
    assert sft["sft"].conversation_tokens == pytest.approx(90)
    profile = fit_profile(job, shape, load_profile("cpu"), figures, sft)
    assert profile.update_seconds > 0
    measured = {"rl-1": figures["rl-1"].inputs, "sft": sft["sft"].inputs}
    stages = plan_job(job, shape, profile, measured=measured).as_json()["stages"]
    assert stages["rl-1"]["updateSeconds"] == pytest.approx(0.5, rel=0.01)
    assert stages["sft"]["stepSeconds"] == pytest.approx(0.2, rel=0.01)
    assert stages["sft"]["measuredStepSeconds"] == 0.2


def test_measured_slow_sft_is_not_fitted(tmp_path: Path) -> None:
    """If another load slowed SFT, no negative rate follows: the profile is that without SFT."""
    job, shape = tiny(), read_shape("generated://tiny/base")
    state = run_of(tmp_path, steps=5)
    figures = read_figures(state, job)
    slow = {"sft": SFTFigures(step_seconds=9.0, conversation_tokens=90)}
    cpu = load_profile("cpu")
    assert fit_profile(job, shape, cpu, figures, slow) == fit_profile(job, shape, cpu, figures)


def test_measured_run_without_steps_is_an_error(tmp_path: Path) -> None:
    """A run with too few steps has no figures; the message names its folder."""
    with pytest.raises(NoFigures, match=f"{tmp_path} has no GRPO stage with 3 steps"):
        read_figures(run_of(tmp_path, steps=2), tiny())


def test_measured_profile_is_saved_for_later_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--save writes a profile that --hardware accepts."""
    run_of(tmp_path / "tiny", steps=3)
    file = tmp_path / "here.json"
    assert main(["plan", str(MANIFEST), "--measure", str(tmp_path / "tiny"), "--save", str(file)]) == 0
    assert "step, measured" in capsys.readouterr().out
    assert main(["plan", str(MANIFEST), "--hardware", str(file)]) == 0
    assert load_profile(str(file)).train_flops != load_profile("cpu").train_flops
