"""The operator, the judge and the pure core run in small images: importing them must not import torch or its like.

import-linter sees what the source says; this sees what a fresh interpreter really loads.
"""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "vllm", "ray", "mlflow")
LIGHT = (
    "rstar2_train.job.spec",
    "rstar2_train.job.contracts",
    "rstar2_train.judge",
    "rstar2_train.data.prepare",
    "rstar2_train.grpo_roc.penalties",
    "rstar2_train.grpo_roc.resample",
    "rstar2_train.reward.verify",
    "rstar2_train.rollout.trajectory",
)


@pytest.mark.parametrize("module", LIGHT)
def test_a_light_room_loads_nothing_heavy(module: str) -> None:
    """A fresh interpreter imports the module and then has none of the heavy ones."""
    program = f"import sys, {module}; print(*sorted({set(HEAVY)!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_the_check_can_fail() -> None:
    """The same program sees a heavy module when there is one."""
    program = f"import sys, ray; print(*sorted({set(HEAVY)!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "ray" in done.stdout.split()
