"""Names, addresses and folders of one cluster: pure, so that every other file agrees on them.

A cluster is a folder under the cache, a cgroup, a veth pair and a set of namespaces, all derived from its name. Inside
its namespaces every cluster looks the same: its folder is `/run/rstar2`, its pods are 10.244.0.0/16, its Services
10.96.0.0/16. Only the veth pair's network (10.213.N.0/24) is seen by the machine, so only N must differ.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from scripts.setup import CACHE, ROOT

CLUSTERS = CACHE / "clusters"
INSIDE = Path("/run/rstar2")  # where a cluster's folder is seen from inside its namespaces

NODE = "node"
POD_CIDR = "10.244.0.0/16"
SERVICE_CIDR = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
DNS_SERVICE = "10.96.0.10"
DOMAIN = "cluster.local"
HOST_NAME = "host.rstar2.internal"  # resolves, in pods, to this machine's end of the veth pair
API_PORT = 6443
SUBNETS = range(1, 255)


def default_name() -> str:
    """`RSTAR2_CLUSTER`, or a name that is this clone's own, so that two clones do not share a cluster by accident."""
    return os.environ.get("RSTAR2_CLUSTER") or "c" + hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Layout:
    """One cluster's names; `subnet` is N of its addresses."""

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
        """What `up` noted: the subnet and the namespaces' first process."""
        return self.folder / "cluster.json"

    @property
    def veth(self) -> str:
        """The machine's end of the veth pair; interface names have 15 characters."""
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
