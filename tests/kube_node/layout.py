"""Names, addresses and folders of one cluster. Pure: every other module takes them from here.

A cluster is a folder in the cache, a cgroup, a veth pair and a set of namespaces, all named after the cluster. Inside
its namespaces every cluster is the same: its folder is `/run/rstar2`, its pods are 10.244.0.0/16, its Services
10.96.0.0/16. The machine sees only the network of the veth pair (10.213.N.0/24), so only N differs.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from scripts.setup import CACHE, ROOT

CLUSTERS = CACHE / "clusters"
INSIDE = Path("/run/rstar2")
"""The folder of a cluster, as processes inside its namespaces see it."""

NODE = "node"
POD_CIDR = "10.244.0.0/16"
SERVICE_CIDR = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
DNS_SERVICE = "10.96.0.10"
DOMAIN = "cluster.local"
HOST_NAME = "host.rstar2.internal"
"""In pods, the name of this machine's end of the veth pair."""
API_PORT = 6443
SUBNETS = range(1, 255)


def default_name() -> str:
    """Return `RSTAR2_CLUSTER`, or a name that depends on the clone's path, so that two clones never share a cluster."""
    return os.environ.get("RSTAR2_CLUSTER") or "c" + hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Layout:
    """The names of one cluster. `subnet` is N in its addresses."""

    name: str
    subnet: int = 0

    @property
    def folder(self) -> Path:
        return CLUSTERS / self.name

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "admin.kubeconfig"

    @property
    def audit_log(self) -> Path:
        return self.folder / "audit.log"

    @property
    def record(self) -> Path:
        """The file in which `boot.up` stores the subnet."""
        return self.folder / "cluster.json"

    @property
    def veth(self) -> str:
        """The machine's end of the veth pair. The kernel allows 15 characters."""
        return "rs2-" + hashlib.sha256(self.name.encode()).hexdigest()[:10]

    @property
    def cgroup(self) -> str:
        return f"rstar2-{self.name}"

    @property
    def host_address(self) -> str:
        return f"10.213.{self.subnet}.1"

    @property
    def node_address(self) -> str:
        return f"10.213.{self.subnet}.2"

    @property
    def server(self) -> str:
        return f"https://{self.node_address}:{API_PORT}"
