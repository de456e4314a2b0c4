"""The Ray cluster of one stage attempt: pod 0 runs the head, every other pod joins it as a node.

Started here and not by Ray's launcher, whose exit codes hide the result of the training and whose flags for the head
kill the workers. The pods of an attempt know each other by name (an Indexed Job's host names under a headless Service).
Run as a program, this file waits until all nodes have joined, so that the orchestrator starts only with all its pods.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rstar2_train.utils.dns import join_address
from rstar2_train.utils.ray_environment import RAY_ENVIRONMENT

log = logging.getLogger(__name__)

AGENT_PORTS = (
    "dashboard-agent-grpc-port",
    "dashboard-agent-listen-port",
    "runtime-env-agent-port",
    "metrics-export-port",
)
"""Options for the ports of a node, which follow the port of the head."""
POLL_SECONDS = 0.5
HEAD_POLL_SECONDS = 2.0
HEAD_MISSES = 3
"""Consecutive failed connections after which the head counts as stopped."""
ENVIRONMENT = RAY_ENVIRONMENT | {
    # How long a head may be silent. A busy head must not count as lost; `wait_for_end` detects its end by its port,
    # for which the kernel answers.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "60",
    "RAY_raylet_start_wait_time_s": "60",
}


@dataclass(frozen=True, slots=True)
class RayCluster:
    """The Ray cluster of an attempt, from the view of one of its pods."""

    head: str
    """Host of the head."""
    port: int
    """Port of the head."""
    address: str
    """IP address of this pod."""
    slots: int
    """Trainer ranks on this pod."""
    gpus: int
    """Accelerators of this pod."""

    @property
    def head_address(self) -> str:
        """HOST:PORT of the head."""
        return join_address(self.head, self.port)

    @property
    def stop_port(self) -> int:
        """Port of the head's pod for stop requests (stop_channel.py), after those of Ray's agents."""
        return self.port + 1 + len(AGENT_PORTS)

    def head_command(self, *, store_bytes: int) -> list[str]:
        """Return the command that runs the head until it ends."""
        return [
            *_ray("start", "--head", "--block", f"--port={self.port}", "--include-dashboard=false"),
            *self._node(store_bytes),
        ]

    def join_command(self, *, store_bytes: int) -> list[str]:
        """Return the command that joins the head and runs a node until one of both ends."""
        return [*_ray("start", "--block", f"--address={self.head_address}"), *self._node(store_bytes)]

    def wait_command(self, nodes: int) -> list[str]:
        """Return the command that exits when `nodes` nodes have joined."""
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
        # Without explicit ports, Ray's agents choose them, and Ray gives up a node whose agents take more than 15 s to
        # report them. A busy machine needs longer, and a pod has all its ports for itself.
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
    """Return the name of pod 0 of the attempt to which pod `host` belongs. Raises ValueError.

    A pod is named `<job>-<stage>-<attempt>-<index>`, under the name of the Service, `subdomain`.
    """
    name, _, index = host.rpartition("-")
    if not name or not index.isdigit():
        raise ValueError(f"HOSTNAME is {host!r}, but in an Indexed Job it is the Job's name, '-' and the pod's index")
    return f"{name}-0.{subdomain}"


def environment(secret: str) -> dict[str, str]:
    """Return the variables of every Ray process of an attempt. `secret`: known only to the attempt's pods."""
    token = hashlib.sha256(f"ray of a stage: {secret}".encode()).hexdigest()
    return ENVIRONMENT | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}


async def wait_for_end(cluster: RayCluster) -> None:
    """Return when the head has stopped: several consecutive connections to its port fail, or its name is unknown."""
    misses = 0
    while misses < HEAD_MISSES:
        await asyncio.sleep(HEAD_POLL_SECONDS)
        misses = 0 if await reachable(cluster.head, cluster.port) else misses + 1


async def reachable(host: str, port: int) -> bool:
    """Return whether a process listens on the port; False for a name that does not resolve yet."""
    try:
        async with asyncio.timeout(2):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def _ray(*arguments: str) -> Sequence[str]:
    """Return a Ray command for this interpreter; the installed script may name another one."""
    return [sys.executable, "-m", "ray.scripts.scripts", *arguments]


def wait_for_nodes(address: str, nodes: int) -> None:
    """Wait until `nodes` nodes have joined. It imports ray, hence it runs in a process of its own."""
    import ray

    ray.init(address=address, logging_level="error", log_to_driver=False)
    logged = -1
    while True:
        joined = sorted(str(node["NodeManagerAddress"]) for node in ray.nodes() if node["Alive"])
        if len(joined) != logged:
            log.info("%d of %d nodes have joined: %s", len(joined), nodes, ", ".join(joined))
            logged = len(joined)
        if logged >= nodes:
            break
        time.sleep(POLL_SECONDS)
    ray.shutdown()


def main() -> None:
    """Run the command line of the wait."""
    parser = argparse.ArgumentParser(prog="python -m rstar2_train.launch.pod.ray_cluster", description=__doc__)
    parser.add_argument("--address", required=True, help="HOST:PORT of the head")
    parser.add_argument("--nodes", type=int, required=True, help="number of nodes, including the head")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    wait_for_nodes(arguments.address, arguments.nodes)


if __name__ == "__main__":
    main()
