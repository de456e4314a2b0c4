"""The cluster's own tests use the fixtures that other tests of the cluster use."""

from tests.kube_node.fixtures import cluster, namespace, operated

__all__ = ["cluster", "namespace", "operated"]
