"""Fixtures of tests that need a cluster: one cluster per session, one namespace per test.

`from tests.kube_node.fixtures import cluster, namespace` in a conftest makes them available. The cluster is the first
of these: the one of RSTAR2_KUBECONFIG, the one that `make cluster-up` left running, or a new one that is removed at the
end of the session.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.setup import echo
from tests.kube_node import boot, requirements
from tests.kube_node.cluster import Cluster, attach
from tests.kube_node.layout import CLUSTERS
from tests.kube_node.pods import restricted
from tests.kube_node.requirements import ClusterUnavailable

PREFIX = "test-"
"""Start of the names of clusters that tests boot. The id of the test process follows."""


def session_name() -> str:
    """Return a name for a cluster of this process."""
    return f"{PREFIX}{os.getpid()}-{uuid.uuid4().hex[:6]}"


def remove_orphans() -> None:
    """Remove the clusters of test processes that were killed."""
    for folder in CLUSTERS.glob(f"{PREFIX}*"):
        owner = folder.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdecimal() and not Path("/proc", owner).exists():
            echo(f"cluster {folder.name}: removing it, because its test process {owner} was killed")
            boot.down(folder.name)


def ensure_control_plane() -> None:
    """Skip the test where the programs of an API server without nodes cannot run; each is built when it starts."""
    try:
        requirements.check()
    except ClusterUnavailable as problem:
        pytest.skip(str(problem))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Provide a cluster with a Ready node and DNS.

    It skips where no cluster can boot, and fails if a boot that is possible fails.
    """
    try:
        yield attach()
        return
    except ClusterUnavailable as problem:
        reason = str(problem)
    try:
        requirements.check()
    except ClusterUnavailable as problem:
        pytest.skip(f"{reason}; {problem}")
    remove_orphans()
    name = session_name()
    booted = boot.up(name)
    try:
        yield booted
    finally:
        boot.down(name)


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """Provide a namespace of the restricted Pod Security level; it is deleted after the test."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    cluster.apply([restricted(name)])
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")
