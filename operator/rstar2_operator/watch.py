"""The watch of the jobs, by kopf: events -> cache -> queue. The only file that imports kopf.

informer.py watches the other kinds. This file uses only kopf's low-level event handlers, which see every event
immediately, and write nothing to any object: no finalizers, no state.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kopf

from rstar2_operator import names
from rstar2_operator.cache import Key, WatchCache
from rstar2_operator.client import PAGE_OBJECTS
from rstar2_operator.settings import OperatorSettings
from rstar2_operator.workqueue import WorkQueue
from rstar2_train.utils.dns import join_address


class WithoutDiffs(kopf.StatusDiffBaseStorage):
    """kopf's description of a job, empty: low-level handlers need no diff, and kopf would copy the spec per event."""

    def build(self, **_: Any) -> Any:
        """Return an empty description."""
        return {}

    def fetch(self, **_: Any) -> Any:
        """Return none: no description is stored."""
        return None


ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def registry(*, cache: WatchCache, queue: WorkQueue[Key]) -> kopf.OperatorRegistry:
    """Return kopf's registry with all handlers."""
    handlers = kopf.OperatorRegistry()

    @kopf.on.login(registry=handlers)
    async def login(**kwargs: Any) -> Any:
        return _pod_credentials() or kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=handlers)
    async def job(event: Mapping[str, Any], **_: Any) -> None:
        queue.add(cache.record_job(event["object"], gone=event["type"] == "DELETED"))

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
    result.persistence.diffbase_storage = WithoutDiffs()
    result.watching.chunk_size = PAGE_OBJECTS
    result.watching.connect_timeout = 10
    result.networking.request_timeout = 30
    result.networking.connect_timeout = 10
    result.queueing.idle_timeout = 0.1  # of the task that kopf starts for each job
    return result


async def run(
    site: OperatorSettings, *, cache: WatchCache, queue: WorkQueue[Key], stop: asyncio.Event, ready: asyncio.Event
) -> None:
    """Watch until `stop` is set. `ready` is set when kopf has installed its signal handlers."""
    await kopf.operator(
        registry=registry(cache=cache, queue=queue),
        settings=settings(site),
        standalone=True,
        clusterwide=not site.watch_namespaces,
        namespaces=site.watch_namespaces,
        stop_flag=stop,
        ready_flag=ready,
    )
