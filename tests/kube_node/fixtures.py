"""Fixtures for every test that needs a cluster: one cluster for the whole session, a namespace for each test.

`from tests.kube_node.fixtures import cluster, namespace` in a conftest makes them available there. The cluster is, in
this order: the one of RSTAR2_KUBECONFIG, the one that `make cluster-up` left running, or one that is booted for the
session and torn down after it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.setup import say
from tests.cluster import training
from tests.kube_node import boot, requirements
from tests.kube_node.cluster import Cluster, attach
from tests.kube_node.layout import CLUSTERS
from tests.kube_node.pods import restricted
from tests.kube_node.requirements import NoCluster

PREFIX = "test-"
"""Of the names of the tests' own clusters; the process that booted it follows."""


def session_name() -> str:
    """A name for a cluster that is to go with this process."""
    return f"{PREFIX}{os.getpid()}-{uuid.uuid4().hex[:6]}"


def remove_orphans() -> None:
    """Take down the clusters of test processes that were killed before they could."""
    for folder in CLUSTERS.glob(f"{PREFIX}*"):
        owner = folder.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdecimal() and not Path("/proc", owner).exists():
            say(f"cluster {folder.name}: its tests are gone, so it goes")
            boot.down(folder.name)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster with node Ready and DNS; skips where none can boot, fails where one should and does not."""
    try:
        yield attach()
        return
    except NoCluster as absent:
        reason = str(absent)
    try:
        requirements.check()
    except NoCluster as problem:
        pytest.skip(f"{reason}; {problem}")
    remove_orphans()
    name = session_name()
    booted = boot.up(name)
    try:
        yield booted
    finally:
        boot.down(name)


@pytest.fixture(scope="session")
def operated(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with the project's chart in it, for all tests of the session that need the operator.

    It reconciles whatever job it sees: tests that want none (of the CRD, of the chart) have names that come before.
    """
    training.install(cluster)
    yield cluster
    training.uninstall(cluster)


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace under the restricted Pod Security level, removed with all that is in it."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    cluster.apply([restricted(name)])
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")
