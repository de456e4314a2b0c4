"""The cluster's own tests use the fixtures that other tests of the cluster use."""

from tests.cluster.fixtures import cluster, namespace, operated

__all__ = ["cluster", "namespace", "operated"]
