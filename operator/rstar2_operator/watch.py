"""The watches, by kopf: events -> cache -> queue. The only file that imports kopf.

It uses only kopf's low-level event handlers, which see every event immediately, and write nothing to any object: no
finalizers, no state.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kopf

from rstar2_operator import names
from rstar2_operator.cache import Key, WatchCache, plain
from rstar2_operator.settings import OperatorSettings
from rstar2_operator.workqueue import WorkQueue
from rstar2_train.utils.dns import join_address

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CHILDREN = {
    ("", "v1", "pods"): "Pod",
    ("", "v1", "configmaps"): "ConfigMap",
    ("", "v1", "services"): "Service",
    ("", "v1", "serviceaccounts"): "ServiceAccount",
    ("", "v1", "persistentvolumeclaims"): "PersistentVolumeClaim",
    ("apps", "v1", "deployments"): "Deployment",
    ("apps", "v1", "statefulsets"): "StatefulSet",
    ("batch", "v1", "jobs"): "Job",
    ("networking.k8s.io", "v1", "networkpolicies"): "NetworkPolicy",
    ("rbac.authorization.k8s.io", "v1", "roles"): "Role",
    ("rbac.authorization.k8s.io", "v1", "rolebindings"): "RoleBinding",
}
"""(group, version, plural) -> kind of the watched children; a label selector limits them to the operator's own."""
QUOTA = {("kueue.x-k8s.io", "v1beta2", "workloads"): "Workload"}
"""Further children, if the operator uses Kueue."""


def children(site: OperatorSettings) -> dict[tuple[str, str, str], str]:
    """Return the watched children of a site, as CHILDREN."""
    return CHILDREN | (QUOTA if site.kueue else {})


def registry(site: OperatorSettings, *, cache: WatchCache, queue: WorkQueue[Key]) -> kopf.OperatorRegistry:
    """Return kopf's registry with all handlers."""
    handlers = kopf.OperatorRegistry()

    def enqueue(key: Key | None) -> None:
        if key is not None:
            queue.add(key)

    @kopf.on.login(registry=handlers)
    async def login(**kwargs: Any) -> Any:
        return _pod_credentials() or kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=handlers)
    async def job(event: Mapping[str, Any], **_: Any) -> None:
        enqueue(cache.record_job(plain(event["object"]), gone=_gone(event)))

    def child(kind: str) -> Any:
        async def handler(event: Mapping[str, Any], **_: Any) -> None:
            enqueue(cache.record_child(kind, plain(event["object"]), gone=_gone(event)))

        return handler

    for (group, version, plural), kind in children(site).items():
        kopf.on.event(group, version, plural, id=f"child-{plural}", registry=handlers)(child(kind))

    @kopf.on.event("", "v1", "events", registry=handlers)
    async def warning(event: Mapping[str, Any], **_: Any) -> None:
        if not _gone(event):
            for key in cache.record_warning(plain(event["object"])):
                queue.add(key)

    return handlers


def _pod_credentials() -> kopf.ConnectionInfo | None:
    """Credentials of the pod's service account. kopf's own login resolves a DNS name, which may not be ready yet."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port or not (ACCOUNT / "token").exists():
        return None
    return kopf.ConnectionInfo(
        server=f"https://{join_address(host, int(port))}",
        ca_path=str(ACCOUNT / "ca.crt"),
        scheme="Bearer",
        token=(ACCOUNT / "token").read_text(encoding="utf-8").strip(),
    )


def settings(site: OperatorSettings) -> kopf.OperatorSettings:
    """Return kopf's settings: no Events, no scanning, no peering, no state on objects, small batches."""
    result = kopf.OperatorSettings()
    result.posting.enabled = False
    result.scanning.disabled = True
    result.peering.standalone = True
    result.admission.managed = None
    result.watching.chunk_size = 500
    result.watching.connect_timeout = 10
    result.networking.request_timeout = 30
    result.networking.connect_timeout = 10
    result.queueing.idle_timeout = 0.5
    for group, version, plural in children(site):
        result.watching.label_selectors[group, version, plural] = names.SELECTOR
    result.watching.field_selectors["", "v1", "events"] = "type=Warning"
    return result


def _gone(event: Mapping[str, Any]) -> bool:
    return bool(event["type"] == "DELETED")


async def run(site: OperatorSettings, *, cache: WatchCache, queue: WorkQueue[Key], stop: Any) -> None:
    """Watch until `stop` is set."""
    await kopf.operator(
        registry=registry(site, cache=cache, queue=queue),
        settings=settings(site),
        standalone=True,
        clusterwide=not site.watch_namespaces,
        namespaces=site.watch_namespaces,
        stop_flag=stop,
    )
