"""A killed trainer process: a clear error, and no remaining process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from models import CONFIG, OPTIMIZER, conversations, save

from rstar2_train.trainer.actors import RanksLost
from rstar2_train.trainer.trainer_group import TrainerGroup
from tests.support.processes import has_ended
from tests.support.waiting import until


def test_trainer_group_killed_rank_raises_ranks_lost(model_dir: Path, tmp_path: Path) -> None:
    """The error names the rank and the call; the group is unusable, writes nothing, and leaves no process."""
    with TrainerGroup(ranks=2, config=CONFIG) as group:
        group.load(model_dir, optimizer=OPTIMIZER)
        os.kill(group.pids[1], signal.SIGKILL)
        with pytest.raises(RanksLost, match="rank 1 of 2 crashed during sft") as caught:
            group.sft_step(conversations(4), lr=1e-3)
        assert caught.value.retryable
        with pytest.raises(RanksLost, match="have stopped"):
            save(group, tmp_path / "step-000001", step=1)
        assert list(tmp_path.iterdir()) == []
        group.close()
    # Closed twice by now, and no process remains.
    until(lambda: not any("ray::Rank" in name for _, name in named(psutil.Process())), "no rank remains")


def named(process: psutil.Process) -> list[tuple[psutil.Process, str]]:
    """Return the children of a process that have not ended, with their names."""
    children = []
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            children.append((child, child.name()))
    return children


AGENTS = ("ray::DashboardA", "ray::RuntimeEnv")
"""Ray's own processes, which retry the dead head process for a minute; the next `rstar2 run` terminates them."""
ORCHESTRATOR = """
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


def test_ranks_exit_with_a_killed_orchestrator(model_dir: Path) -> None:
    """After a SIGKILL of the orchestrator, the ranks and the private Ray exit."""
    folder = str(Path(__file__).parent)
    process = subprocess.Popen(
        [sys.executable, "-c", ORCHESTRATOR, str(model_dir), folder], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "ready\n"
        children = named(psutil.Process(process.pid))
        assert any("ray::Rank" in name for _, name in children)
        process.kill()
    until(lambda: all(has_ended(child) for child, name in children if not name.startswith(AGENTS)), "all exit")
    for agent in (child for child, name in children if name.startswith(AGENTS)):
        with contextlib.suppress(psutil.NoSuchProcess):
            agent.kill()
