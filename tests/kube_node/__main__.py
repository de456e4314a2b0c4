"""`python -m tests.kube_node up|down|status|shell|node|kubectl|load|job`: what `make cluster-...` calls."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from scripts.setup import ROOT, say
from tests.cluster import training
from tests.kube_node import boot, components, namespaces
from tests.kube_node.cluster import Cluster, CommandFailed, attach
from tests.kube_node.layout import CLUSTERS, default_name
from tests.kube_node.requirements import NoCluster

ACTIONS = ("up", "down", "status", "shell", "node", "kubectl", "load", "job")


def status(name: str) -> None:
    """Print what runs: services, node, pods; and which other clusters this machine has."""
    others = sorted(path.parent.name for path in CLUSTERS.glob("*/cluster.json") if path.parent.name != name)
    if others and not os.environ.get("RSTAR2_KUBECONFIG"):
        say(f"other clusters on this machine: {', '.join(others)}")
    cluster = attach(name)
    say(f"KUBECONFIG={cluster.kubeconfig}")
    if cluster.layout:
        say(f"cluster {name}: API server {cluster.layout.server}, logs in {cluster.layout.folder}/logs")
        for service, state in cluster.services().items():
            word = "runs" if state["pid"] else "DOWN"
            often = f", started {state['starts']} times, last exit {state['lastExit']}" if state["starts"] > 1 else ""
            say(f"  {service:<24} {word}{often}")
    for what in (["nodes", "-o", "wide"], ["pods", "--all-namespaces", "-o", "wide"]):
        say(cluster.kubectl("get", *what).rstrip())


def shell(cluster: Cluster) -> None:
    """Replace this process by a shell with kubectl and helm pointed at the cluster."""
    environment = {**cluster.environment(), "PS1": "(cluster) \\w $ "}
    say("kubectl and helm speak to the cluster; leave with exit")
    os.execvpe("bash", ["bash", "--norc"], environment)


def node(cluster: Cluster, command: list[str]) -> None:
    """Replace this process by a command, or a shell, on the node."""
    line = [*namespaces.enter(cluster.own()), *(command or ["bash", "--norc"])]
    os.execvpe(line[0], line, {**components.service([])["env"], "TERM": os.environ.get("TERM", "dumb")})


def job(cluster: Cluster, rest: list[str]) -> training.Object:
    """An example's manifest whose trainer and engine pods run this machine's Python; makes the claims that show it."""
    examples = sorted(path.name for path in (ROOT / "examples").glob("*.yaml") if path.name != "serve.yaml")
    if not 1 <= len(rest) <= 2 or rest[0] not in examples:
        raise NoCluster(f"job EXAMPLE [NAMESPACE]: EXAMPLE is one of {', '.join(examples)}")
    made = training.job(cluster, (*rest, "default")[1], rest[0])
    made["spec"]["executor"] = {**made["spec"].get("executor", {}), "cpu": "500m"}  # all its pods on two cores
    return made


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kube_node", description=__doc__)
    parser.add_argument("--name", default=None, help="the cluster's name (default: RSTAR2_CLUSTER, else this clone's)")
    parser.add_argument("action", choices=ACTIONS)
    parser.add_argument(
        "rest",
        nargs=argparse.REMAINDER,
        help="of node and kubectl: the command; of load: image archives; of job: EXAMPLE [NAMESPACE], the manifest is "
        "printed as it can run here",
    )
    options = parser.parse_args(arguments)
    name = options.name or default_name()
    try:
        if options.action == "up":
            cluster = attach(name) if os.environ.get("RSTAR2_KUBECONFIG") else boot.up(name)
            say(f"export KUBECONFIG={cluster.kubeconfig}")
        elif options.action == "down":
            say(f"cluster {name}: removed" if boot.down(name) else f"cluster {name}: there is none")
        elif options.action == "status":
            status(name)
        elif options.action == "shell":
            shell(attach(name))
        elif options.action == "node":
            node(attach(name), options.rest)
        elif options.action == "kubectl":
            cluster = attach(name)
            os.execvpe("kubectl", ["kubectl", *options.rest], cluster.environment())
        elif options.action == "load":
            for archive in options.rest:
                attach(name).load(Path(archive))
        elif options.action == "job":
            print(training.as_json(job(attach(name), options.rest)))
    except (NoCluster, CommandFailed) as problem:
        say(f"{problem}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
