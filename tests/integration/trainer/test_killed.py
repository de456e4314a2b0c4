"""What is left when a process of the trainer is killed: an error that says so, and no other process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from models import CONFIG, OPTIMIZER, conversations

from rstar2_train.trainer.actors import RanksLost
from rstar2_train.trainer.trainer_group import TrainerGroup


def test_a_lost_rank_is_reported_and_ends_the_group(model_dir: Path, tmp_path: Path) -> None:
    with TrainerGroup(ranks=2, config=CONFIG) as group:
        group.load(model_dir, optimizer=OPTIMIZER)
        os.kill(group.pids[1], signal.SIGKILL)
        with pytest.raises(RanksLost, match="rank 1 of 2 died during sft") as caught:
            group.sft_step(conversations(4), lr=1e-3)
        assert caught.value.retryable
        with pytest.raises(RanksLost, match="have ended"):
            group.save(tmp_path / "step-000001", step=1, extra={})
        assert list(tmp_path.iterdir()) == []
        group.close()
    # Closed twice by now, and the processes are gone.
    assert not any("ray::Rank" in child.name() for child in psutil.Process().children(recursive=True))


AGENTS = ("ray::DashboardA", "ray::RuntimeEnv")
"""Ray's own, which ask the dead head for a minute before they believe it; `rstar2 run` ends them at its next start."""
DRIVER = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from models import CONFIG, OPTIMIZER
from rstar2_train.trainer.trainer_group import TrainerGroup
group = TrainerGroup(ranks=1, config=CONFIG)
group.load(Path(sys.argv[1]), optimizer=OPTIMIZER)
print("ready", flush=True)
time.sleep(600)
"""


def test_ranks_end_with_a_driver_that_is_killed(model_dir: Path) -> None:
    here = str(Path(__file__).parent)
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(model_dir), here], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    with driver:
        assert driver.stdout.readline() == "ready\n"
        children = psutil.Process(driver.pid).children(recursive=True)
        assert any("ray::Rank" in child.name() for child in children)
        driver.kill()
    agents = [child for child in children if child.is_running() and child.name().startswith(AGENTS)]
    children = [child for child in children if child not in agents]
    deadline = time.monotonic() + 120
    while any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children):
        assert time.monotonic() < deadline, [child.cmdline() for child in children if child.is_running()]
        time.sleep(0.2)
    for agent in agents:
        if agent.is_running():
            agent.kill()
