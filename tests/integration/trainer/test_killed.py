"""A trainer process that is killed, or loses its device or network: a clear error, and no remaining process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import psutil
import pytest
import torch
import torch.distributed as dist
from models import CONFIG, OPTIMIZER, conversations, save

from rstar2_train.trainer.actors import RankProcess, RanksLost
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


ERRORS = [
    (
        torch.OutOfMemoryError("HIP out of memory.\nMore text."),
        r"has no free device memory \(HIP out of memory.; lower spec.trainer.tokens",
    ),
    (RuntimeError("[pair.cc:534] Connection closed by peer [10.0.0.7]:4711"), r"lost the connection .*4711\) during"),
    (dist.DistBackendError("NCCL error: remote process exited"), r"lost the connection .*NCCL error"),
]


@pytest.mark.parametrize(("error", "message"), ERRORS, ids=["memory", "gloo", "nccl"])
def test_rank_process_lost_resource_is_ranks_lost(error: Exception, message: str) -> None:
    """A full device and a lost connection are no defects of the program; another error stays as it is."""
    process = RankProcess(rank=3, ranks=24, config=CONFIG)
    with (
        patch.object(process._rank, "sleep", side_effect=error),
        pytest.raises(RanksLost, match=f"trainer rank 3 of 24 {message}"),
    ):
        process.call("sleep")
    with pytest.raises(RuntimeError, match="no model is loaded"):
        process.call("sft", [], 0.0)


def named(process: psutil.Process) -> list[tuple[psutil.Process, str]]:
    """Return the children of a process that have not ended, with their names."""
    children = []
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            children.append((child, child.name()))
    return children


AGENTS = ("ray::DashboardA", "ray::RuntimeEnv")
"""Ray's own processes, which retry the dead head process for an hour; the next `rstar2 run` terminates them."""
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


def is_agent(process: psutil.Process) -> bool:
    """Return whether a process is one of AGENTS, which have their names some time after their start."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.name().startswith(AGENTS)
    return False


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
    until(lambda: all(has_ended(child) or is_agent(child) for child, _ in children), "all exit")
    for agent in (child for child, _ in children if is_agent(child)):
        with contextlib.suppress(psutil.NoSuchProcess):
            agent.kill()
