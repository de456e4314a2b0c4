"""The parts of a Kubernetes cluster that jobs need. Pure: it reads the lists that kubectl prints as JSON.

A kind that the user may not list, or that the cluster does not know, is None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rstar2_train.api.roles import GPU_RESOURCES
from rstar2_train.launch.doctor.findings import Finding, ok

Get = Callable[[str], list[dict[str, Any]] | None]
"""kubectl get KIND -A: the objects; None if they cannot be listed."""
JOBS = "agenticrljobs.rstar2.dev"
SHARED = ("nfs", "ceph", "efs", "filestore", "azurefile", "lustre", "gluster", "portworx", "longhorn", "juicefs")
"""Parts of the names of provisioners whose volumes many nodes can write."""
ENFORCING = ("calico", "cilium", "antrea", "kube-router", "weave", "ovn", "canal")
"""Parts of the names of pods of network plug-ins that enforce NetworkPolicies."""


def examine(get: Get) -> list[Finding]:
    """Return the findings of a cluster."""
    nodes = get("nodes")
    return [
        _definition(get),
        _operator(get),
        _nodes(nodes),
        _accelerators(nodes),
        _sandbox(get),
        _storage(get),
        _policies(get),
        _kueue(get),
    ]


def _names(objects: Sequence[dict[str, Any]]) -> list[str]:
    return [str(item["metadata"]["name"]) for item in objects]


def _definition(get: Get) -> Finding:
    definitions = get("customresourcedefinitions")
    if definitions is None:
        return Finding("AgenticRLJob", "note", "not known: no right to list definitions", "ask an administrator")
    if JOBS in _names(definitions):
        return ok("AgenticRLJob", "defined")
    return Finding("AgenticRLJob", "missing", "not defined", "install the operator: docs/installation.md")


def _operator(get: Get) -> Finding:
    deployments = get("deployments")
    if deployments is None:
        return Finding("operator", "note", "not known: no right to list Deployments", "ask an administrator")
    detail = [
        (f"{item['metadata']['namespace']}/{item['metadata']['name']}", (item.get("status") or {}).get("readyReplicas"))
        for item in deployments
        if _is_operator(item["metadata"].get("labels") or {})
    ]
    if not detail:
        return Finding("operator", "missing", "no Deployment", "install the operator: docs/installation.md")
    name, ready = detail[0]
    if ready:
        return ok("operator", f"{name}, {ready} ready")
    remedy = f"kubectl describe deployment {name.partition('/')[2]} -n {name.partition('/')[0]}"
    return Finding("operator", "missing", f"{name} has no ready pod", remedy)


def _is_operator(labels: dict[str, str]) -> bool:
    """Return whether the chart gave these labels to a part of the operator. `nameOverride` changes none of them."""
    chart, component = labels.get("helm.sh/chart", ""), labels.get("app.kubernetes.io/component")
    return chart.startswith("rstar2-") and component == "operator"


def _nodes(nodes: list[dict[str, Any]] | None) -> Finding:
    if nodes is None:
        return Finding("nodes", "note", "not known: no right to list nodes", "the operator then sees no node faults")
    ready = [item for item in nodes if _is_ready(item)]
    detail = f"{len(ready)} of {len(nodes)} ready"
    if ready:
        return ok("nodes", detail)
    return Finding("nodes", "missing", detail, "kubectl describe nodes names the cause")


def _is_ready(node: dict[str, Any]) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def _accelerators(nodes: list[dict[str, Any]] | None) -> Finding:
    amounts = {
        name: sum(int((node.get("status") or {}).get("allocatable", {}).get(name, 0)) for node in nodes or ())
        for name in GPU_RESOURCES.values()
    }
    detail = ", ".join(f"{count} {name}" for name, count in amounts.items() if count)
    if detail:
        return ok("accelerators", detail)
    remedy = "install the device plugin of AMD or NVIDIA, or set accelerator.vendor: None"
    return Finding("accelerators", "note", "no node offers any", remedy)


def _sandbox(get: Get) -> Finding:
    classes = get("runtimeclasses")
    if classes is None:
        return Finding("gVisor", "note", "not known: no right to list RuntimeClasses", "ask an administrator")
    handlers = {str(item.get("handler")): str(item["metadata"]["name"]) for item in classes}
    for handler in ("runsc", "gvisor"):
        if handler in handlers:
            return ok("gVisor", f"RuntimeClass {handlers[handler]}")
    detail = f"no RuntimeClass with the handler runsc (present: {', '.join(handlers) or 'none'})"
    return Finding("gVisor", "missing", detail, "install gVisor on the nodes of the executors: docs/installation.md")


def _storage(get: Get) -> Finding:
    classes = get("storageclasses") or []
    shared = [
        str(item["metadata"]["name"])
        for item in classes
        if any(part in str(item.get("provisioner", "")).lower() for part in SHARED)
    ]
    if shared:
        return ok("storage", f"for many nodes: {', '.join(shared)}")
    remedy = (
        "jobs on several nodes need a class with ReadWriteMany, or a bucket (storage.url); jobs "
        "on one node set accessModes: [ReadWriteOnce]"
    )
    return Finding("storage", "note", f"classes: {', '.join(_names(classes)) or 'none'}", remedy)


def _policies(get: Get) -> Finding:
    pods = get("pods")
    if pods is None:
        return Finding("NetworkPolicy", "note", "not known: no right to list pods", "ask an administrator")
    detail = sorted({part for part in ENFORCING for name in _names(pods) if part in name})
    if detail:
        return ok("NetworkPolicy", f"enforced by {', '.join(detail)}")
    remedy = "use a network plug-in that enforces NetworkPolicies (Calico, Cilium, Antrea): executors need it"
    return Finding("NetworkPolicy", "note", "no known plug-in enforces it", remedy)


def _kueue(get: Get) -> Finding:
    queues = get("localqueues.kueue.x-k8s.io")
    if queues is None:
        return ok("Kueue", "not installed; spec.queueName needs it")
    names = [f"{item['metadata']['namespace']}/{item['metadata']['name']}" for item in queues]
    if names:
        return ok("Kueue", f"queues: {', '.join(names[:8])}")
    return Finding("Kueue", "note", "installed, without a LocalQueue", "create one for each namespace with jobs")
