"""requirements.lock agrees with pyproject.toml: every package is pinned at an allowed version, without an address."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
LOCK = (ROOT / "requirements.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def normal(name: str) -> str:
    """Return the name of a package in PyPI's normal form."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned() -> dict[str, str]:
    """Return normalised name -> version for each line of the lock."""
    lines = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^]]*])?==(\S+)", LOCK, flags=re.MULTILINE)
    return {normal(name): version for name, version in lines}


def required() -> list[Requirement]:
    """Return the requirements of pyproject.toml, with every extra and the development group."""
    project = PROJECT["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values(), PROJECT["dependency-groups"]["dev"]]
    needs = [Requirement(text) for requirements in lists for text in requirements]
    return [need for need in needs if need.name != project["name"]]  # an extra that joins the others


def test_lock_pins_every_requirement() -> None:
    """A package that was added to pyproject.toml without `make lock` would be missing on a new machine."""
    versions = pinned()
    missing = [str(need) for need in required() if normal(need.name) not in versions]
    assert missing == [], "run `make lock`"
    wrong = [
        str(need) for need in required() if not need.specifier.contains(versions[normal(need.name)], prereleases=True)
    ]
    assert wrong == [], "run `make lock`"


def test_lock_contains_no_address() -> None:
    """The index is a setting of the machine: a lock that was written behind a mirror must work without it."""
    assert "://" not in LOCK
    assert "--index" not in LOCK and "--find-links" not in LOCK
