"""`pip install rstar2` without extras: the commands that need no trainer, judge or engine."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
BASE = ("pydantic", "pyyaml", "rich", "numpy", "mpmath")


def extra_modules() -> list[str]:
    """Return the installed modules of the packages that only extras of pyproject.toml need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {name(entry) for entries in project["optional-dependencies"].values() for entry in entries}
    assert {name(entry) for entry in project["dependencies"]} == set(BASE)
    return sorted(
        module
        for module, packages in packages_distributions().items()
        if extras.intersection(map(canonicalize_name, packages)) - {"rstar2", *BASE} and module.isidentifier()
    )


def name(requirement: str) -> str:
    """Return the name of a package without its version."""
    return canonicalize_name(Requirement(requirement).name)


CODE = """
import sys
for name in sys.argv[1].split():
    sys.modules[name] = None
from rstar2_train.cli.kubectl_plugin import completion
from rstar2_train.cli.main import main, parser
assert main(["validate", "examples/tiny.yaml"]) == 0
assert "rstar2_train.cli.data" not in sys.modules, "a command imports the module of another"
parser()
assert main(["plan", "examples/tiny.yaml"]) == 0
assert main(["plan", "examples/one-24gb.yaml", "--gpus", "1", "--hardware", "examples/rtx4090.json"]) == 0
assert main(["verify", "--known", "1", "--answer", "1.0"]) == 0
assert main(["doctor"]) in (0, 1)
completion("bash")
for command in (["run", "examples/tiny.yaml"], ["chat", "hi"], ["judge", "run", "/dev/null"]):
    assert main(command) == 1
"""


def test_base_install_has_its_commands() -> None:
    """They import only the dependencies of pyproject.toml, so that the plug-in of kubectl installs in seconds."""
    argv = [sys.executable, "-c", CODE, " ".join(extra_modules())]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("is not installed: install rstar2[run]") == 3
    assert "no server of a teacher was tried" not in done.stdout  # the manifest has none
