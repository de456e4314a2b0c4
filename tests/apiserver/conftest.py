"""Fixtures of the tests on a real API server without a node, so these tests run in parallel.

`api` is a new server for each test. Tests that leave nothing behind share the server of their module, each in a
namespace of its own: through `shared_api` with requests, and through `served` with kubectl and helm.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.kube_node import binaries
from tests.kube_node.cluster import Cluster
from tests.kube_node.fixtures import ensure_control_plane
from tests.support.kube_apiserver import KubeApiserver


@pytest.fixture
def api() -> Iterator[KubeApiserver]:
    """Provide an API server without nodes."""
    ensure_control_plane()
    with KubeApiserver() as server:
        yield server


@pytest.fixture(scope="module")
def shared_api() -> Iterator[KubeApiserver]:
    """Provide one API server without nodes for all tests of a module."""
    ensure_control_plane()
    with KubeApiserver() as server:
        yield server


@pytest.fixture(scope="module")
def served(shared_api: KubeApiserver) -> Cluster:
    """Provide kubectl and helm with the API server of the module."""
    for name in ("kubectl", "helm"):
        binaries.ensure_binary(binaries.find_binary(name))
    return Cluster(shared_api.kubeconfig)


@pytest.fixture
def namespace(shared_api: KubeApiserver) -> str:
    """Provide a new namespace on the API server of the module."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    shared_api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    return name
