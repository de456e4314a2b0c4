"""The lock follows pyproject.toml: every package named there is pinned, at a version that is allowed, by name only."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
LOCK = (ROOT / "requirements.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def normal(name: str) -> str:
    """A package's name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned() -> dict[str, str]:
    """Normalised name to version, for each line of the lock."""
    lines = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^]]*])?==(\S+)", LOCK, flags=re.MULTILINE)
    return {normal(name): version for name, version in lines}


def wanted() -> list[Requirement]:
    """Everything that pyproject.toml asks for, in every extra and in the development group."""
    project = PROJECT["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values(), PROJECT["dependency-groups"]["dev"]]
    return [Requirement(text) for requirements in lists for text in requirements]


def test_every_requirement_is_pinned_at_an_allowed_version() -> None:
    """A package added to pyproject.toml without `make lock` would be missing on a fresh machine."""
    versions = pinned()
    missing = [str(need) for need in wanted() if normal(need.name) not in versions]
    assert missing == [], "run `make lock`"
    wrong = [
        str(need) for need in wanted() if not need.specifier.contains(versions[normal(need.name)], prereleases=True)
    ]
    assert wrong == [], "run `make lock`"


def test_the_lock_names_no_address() -> None:
    """Where packages come from is the machine's business: a lock made behind a mirror must work without it."""
    assert "://" not in LOCK
    assert "--index" not in LOCK and "--find-links" not in LOCK
