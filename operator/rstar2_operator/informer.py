"""The watches of children and Warning events: list a kind in pages, watch it from there, and list again if necessary.

Events go into the cache, and the jobs' keys into the queue. A watch that ends is continued from its last version. If
that version is too old (410 Gone), the kind is listed again: a cached object that the list lacks was deleted. A watch
that delivers nothing, or a line that is not JSON, has failed: it is repeated after a backoff, and reported.
kopf watches the jobs (watch.py). It keeps a state and a task for every object, which 30 children per job do not need.
"""

from __future__ import annotations

import asyncio
import logging
import random

from kubernetes.aio.client.exceptions import ApiException

from rstar2_operator import names
from rstar2_operator.cache import NODE, Key, WatchCache
from rstar2_operator.client import UNREACHABLE, Body, KubeClient, NotJson, retry_after
from rstar2_operator.observed import is_true
from rstar2_operator.settings import OperatorSettings
from rstar2_operator.watch_health import WatchHealth, cause_of, described
from rstar2_operator.workqueue import WorkQueue

log = logging.getLogger(__name__)

CHILDREN = (
    *("Pod", "ConfigMap", "Service", "ServiceAccount", "PersistentVolumeClaim", "Deployment", "StatefulSet", "Job"),
    *("NetworkPolicy", "Role", "RoleBinding", "PodDisruptionBudget"),
)
"""Watched kinds; a label selector limits them to the operator's own objects."""
QUOTA = ("Workload",)
"""Further children, if the operator uses Kueue."""
WARNING = "Warning"
LISTS = 2
"""Kinds that are listed at the same time: the API server encodes a page while another one is decoded."""
OPEN_SECONDS = 3.0
"""Time after which an open watch works: an error of the API server comes earlier."""
LONGEST_WAIT = 30.0
"""Maximum seconds between two attempts to reach the API server."""


class PositionLost(Exception):
    """The API server has dropped the version from which a watch should continue."""


class WatchEnded(ConnectionError):
    """A watch ended early without an error, as through a proxy that keeps no connection open."""


PASSING = (PositionLost, *UNREACHABLE)
"""Errors that end watches now and then."""


