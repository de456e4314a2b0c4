"""Which TCP connections the network policies of a cluster let pods open."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from tests.kube_node.cluster import Cluster

CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)
    print("allowed")
except TimeoutError:
    print("denied")
"""
Flow = tuple[str, str, int]
"""Pod, host and port."""


def allowed(cluster: Cluster, namespace: str, flows: Iterable[Flow]) -> dict[Flow, bool]:
    """Return for each flow whether the pod can connect; an error other than a timeout raises."""

    def is_allowed(flow: Flow) -> bool:
        source, host, port = flow
        output = cluster.exec(namespace, source, "python3", "-c", CONNECT, host, str(port)).stdout
        assert output.strip() in ("allowed", "denied"), output
        return output.strip() == "allowed"

    flows = list(flows)
    with ThreadPoolExecutor(len(flows)) as threads:  # a denied flow takes its whole timeout
        return dict(zip(flows, threads.map(is_allowed, flows), strict=True))
