"""The operator, the judge and the pure core run in small images: importing them must not import torch or its like.

import-linter sees what the source says; this sees what a fresh interpreter really loads.
"""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "vllm", "ray", "mlflow")
LIGHT = (
    "rstar2_train.api.job",
    "rstar2_train.api.contracts",
    "rstar2_train.judge",
    "rstar2_train.data.prepare.pipeline",
    "rstar2_train.grpo_roc.penalties",
    "rstar2_train.grpo_roc.resample",
    "rstar2_train.rewards.verify",
    "rstar2_train.rollout.trajectory",
)


@pytest.mark.parametrize("module", LIGHT)
def test_a_light_room_loads_nothing_heavy(module: str) -> None:
    """A fresh interpreter imports the module and then has none of the heavy ones."""
    program = f"import sys, {module}; print(*sorted({set(HEAVY)!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_a_served_models_endpoint_starts_in_the_engines_image() -> None:
    """`rstar2 serve --endpoint --judge` runs there in a cluster: what that image lacks must not be loaded."""
    lacks = ("redis", "ray", "mlflow", "cryptography", "math_verify", "pyarrow", "matplotlib")
    modules = (
        "rstar2_train.cli.main, rstar2_train.launch.local.run, rstar2_train.serving.stack, rstar2_train.serving.model"
    )
    program = f"import sys, {modules}; print(*sorted({set(lacks)!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


def test_the_check_can_fail() -> None:
    """The same program sees a heavy module when there is one."""
    program = f"import sys, ray; print(*sorted({set(HEAVY)!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "ray" in done.stdout.split()
