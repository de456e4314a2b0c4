"""The files, command lines and names of a cluster, and the cache keys of its binaries."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from string import Template

import pytest

from tests.kube_node import binaries, boot, components, namespaces
from tests.kube_node.layout import INSIDE, Layout
from tests.kube_node.requirements import ClusterUnavailable

LAYOUT = Layout("some-cluster", 7)


def test_services_run_pinned_binaries_as_the_node() -> None:
    """Every service has an absolute or packaged command, and the API server advertises the node's address."""
    services = components.services(LAYOUT)
    assert set(components.CONTROL_PLANE) < set(services)
    for name in ("kube-apiserver", "kubelet", "kube-proxy", "kube-scheduler", "kube-controller-manager"):
        assert services[name]["command"][0] == binaries.path_of(name)
    assert "--advertise-address=10.213.7.2" in services["kube-apiserver"]["command"]


def test_files_are_valid_and_use_inside_paths() -> None:
    """JSON files parse, and no file names the folder that the machine sees."""
    for name, content in components.files(LAYOUT).items():
        if name.endswith((".json", ".conflist")):
            json.loads(content)
        assert str(LAYOUT.folder) not in content, name
    assert str(INSIDE) in components.files(LAYOUT)["kubelet.json"]


def test_system_objects_have_no_open_placeholder() -> None:
    """boot.py replaces every name of system.yaml."""
    objects = boot.system_objects(LAYOUT)
    assert not Template.pattern.search(objects)
    assert "10.213.7.1 host.rstar2.internal" in objects


def test_layout_names_fit_the_kernel_and_differ() -> None:
    """An interface name has at most 15 characters; two clusters share no name."""
    other = Layout("other", 8)
    assert len(LAYOUT.veth) <= 15
    assert len({LAYOUT.veth, other.veth, LAYOUT.cgroup, other.cgroup, LAYOUT.folder, other.folder}) == 6


def test_free_subnet_is_lowest_or_reports_all_taken() -> None:
    """The lowest free subnet is taken; without one the message names the fix."""
    assert namespaces.free_subnet({1, 2, 4}, range(1, 9)) == 3
    with pytest.raises(ClusterUnavailable, match="make cluster-down"):
        namespaces.free_subnet({1, 2}, range(1, 3))


@pytest.mark.parametrize("binary", [*binaries.BINARIES, binaries.KUEUE], ids=lambda binary: binary.name)
def test_binary_key_changes_with_its_inputs(
    binary: binaries.Binary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the modules keeps the key, so a moved clone builds nothing; another pin or package changes it."""
    assert re.fullmatch(r"v\d+\.\d+\.\d+.*", binary.version)
    path = binary.path
    shutil.copytree(binaries.TOOLS / binary.module, tmp_path / binary.module)
    monkeypatch.setattr(binaries, "TOOLS", tmp_path)
    assert binary.path == path
    assert dataclasses.replace(binary, package="other").path != path
    with (tmp_path / binary.module / "go.sum").open("a") as file:
        file.write("\n")
    assert binary.path != path
