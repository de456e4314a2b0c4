"""The command line of the cluster: `python -m tests.kube_node ACTION`. The targets `make cluster-...` use it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from scripts.setup import VENV, echo
from tests.kube_node import boot, components, namespaces
from tests.kube_node.cluster import Cluster, CommandFailed, attach
from tests.kube_node.layout import CLUSTERS, default_name
from tests.kube_node.requirements import ClusterUnavailable

ACTIONS = """\
actions:
  prepare          build the programs and images that are missing; boot nothing
  up               boot the cluster and print its KUBECONFIG
  down             stop it and delete all that belongs to it
  status           print services, nodes, pods, and the clusters of other clones
  shell            start a shell in which kubectl and helm use the cluster
  node [COMMAND]   run a command, or a shell, on the node
  kubectl ARG...   run kubectl
  load ARCHIVE...  load image archives into the node
"""


def print_status(name: str) -> None:
    """Print services, nodes and pods, and the names of the other clusters of this machine."""
    others = sorted(path.parent.name for path in CLUSTERS.glob("*/cluster.json") if path.parent.name != name)
    if others and not os.environ.get("RSTAR2_KUBECONFIG"):
        echo(f"other clusters on this machine: {', '.join(others)}")
    cluster = attach(name)
    echo(f"KUBECONFIG={cluster.kubeconfig}")
    if cluster.layout:
        echo(f"cluster {name}: API server {cluster.layout.server}, logs in {cluster.layout.folder}/logs")
        for service, state in cluster.services().items():
            health = "running" if state["pid"] else "DOWN"
            restarts = f", {state['starts']} starts, last exit {state['lastExit']}" if state["starts"] > 1 else ""
            echo(f"  {service:<24} {health}{restarts}")
    for resource in ("nodes", "pods"):
        echo(cluster.kubectl("get", resource, "--all-namespaces", "-o", "wide").rstrip())


def shell(cluster: Cluster) -> None:
    """Replace this process by a shell in which kubectl and helm use the cluster."""
    own = cluster.environment()
    # kubectl finds its plug-in `rstar2` on the PATH.
    environment = {**own, "PATH": f"{VENV / 'bin'}:{own['PATH']}", "PS1": "(cluster) \\w $ "}
    echo("kubectl, helm and kubectl rstar2 use the cluster. Leave with exit.")
    os.execvpe("bash", ["bash", "--norc"], environment)


def node(cluster: Cluster, command: list[str]) -> None:
    """Replace this process by a command, or a shell, on the node."""
    argv = [*namespaces.enter(cluster.node_layout()), *(command or ["bash", "--norc"])]
    os.execvpe(argv[0], argv, {**components.service([])["env"], "TERM": os.environ.get("TERM", "dumb")})


def main(arguments: list[str]) -> int:
    """Run one action; return 1 with the reason if it failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.kube_node",
        description="Boots and uses a one-node Kubernetes cluster on this machine.",
        epilog=ACTIONS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--name", help="name of the cluster (default: RSTAR2_CLUSTER, else one per clone)")
    parser.add_argument(
        "action", choices=("prepare", "up", "down", "status", "shell", "node", "kubectl", "load"), metavar="ACTION"
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT")
    options = parser.parse_args(arguments)
    name = options.name or default_name()
    try:
        if options.action == "prepare":
            boot.prepare()
        elif options.action == "up":
            cluster = attach(name) if os.environ.get("RSTAR2_KUBECONFIG") else boot.up(name)
            echo(f"export KUBECONFIG={cluster.kubeconfig}")
        elif options.action == "down":
            echo(f"cluster {name}: removed" if boot.down(name) else f"cluster {name}: does not exist")
        elif options.action == "status":
            print_status(name)
        elif options.action == "shell":
            shell(attach(name))
        elif options.action == "node":
            node(attach(name), options.arguments)
        elif options.action == "kubectl":
            os.execvpe("kubectl", ["kubectl", *options.arguments], attach(name).environment())
        elif options.action == "load":
            for archive in options.arguments:
                attach(name).load_image(Path(archive))
    except (ClusterUnavailable, CommandFailed) as problem:
        echo(f"{problem}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
