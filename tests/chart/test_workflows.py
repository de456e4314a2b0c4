"""The workflows of .github: none can run here, so actionlint checks them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml

from tests.chart.conftest import tool
from tests.kube_node.binaries import ACTIONLINT

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))


def test_workflows_pass_actionlint() -> None:
    """Syntax, expressions, contexts and inputs of known actions."""
    done = subprocess.run(
        [tool(ACTIONLINT), "-no-color", "-shellcheck=", "-pyflakes=", *map(str, WORKFLOWS)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_workflows_pin_actions_by_commit() -> None:
    """A tag can be moved to other code, which would then run with the rights of a release."""
    uses = [line for path in WORKFLOWS for line in path.read_text().splitlines() if "uses:" in line]
    assert uses and not [line for line in uses if not re.search(r"uses: [\w./-]+@[0-9a-f]{40}  # v[\d.]+$", line)]


def test_release_builds_every_image_of_the_project() -> None:
    """Each Containerfile is an image of the release, except bases that others build upon."""
    release = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yaml").read_text())
    roles = {entry["role"] for entry in release["jobs"]["images"]["strategy"]["matrix"]["include"]}
    assert roles == {path.parent.name for path in (ROOT / "images").glob("*/Containerfile")}
    assert {path.stem for path in WORKFLOWS} == {"checks", "nightly", "release"}


def test_release_pushes_the_images_that_the_chart_names() -> None:
    """The defaults of the chart are the images of a release of the project `rstar2/...`."""
    release = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yaml").read_text())
    registry = release["env"]["REGISTRY"].replace("${{ github.repository_owner }}", "rstar2")
    values = yaml.safe_load((ROOT / "helm" / "rstar2" / "values.yaml").read_text())
    assert values["image"]["repository"] == f"{registry}/operator"
