"""Modules of small images load no large library: the operator, the judge, the pure core, the endpoint of a model.

import-linter reads the source; these tests look at the modules that a new interpreter has loaded.
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
    "rstar2_train.capacity.fit",
    "rstar2_train.grpo_roc.penalties",
    "rstar2_train.grpo_roc.resample",
    "rstar2_train.rewards.verify",
    "rstar2_train.rollout.trajectory",
)


def loaded(modules: str, libraries: tuple[str, ...]) -> list[str]:
    """Return the libraries that a new interpreter has loaded after it has imported the modules."""
    program = f"import sys, {modules}; print(*sorted({set(libraries)!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("module", LIGHT)
def test_imports_light_module_loads_no_heavy_library(module: str) -> None:
    """A small image must not need torch, vLLM, Ray or MLflow."""
    assert loaded(module, HEAVY) == []


def test_imports_endpoint_needs_only_the_engine_image() -> None:
    """`rstar2 serve --endpoint --judge` runs in the engine's image, which lacks these libraries."""
    missing = ("redis", "ray", "mlflow", "cryptography", "math_verify", "pyarrow", "matplotlib")
    modules = (
        "rstar2_train.cli.main, rstar2_train.cli.serve, "
        "rstar2_train.launch.local.run, rstar2_train.serving.stack, rstar2_train.serving.model"
    )
    assert loaded(modules, missing) == []


def test_imports_heavy_library_is_detected() -> None:
    """The check itself can fail: an imported library is reported."""
    assert loaded("ray", HEAVY) == ["ray"]