class Informer:
    """The watch of one kind in one namespace (empty: all)."""

    def __init__(
        self,
        kind: str,
        namespace: str,
        *,
        client: KubeClient,
        cache: WatchCache,
        queue: WorkQueue[Key],
        listing: asyncio.Semaphore | None = None,
        health: WatchHealth | None = None,
    ) -> None:
        """`listing`: held during a list, so that few pages are in memory at the same time."""
        self.kind = kind
        self.namespace = namespace
        self._health = health or WatchHealth()
        self._client = client
        self._cache = cache
        self._queue = queue
        self._listing = listing or asyncio.Semaphore(LISTS)
        own = {"labelSelector": names.SELECTOR}
        self._selectors = {WARNING: {"fieldSelector": "type=Warning"}, NODE: {}}.get(kind, own)
        self._absent = False
        """Whether the cluster does not have the kind, which another component defines."""
        self._failed_uids: set[str] = set()
        """UIDs of the failed pods and Jobs."""
        self._version = ""
        """Version from which the next watch starts; empty: after a list."""
        self._delivers = False
        """Whether the last watch has delivered a change, or was open for OPEN_SECONDS."""
        self.synced = asyncio.Event()
        """Set when the first list is in the cache."""

    async def run(self) -> None:
        """Keep the cache up to date until cancelled."""
        failures = 0
        while True:
            wait = 0.0
            try:
                if not self._version:
                    async with self._listing:
                        self._version = await self._list()
                    self._works()
                await self._watch()
                failures = 0
            except (PositionLost, ApiException, *UNREACHABLE) as error:
                failures = 1 if self._delivers else failures + 1
                self._delivers = False
                wait = self._failed(error, failures)
            await asyncio.sleep(wait)

    def _failed(self, error: Exception, failures: int) -> float:
        """Report a failure, the last of `failures` without a change between them. Return the seconds to wait."""
        self._drop_lost(error)
        which, cause = described(self.kind, self.namespace), cause_of(error)
        if failures == 1 and isinstance(error, PASSING) and not isinstance(error, NotJson):
            log.debug("watch of %s ended: %s", which, cause)
        else:
            new = not self._absent and self._health.failed(self.namespace, self.kind, cause)
            log.log(logging.WARNING if new else logging.DEBUG, "watch of %s: %s; repeated", which, cause)
        if failures == 1 and isinstance(error, PositionLost):
            return 0.0
        return max(retry_after(error), min(LONGEST_WAIT, 0.1 * 2.0 ** min(failures, 10)) * (0.5 + random.random()))

    def _drop_lost(self, error: Exception) -> None:
        """Drop the position if it is lost, and objects that the operator cannot watch any more."""
        status = error.status if isinstance(error, ApiException) else None
        is_absent, is_unreadable = status == 404 and self.kind in QUOTA, status == 403 and self.kind == NODE
        if isinstance(error, PositionLost) or status == 410 or is_absent or is_unreadable:
            self._version = ""
        if is_absent:
            self._record_absence()
        if is_unreadable:
            self._drop_nodes()

    def _record_absence(self) -> None:
        """Record that the cluster has no objects of the kind, and that its definition is not installed."""
        if not self._absent:
            log.warning("the cluster does not define %s; jobs that need it wait", self.kind)
            self._absent = True
            self._works()
        for uid in self._cache.uids(self.kind, self.namespace):
            if (dropped := self._cache.drop(self.kind, uid)) is not None:
                self._queue.add(dropped[0])
        self.synced.set()

    def _drop_nodes(self) -> None:
        """Read the loss of a node from its pods: a node that is not watched any more seems to report."""
        for job in self._cache.drop_nodes():
            self._queue.add(job)

    def _works(self) -> None:
        self._health.works(self.namespace, self.kind)

    def _works_open(self) -> None:
        self._delivers = True
        self._works()

    async def _list(self) -> str:
        """Write every existing object to the cache and remove the deleted ones. Return the version of the list."""
        cached = self._cache.uids(self.kind, self.namespace)
        self._failed_uids.clear()
        version = ""
        async for page in self._client.pages(self.kind, self.namespace, selectors=self._selectors):
            version = page["metadata"]["resourceVersion"]
            for body in page["items"] or ():
                cached.discard(body["metadata"]["uid"])
                self._record(body, gone=False)
            await asyncio.sleep(0)  # other tasks run between two pages
        for uid in cached:
            if (dropped := self._cache.drop(self.kind, uid)) is not None:
                self._queue.add(dropped[0])
        self.synced.set()
        self._absent = False
        return version

    async def _watch(self) -> None:
        """Deliver the changes after the last version until the watch ends. Raises WatchEnded if it delivers nothing."""
        timers: list[asyncio.TimerHandle] = []
        watch = self._client.watch(
            self.kind,
            self.namespace,
            selectors=self._selectors,
            version=self._version,
            opened=lambda: timers.append(asyncio.get_running_loop().call_later(OPEN_SECONDS, self._works_open)),
        )
        self._delivers = False
        try:
            async for change, body in watch:
                if change == "ERROR":
                    if body.get("code") == 410:
                        raise PositionLost
                    raise ApiException(status=body.get("code"), reason=body.get("message"))
                if change != "BOOKMARK":
                    self._record(body, gone=change == "DELETED")
                self._version = body["metadata"]["resourceVersion"]
                self._delivers = True
        finally:
            for timer in timers:
                timer.cancel()
        if not self._delivers:
            raise WatchEnded("the watch ended before it delivered anything")

    def _record(self, body: Body, *, gone: bool) -> None:
        if self.kind == NODE:
            for job in self._cache.record_node(body, gone=gone):
                self._queue.add(job, urgent=True)
        elif self.kind != WARNING:
            key = self._cache.record_child(self.kind, body, gone=gone)
            if key is not None:
                self._queue.add(key, urgent=self._fails(body, gone=gone))
        elif not gone:
            for key in self._cache.record_warning(body):
                self._queue.add(key)

    def _fails(self, body: Body, *, gone: bool) -> bool:
        """Return whether a change is the failure of a pod or Job: its job comes before the changes of other jobs."""
        uid, status = body["metadata"]["uid"], body.get("status") or {}
        if gone or not (status.get("phase") == "Failed" or is_true(body, "Failed")):
            self._failed_uids.discard(uid)
            return False
        known = uid in self._failed_uids
        self._failed_uids.add(uid)
        return not known


def children(site: OperatorSettings) -> tuple[str, ...]:
    """Return the watched kinds of a site."""
    return CHILDREN + (QUOTA if site.kueue else ())


def informers(
    site: OperatorSettings, *, client: KubeClient, cache: WatchCache, queue: WorkQueue[Key], health: WatchHealth
) -> list[Informer]:
    """Return the informers of all children and of Warning events. Without namespaces: also of nodes."""
    listing = asyncio.Semaphore(LISTS)
    nodes = () if site.watch_namespaces else (NODE,)  # nodes need rights in the whole cluster
    return [
        Informer(kind, namespace, client=client, cache=cache, queue=queue, listing=listing, health=health)
        for kind in (*children(site), WARNING, *nodes)
        for namespace in site.watch_namespaces or ("",)
    ]
