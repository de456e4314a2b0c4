"""The watch of the jobs, by kopf: events -> cache -> queue. The only file that imports kopf.

informer.py watches the other kinds. This file uses only kopf's low-level event handlers, which see every event
immediately, and write nothing to any object: no finalizers, no state.

Each namespace has a kopf operator of its own. kopf ends if a namespace is deleted or forbidden, after an ERROR event,
and after a minute without API server; `JobWatch` then starts it again, and the other namespaces see nothing of it.
For that `JobWatch` supervises kopf's tasks itself: `kopf.run_tasks` and `kopf.operator` would cancel each task of the
process that is younger than kopf, so also the one that holds the Lease, and kill the process ten minutes later.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import kopf
from kopf._cogs.structs.references import Insights

from rstar2_operator import names
from rstar2_operator.cache import JOB, Key, WatchCache
from rstar2_operator.client import PAGE_OBJECTS
from rstar2_operator.informer import LONGEST_WAIT
from rstar2_operator.settings import OperatorSettings
from rstar2_operator.watch_health import WatchHealth, cause_of, described
from rstar2_operator.workqueue import WorkQueue
from rstar2_train.utils.dns import join_address

log = logging.getLogger(__name__)

GIVE_UP_SECONDS = 90.0
"""Time after which kopf has ended if it cannot list or watch the jobs: it retries for a minute."""
END_SECONDS = 10.0
"""Time in which kopf's tasks end after they are cancelled; they are then cancelled again."""
STABLE_SECONDS = 300.0
"""Time after which a watch that ends is repeated as if it were the first failure."""


class NotDefined(Exception):
    """The cluster has no definition of AgenticRLJob; kopf would watch nothing, because it does not scan again."""


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
    """Return the pod's credentials. kopf's own login resolves a DNS name, which may not be ready yet."""
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
    result.process.ultimate_exiting_timeout = None  # the process does not exit with one of its watches
    return result


class JobWatch:
    """The watch of the jobs of one namespace (empty: all)."""

    def __init__(
        self, namespace: str, site: OperatorSettings, *, cache: WatchCache, queue: WorkQueue[Key], health: WatchHealth
    ) -> None:
        self._namespace = namespace
        self._site = site
        self._cache = cache
        self._queue = queue
        self._health = health

    async def run(self, *, started: Callable[[], None]) -> None:
        """Watch until kopf is stopped by a signal, or this task is cancelled.

        `started` is called after each start: kopf has replaced the signal handlers, and would stop only itself.
        """
        failures = 0
        while True:
            since = time.monotonic()
            try:
                await self._run_kopf(started)
                return
            except Exception as error:  # of any kind: the jobs of this namespace must not stay unwatched
                failures = 1 if time.monotonic() - since > STABLE_SECONDS else failures + 1
                wait = min(LONGEST_WAIT, 2.0 ** min(failures, 10)) * (0.5 + random.random() / 2)
                self._health.failed(self._namespace, JOB, cause_of(error))
                log.warning("watch of %s ended; repeated in %.0f s", described(JOB, self._namespace), wait)
            await asyncio.sleep(wait)

    async def _run_kopf(self, started: Callable[[], None]) -> None:
        ready, insights = asyncio.Event(), Insights()
        tasks = await kopf.spawn_tasks(
            registry=registry(cache=self._cache, queue=self._queue),
            settings=settings(self._site),
            standalone=True,
            clusterwide=not self._namespace,
            namespaces=[self._namespace] if self._namespace else [],
            ready_flag=ready,
            insights=insights,
        )
        works = asyncio.get_running_loop().call_later(GIVE_UP_SECONDS, self._health.works, self._namespace, JOB)
        starting = asyncio.create_task(_scanned(ready, insights))
        try:
            await asyncio.wait({starting, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            started()
            if starting.done() and not insights.watched_resources:
                raise NotDefined("the cluster does not define AgenticRLJob")
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # raises the error of the watch
        finally:
            works.cancel()
            starting.cancel()
            await _end(tasks)


async def _scanned(ready: asyncio.Event, insights: Insights) -> None:
    """Return when kopf has started, and knows which kinds the cluster defines."""
    await ready.wait()
    await insights.ready_resources.wait()


async def _end(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks of kopf, and wait for them: its first one ends those that are not among them."""
    for _ in range(2):  # the first one of startup and cleanup is not enough if another task hangs
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=END_SECONDS)
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # JobWatch reports the first one
