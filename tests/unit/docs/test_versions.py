"""All parts of a release have one version."""

from __future__ import annotations

import tomllib
from pathlib import Path

import yaml

from rstar2_train import __version__

ROOT = Path(__file__).parents[3]


def test_parts_of_a_release_have_one_version() -> None:
    """Package, verifier, chart and citation: the release workflow refuses another tag."""
    chart = yaml.safe_load((ROOT / "helm/rstar2/Chart.yaml").read_text())
    verifier = tomllib.loads((ROOT / "verify/pyproject.toml").read_text())
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    versions = {chart["version"], chart["appVersion"], verifier["project"]["version"], citation["version"]}
    assert versions == {__version__}
