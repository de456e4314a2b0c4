"""All parts of a release have one version."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

from rstar2_train import __version__

ROOT = Path(__file__).parents[3]
NAMED = re.compile(r"(?:image\.tag=|/(?:operator|trainer|rollout|judge|\$role)[\w-]*:|rstar2-)(\d+\.\d+\.\d+)\b")
"""Tag of an image, or version of a wheel."""


def test_parts_of_a_release_have_one_version() -> None:
    """Package, verifier, chart and citation: the release workflow refuses another tag."""
    chart = yaml.safe_load((ROOT / "helm/rstar2/Chart.yaml").read_text())
    verifier = tomllib.loads((ROOT / "verify/pyproject.toml").read_text())
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    versions = {chart["version"], chart["appVersion"], verifier["project"]["version"], citation["version"]}
    assert versions == {__version__}


def test_pages_have_the_version_of_the_release() -> None:
    """Commands of the pages. Those of docs/upgrades.md have a later release."""
    pages = [path for path in (*sorted((ROOT / "docs").glob("*.md")), ROOT / "images" / "README.md")]
    named = {
        (path.name, version)
        for path in pages
        if path.name != "upgrades.md"
        for version in NAMED.findall(path.read_text("utf-8"))
    }
    assert len(named) >= 6
    assert {(name, version) for name, version in named if version != __version__} == set()
