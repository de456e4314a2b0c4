"""The only file that knows kopf: watches -> store -> queue. No finalizers, no state, nothing written.

Low-level event handlers alone: they see every event at once, and cost no write on any object.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kopf

from rstar2_operator import names
from rstar2_operator.cache import Key, WatchCache
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
"""Watched by the label that all children carry: the API server sends nothing else."""


def registry(*, store: WatchCache, queue: WorkQueue[Key]) -> kopf.OperatorRegistry:
    """All handlers."""
    made = kopf.OperatorRegistry()

    def mark(key: Key | None) -> None:
        if key is not None:
            queue.add(key)

    @kopf.on.login(registry=made)
    async def login(**kwargs: Any) -> Any:
        return _of_the_pod() or kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=made)
    async def job(event: Mapping[str, Any], **_: Any) -> None:
        mark(store.saw_job(_plain(event), gone=_gone(event)))

    def child(kind: str) -> Any:
        async def seen(event: Mapping[str, Any], **_: Any) -> None:
            mark(store.saw_child(kind, _plain(event), gone=_gone(event)))

        return seen

    for (group, version, plural), kind in CHILDREN.items():
        kopf.on.event(group, version, plural, id=f"child-{plural}", registry=made)(child(kind))

    @kopf.on.event("", "v1", "events", registry=made)
    async def warning(event: Mapping[str, Any], **_: Any) -> None:
        if not _gone(event):
            mark(store.saw_warning(_plain(event)))

    return made


def _of_the_pod() -> kopf.ConnectionInfo | None:
    """The pod's service account, as every other client finds it: kopf's own way asks DNS, which may come up later."""
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
    """kopf, told to stay out of the way: no posting, no scanning, no state on objects, small batches."""
    made = kopf.OperatorSettings()
    made.posting.enabled = False
    made.scanning.disabled = True
    made.peering.standalone = True
    made.admission.managed = None
    made.watching.chunk_size = 500
    made.watching.connect_timeout = 10
    made.networking.request_timeout = 30
    made.networking.connect_timeout = 10
    made.queueing.idle_timeout = 0.5
    for group, version, plural in CHILDREN:
        made.watching.label_selectors[group, version, plural] = names.SELECTOR
    made.watching.field_selectors["", "v1", "events"] = "type=Warning"
    return made


def _plain(event: Mapping[str, Any]) -> dict[str, Any]:
    """The object as it was sent, without the part that is as large as the rest and that nobody here reads."""
    body = dict(event["object"])
    body["metadata"] = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
    return body


def _gone(event: Mapping[str, Any]) -> bool:
    return bool(event["type"] == "DELETED")


async def run(site: OperatorSettings, *, store: WatchCache, queue: WorkQueue[Key], stop: Any) -> None:
    """Watch until `stop` is set."""
    await kopf.operator(
        registry=registry(store=store, queue=queue),
        settings=settings(site),
        standalone=True,
        clusterwide=not site.watch_namespaces,
        namespaces=site.watch_namespaces,
        stop_flag=stop,
    )
