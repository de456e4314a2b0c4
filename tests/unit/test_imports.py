"""Modules of small images load no large library: the operator, the judge, the pure core, the endpoint of a model.

import-linter reads the source; these tests look at the modules that a new interpreter has loaded.
"""

import json
import subprocess
import sys
from collections.abc import Sequence

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


def test_imports_light_modules_load_no_heavy_library() -> None:
    """A small image must not need torch, vLLM, Ray or MLflow. One interpreter imports the modules one after another."""
    assert heavy_of(LIGHT) == {}


def heavy_of(modules: Sequence[str]) -> dict[str, list[str]]:
    """Return the heavy libraries that each of the modules loads, if the modules before it did not."""
    program = (
        "import importlib, json, sys\n"
        "heavy, result = set(json.loads(sys.argv[1])), {}\n"
        "for module in sys.argv[2:]:\n"
        "    before = set(sys.modules)\n"
        "    importlib.import_module(module)\n"
        "    result[module] = sorted(heavy & set(sys.modules) - before)\n"
        "print(json.dumps({module: names for module, names in result.items() if names}))"
    )
    command = [sys.executable, "-c", program, json.dumps(HEAVY), *modules]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    libraries: dict[str, list[str]] = json.loads(done.stdout)
    return libraries


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
    assert heavy_of(("json", "ray")) == {"ray": ["ray"]}
