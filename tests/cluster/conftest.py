"""Fixtures of the cluster tests: the cluster and namespaces of tests/kube_node, and a cluster with the operator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster import operator_release
from tests.kube_node.cluster import Cluster
from tests.kube_node.fixtures import cluster, namespace

__all__ = ["cluster", "namespace", "operated"]


@pytest.fixture(scope="session")
def operated(cluster: Cluster) -> Iterator[Cluster]:
    """Provide the cluster with the project's chart, for all tests of the session that need the operator.

    The operator reconciles every job. Tests of the node itself are in files whose names sort first; tests that need no
    node are in tests/apiserver. `make e2e` runs these tests in two parts, each with a node of its own.
    """
    operator_release.install(cluster, "crds.keep=false")
    yield cluster
    operator_release.uninstall(cluster)
