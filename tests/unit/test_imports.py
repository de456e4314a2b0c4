"""Modules of small images load no large library: the operator, the judge, the pure core, the endpoint of a model.

import-linter reads the source; these tests look at the modules that a new interpreter has loaded.
"""

import functools
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
CHECKED = ("rstar2_train", "operator", "verify", "bench", "scripts")
"""Folders whose types mypy checks."""
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


def test_imports_no_part_of_a_library_that_mypy_skips() -> None:
    """Its names would be Any without a message: remove the part from the list in pyproject.toml before its use."""
    files = [file for folder in CHECKED for file in (ROOT / folder).rglob("*.py")]
    dotted = re.compile(r"(?<![\w.\"'`/])(?:kubernetes|torch)(?:\.\w+)+")
    used = {name: file for file in files for name in dotted.findall(file.read_text("utf-8"))}
    assert "torch._dynamo.utils" in used and "kubernetes.aio.client.exceptions" in used
    assert {(name, file) for name, file in used.items() if is_skipped(name)} == set()
    assert is_skipped("torch.fx.Graph") and is_skipped("torch._dynamo.config")


@functools.cache
def followed() -> dict[str, list[str]]:
    """Return the modules that the settings of mypy skip, and those that they do not."""
    overrides = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["mypy"]["overrides"]
    modules: dict[str, list[str]] = {"skip": [], "normal": []}
    for entry in overrides:
        modules.get(entry.get("follow_imports"), []).extend(part.removesuffix(".*") for part in entry["module"])
    return modules


def is_skipped(name: str) -> bool:
    """Return whether mypy skips a module, or that of a name in it."""
    skipped, read = followed().values()
    parts = [part for part in skipped + read if f"{name}.".startswith(f"{part}.")]
    return name not in read and max(parts, key=len, default="") in skipped
