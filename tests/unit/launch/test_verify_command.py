"""`rstar2 verify --job`: the verdicts of stored rollouts, repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from rstar2_train.cli.main import main
from rstar2_train.rollout import trajectory_store
from rstar2_train.rollout.trajectory import Trajectory
from tests.support.engine_proxy import write_job
from tests.support.simulated_cluster import manifest
from tests.support.token_arrays import token_array


def test_verify_repeats_stored_verdicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each rollout of the problem, with what was recorded; a missing answer, a wrong id and a torn file are named."""
    state = write_job(manifest("g"), tmp_path / "demo")
    rows = [
        Trajectory("p1", 0, token_array([1]), gold="1/2", answer="0.5", verdict="correct", reward=1.0),
        Trajectory("p1", 1, token_array([1]), gold="1/2", answer=None, stop="length"),
        Trajectory("p1", 2, token_array([1]), gold="1/2", answer="3", verdict="wrong"),
        Trajectory("p2", 0, token_array([1]), gold="5", answer="5", verdict="correct"),
    ]
    stage = state.job().spec.stages[0].name
    trajectory_store.write(trajectory_store.step_path(state.stage(stage).trajectories, 4), rows)
    where = ["--state", str(tmp_path), "--job", "demo"]
    assert main(["verify", *where, "--problem", "p1"]) == 1
    printed = capsys.readouterr().out
    assert "sample 0: recorded verdict correct, reward 1" in printed and "  equal: " in printed
    assert "no answer: no complete <answer> block" in printed and "ended with length" in printed
    assert "  different: " in printed and "p2" not in printed
    assert main(["verify", *where, "--problem", "p1", "--sample", "0"]) == 0
    assert main(["verify", *where, "--problem", "p9"]) == 1
    assert "no stored rollout of problem 'p9'" in capsys.readouterr().err
    assert main(["verify", "--job", "other", "--problem", "p", "--state", str(tmp_path)]) == 1
    trajectory_store.step_path(state.stage(stage).trajectories, 5).write_bytes(b"PAR1 torn")
    assert main(["verify", *where, "--problem", "p1"]) == 1
    assert "step-000005.parquet cannot be read" in capsys.readouterr().err
