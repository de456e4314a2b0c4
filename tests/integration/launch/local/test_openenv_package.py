"""A job trains on an environment of PyPI, which is unmodified and runs in child processes.

Slow, because tests/cluster/test_operator_custom_tasks.py trains on it too, in pods.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rstar2_train.api.state_dir import JobState
from rstar2_train.rollout import trajectory_store
from tests.support import openenv_package

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
STEPS = 3


def test_run_trains_on_an_environment_of_pypi(tmp_path: Path) -> None:
    """Each step has rollouts with the environment's own rewards, right and wrong ones, and updates the policy."""
    task = tmp_path / "task"
    openenv_package.write_task(task)
    manifest = tmp_path / "dipg.yaml"
    manifest.write_text(yaml.safe_dump(openenv_package.job(task, steps=STEPS)))
    command = [sys.executable, "-m", "rstar2_train.cli", "run", str(manifest), "--state", str(tmp_path / "state")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    job = JobState(tmp_path / "state" / "dipg")
    files = sorted(job.stage("rl").trajectories.glob("step-*.parquet"))
    rows = [row for file in files for row in trajectory_store.read(file)]
    assert len(files) == STEPS
    assert not [row.error for row in rows if row.failed], "the environment lost episodes"
    called = [row for row in rows if row.calls and row.calls[-1].status == "ok"]
    assert {row.reward for row in called} == {0.0, 1.0}
    assert all((row.stop, row.turns) == ("done", 1) for row in called)
    logs = [file.read_text() for file in job.root.glob("logs/environment-*")]
    assert logs and not [text for text in logs if "Traceback" in text]
    assert not [*job.root.glob("logs/judge-*"), *job.root.glob("logs/redis*")], "nothing runs code in a judge"
    outcome = json.loads(job.stage("rl").outcome_file.read_text())
    assert outcome["outcome"] == "completed"
