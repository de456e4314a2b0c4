"""The project's chart on the test cluster: installs it, kills its operator, reads the operator's requests.

The audit log of the API server is the source of what the operator wrote.
"""

from __future__ import annotations

import datetime
import math

from scripts.setup import ROOT
from tests.cluster import project_images
from tests.kube_node.cluster import Cluster, Object
from tests.kube_node.pods import restricted

RELEASE = "rstar2"
NAMESPACE = "rstar2"
"""Namespace of the operator."""
DEFINITION = "crd/agenticrljobs.rstar2.dev"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{RELEASE}-operator"
OPERATORS = "app.kubernetes.io/component=operator"
"""Label selector of the operator's pods."""


def install(cluster: Cluster, *values: str) -> None:
    """Load the operator and judge images into the node and install the chart."""
    cluster.apply([restricted(NAMESPACE)])
    for name in project_images.NAMES:
        cluster.load_image(project_images.archive(name))
    chart = str(ROOT / "helm" / "rstar2")
    sets = [item for value in (*project_images.values(), *values) for item in ("--set", value)]
    sets += ["--set", "operator.networkPolicy.enabled=true"]  # all tests run with it
    arguments = ["--namespace", NAMESPACE, *sets, "--wait", "--timeout", "600s", "--take-ownership"]
    cluster.run("helm", "upgrade", "--install", RELEASE, chart, *arguments, seconds=700)


def uninstall(cluster: Cluster) -> None:
    """Delete every job, then the release, its namespace and the CRD."""
    cluster.run(
        "kubectl", "delete", "arl", "--all", "-A", "--timeout=120s", check=False
    )  # the operator ends their pods
    cluster.run("helm", "uninstall", RELEASE, "--namespace", NAMESPACE, check=False)
    cluster.kubectl("delete", DEFINITION, f"namespace/{NAMESPACE}", "--ignore-not-found", "--wait=false")


def kill_operator(cluster: Cluster) -> None:
    """Kill all replicas at the same time, without a grace period, and wait until new ones are ready."""
    cluster.kubectl("delete", "pods", "-n", NAMESPACE, "-l", OPERATORS, "--grace-period=0", "--force", "--wait=false")
    cluster.kubectl("rollout", "status", "-n", NAMESPACE, f"deployment/{RELEASE}-operator", "--timeout=300s")


def writes(
    cluster: Cluster, *, since: float, until: float | None = None, accepted: bool = False
) -> list[tuple[str, str]]:
    """Return the operator's write requests as (verb, namespace/resource/name[/subresource]); `accepted`: only those."""
    requests = []
    for event in cluster.audit_events():
        received = _received(event)
        if event["user"].get("username") != ACCOUNT or event["verb"] in ("get", "list", "watch"):
            continue
        if accepted and event.get("responseStatus", {}).get("code", 0) >= 400:
            continue
        if since <= received < (until or math.inf):
            target = event["objectRef"]
            parts = (
                target.get("namespace", ""),
                target["resource"],
                target.get("name", ""),
                target.get("subresource", ""),
            )
            requests.append((event["verb"], "/".join(part for part in parts if part)))
    return requests


def _received(event: Object) -> float:
    return datetime.datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp()


def statuses(cluster: Cluster, namespace: str) -> list[tuple[float, Object]]:
    """Return (time, status) of every status that was written to the jobs of a namespace, oldest first."""
    return [
        (_received(event), event["requestObject"]["status"])
        for event in cluster.audit_events()
        if event["objectRef"].get("namespace") == namespace and "requestObject" in event
    ]
