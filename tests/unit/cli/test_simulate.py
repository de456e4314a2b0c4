"""`rstar2 simulate`: the table, JSON, the picture, trajectories of a job, and errors."""

import json
from pathlib import Path

import pytest

from rstar2_train.cli.main import main
from rstar2_train.rollout import trajectory_store
from rstar2_train.rollout.trajectory import Segment, Trajectory

PLAN = """\
engines: 2
hardware:
  {stepSeconds: 0.01, sequenceSeconds: 0.0001, tokenSeconds: 0.000001, prefillSeconds: 0.00001, kvTokens: 20000}
trajectories: {budget: 500, meanTokens: 200, prompts: 4, samples: 4}
"""


def plan_file(folder: Path, text: str = PLAN) -> str:
    path = folder / "plan.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_simulate_prints_a_row_per_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table has the three policies; the picture is written."""
    picture = tmp_path / "engines.svg"
    assert main(["simulate", plan_file(tmp_path), "--svg", str(picture)]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("Static (128)", "Reserve (1024)", "Graded (1024)"))
    assert picture.read_text(encoding="utf-8").startswith("<svg")


def test_simulate_reads_trajectories_of_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lengths, turns and tool times come from Parquet files, one step per file."""
    trajectory = Trajectory(prompt_id="p", sample=0, prompt_ids=[1] * 10)
    trajectory.segments = [
        Segment("model", [5] * 40, [-1.0] * 40),
        Segment("tool", [6] * 8, seconds=2.0),
        Segment("model", [5] * 20, [-1.0] * 20),
    ]
    lost = Trajectory(prompt_id="p", sample=1, prompt_ids=[1])
    for step in (1, 2):
        trajectory_store.write(trajectory_store.step_path(tmp_path, step), [trajectory, lost])
    text = PLAN.replace(
        "{budget: 500, meanTokens: 200, prompts: 4, samples: 4}", f"{{budget: 500, parquet: {tmp_path}}}"
    )
    assert main(["simulate", plan_file(tmp_path, f"{text}steps: 5\n"), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["Reserve (1024)"]
    assert figures["turns"] == 4
    assert len(figures["step_s"]) == 2
    assert figures["step_s"][0] == pytest.approx(2 + 60 * 0.0101 + 10e-5, rel=0.05)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("engines: 2", "engines: 0"), "engines: Input should be greater"),
        (("engines: 2", "engine: 2"), "engine: Extra inputs"),
        (("{stepSeconds: 0.01", "{stepSeconds: -1"), "stepSeconds"),
        (("trajectories: {", "trajectories: {parquet: /nowhere, "), "no trajectory files"),
        (("kvTokens: 20000", "kvTokens: 600"), "an engine's KV cache has 600"),
        (("engines: 2", "["), "plan.yaml"),
    ],
)
def test_simulate_invalid_plan_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], message: str
) -> None:
    """An invalid plan names the field; nothing is printed to stdout."""
    assert main(["simulate", plan_file(tmp_path, PLAN.replace(*change))]) == 1
    captured = capsys.readouterr()
    assert message in captured.err and not captured.out
