"""The Ray cluster of one stage attempt: pod 0 has the head, every other pod joins it as a node.

Our own launcher and not Ray's: its exit codes hide what the training did, and flags for the head kill the workers.
Pods of one attempt know one another by name (an Indexed Job's host names under a headless Service). Run as a program,
this file waits until all nodes have joined: a driver that started before would be taken for a job that has its pods.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rstar2_train.trainer.ray_runtime import QUIET
from rstar2_train.utils.dns import join_address

log = logging.getLogger("rstar2.cluster")

AGENT_PORTS = (
    "dashboard-agent-grpc-port",
    "dashboard-agent-listen-port",
    "runtime-env-agent-port",
    "metrics-export-port",
)
"""Ports of a node, from the one after the head's."""
LOOK_SECONDS = 0.5
HEAD_SECONDS = 2.0
HEAD_MISSES = 3
SHARED_MEMORY = Path("/dev/shm")
LEAST_STORE_BYTES = 80_000_000
MOST_STORE_BYTES = 8 * 2**30
ENVIRONMENT = QUIET | {
    # How long a head may be silent. A node that is busy is not to be taken for one that is gone: whether the head has
    # ended is seen by its port, which the kernel answers for.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "60",
    "RAY_raylet_start_wait_time_s": "60",
}


@dataclass(frozen=True, slots=True)
class RayCluster:
    """The Ray cluster of an attempt, seen from one of its pods."""

    head: str
    """Host of the head."""
    port: int
    """Port of the head."""
    address: str
    """Of this pod."""
    slots: int
    """Trainer ranks on this pod."""
    gpus: int
    """Its accelerators."""

    @property
    def head_address(self) -> str:
        """As Ray takes it."""
        return join_address(self.head, self.port)

    def head_command(self, *, store_bytes: int) -> list[str]:
        """Starts the head, and stays until it ends."""
        return [
            *_ray("start", "--head", "--block", f"--port={self.port}", "--include-dashboard=false"),
            *self._node(store_bytes),
        ]

    def join_command(self, *, store_bytes: int) -> list[str]:
        """Joins the head, and stays until either ends."""
        return [*_ray("start", "--block", f"--address={self.head_address}"), *self._node(store_bytes)]

    def wait_command(self, nodes: int) -> list[str]:
        """Ends when so many nodes have joined."""
        return [
            sys.executable,
            "-m",
            "rstar2_train.launch.pod.ray_cluster",
            "--address",
            self.head_address,
            "--nodes",
            str(nodes),
        ]

    def _node(self, store_bytes: int) -> list[str]:
        # Ray has its agents choose ports, waits 15 seconds to be told, and gives the node up: too short on a busy
        # machine, and a pod has all ports for itself. (It waits for the listening one all the same.)
        agents = [f"--{name}={self.port + 1 + index}" for index, name in enumerate(AGENT_PORTS)]
        return [
            *agents,
            f"--node-ip-address={self.address}",
            f"--num-cpus={self.slots}",
            f"--num-gpus={self.gpus}",
            f"--object-store-memory={store_bytes}",
            "--disable-usage-stats",
        ]


def head_host(host: str, *, subdomain: str) -> str:
    """Name of pod 0 of the attempt whose pod `host` is: `<job>-<stage>-<attempt>-<index>`, under the Service's name."""
    name, _, index = host.rpartition("-")
    if not name or not index.isdigit():
        raise ValueError(f"HOSTNAME is {host!r}: in an Indexed Job it is the Job's name, '-' and the pod's index")
    return f"{name}-0.{subdomain}"


def environment(secret: str) -> dict[str, str]:
    """Variables of every Ray process of an attempt. `secret`: what all its pods know, and nobody else."""
    token = hashlib.sha256(f"ray of a stage: {secret}".encode()).hexdigest()
    return ENVIRONMENT | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}


def store_bytes(shared_memory: Path = SHARED_MEMORY) -> int:
    """Room for the sequences of a step: half of the pod's shared memory, within bounds."""
    found = os.statvfs(shared_memory)
    return max(LEAST_STORE_BYTES, min(MOST_STORE_BYTES, found.f_blocks * found.f_frsize // 2))


async def wait_for_end(cluster: RayCluster) -> None:
    """Return when the head has ended: its port was closed, or its name gone, several times in a row."""
    misses = 0
    while misses < HEAD_MISSES:
        await asyncio.sleep(HEAD_SECONDS)
        misses = 0 if await reachable(cluster.head, cluster.port) else misses + 1


async def reachable(host: str, port: int) -> bool:
    """Whether somebody listens there now; a name that does not resolve yet is nobody."""
    try:
        async with asyncio.timeout(2):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def _ray(*arguments: str) -> Sequence[str]:
    """Ray's command line by this interpreter: a script's first line may name another."""
    return [sys.executable, "-m", "ray.scripts.scripts", *arguments]


def wait_for_nodes(address: str, nodes: int) -> None:
    """Wait until so many nodes have joined. Imports ray, hence a process of its own that does not stay."""
    import ray

    ray.init(address=address, logging_level="error", log_to_driver=False)
    seen = -1
    while True:
        here = sorted(str(node["NodeManagerAddress"]) for node in ray.nodes() if node["Alive"])
        if len(here) != seen:
            log.info("%d of %d nodes have joined: %s", len(here), nodes, ", ".join(here))
            seen = len(here)
        if seen >= nodes:
            break
        time.sleep(LOOK_SECONDS)
    ray.shutdown()


def main() -> None:
    """Command line of the wait."""
    parser = argparse.ArgumentParser(prog="python -m rstar2_train.launch.pod.ray_cluster", description=__doc__)
    parser.add_argument("--address", required=True, help="the head's HOST:PORT")
    parser.add_argument("--nodes", type=int, required=True, help="how many to wait for, the head among them")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    wait_for_nodes(arguments.address, arguments.nodes)


if __name__ == "__main__":
    main()
