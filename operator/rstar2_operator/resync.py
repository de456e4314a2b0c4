"""Comparison of the watch cache with the API server: before the first reconciliation, and periodically.

Before: a partly delivered job looks like one with missing objects, so the operator would delete and recreate them.
An informer reports when its first list is in the cache. kopf does not, so `complete` lists the names of all jobs until
the cache has every one of them. Each namespace is served when it is complete: one that is deleted or forbidden does not
hold the others back.

Periodically: after a watch has lost its position (410 Gone), kopf lists again, but does not report earlier deletions.
`compare` lists the UIDs: a cached object without a UID in the list was deleted, and an object that two comparisons list
but no watch has delivered proves that a watch is stale.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator

from kubernetes.aio.client.exceptions import ApiException

from rstar2_operator import names
from rstar2_operator.apply import RELEASE_ORPHANS
from rstar2_operator.cache import JOB, NODE, Key, WatchCache
from rstar2_operator.client import UNREACHABLE, Body, KubeClient
from rstar2_operator.informer import LONGEST_WAIT, Informer
from rstar2_operator.metrics import Metrics
from rstar2_operator.observed import is_older
from rstar2_operator.watch_health import cause_of, described
from rstar2_operator.workqueue import WorkQueue

log = logging.getLogger(__name__)

POLL_SECONDS = 0.3
RESYNC_SECONDS = 120.0


class Resync:
    """Compares a cache with the API server.

    `kinds`: kinds of the children; `namespaces`: watched namespaces, empty for all.
    """

    def __init__(
        self, client: KubeClient, cache: WatchCache, *, kinds: Iterable[str], namespaces: Iterable[str]
    ) -> None:
        self._client = client
        self._cache = cache
        self._kinds = (JOB, *kinds)
        self._namespaces = tuple(namespaces) or ("",)
        self._orphans: dict[Key, int] = {}
        """Running pods of each job that was deleted without its objects, at the last comparison."""
        self._undelivered: set[str] = set()
        """UIDs that the last comparison listed and no watch had delivered."""

    async def complete(self, queue: WorkQueue[Key], informers: Iterable[Informer] = ()) -> None:
        """Wait for each namespace, without waiting for the others, and queue its jobs when it is complete."""
        informers = list(informers)
        await asyncio.gather(*(self._complete(namespace, queue, informers) for namespace in self._namespaces))

    async def _complete(self, namespace: str, queue: WorkQueue[Key], informers: list[Informer]) -> None:
        """Return when every existing job and child of a namespace has been delivered to the cache."""
        for informer in informers:
            # An account without rights on nodes reports only lost ones.
            if informer.kind != NODE and informer.namespace == namespace:
                await informer.synced.wait()
        while True:  # last: by now kopf has usually delivered all jobs, and one list suffices
            if await self._jobs_delivered(namespace):
                break
            await asyncio.sleep(POLL_SECONDS)
        self._cache.end_initial_sync(namespace)
        counts = {kind: len(self._cache.uids(kind, namespace)) for kind in self._kinds}
        where = f" of namespace {namespace}" if namespace else ""
        log.info("the cache%s is complete: %d jobs, %d objects", where, counts[JOB], sum(counts.values()))
        for key in self._cache.jobs():
            if namespace in ("", key[0]):
                queue.add(key)

    async def _jobs_delivered(self, namespace: str) -> bool:
        try:
            listed = await self._list(JOB, namespace)
        except (ApiException, *UNREACHABLE) as error:
            log.warning("could not list %s: %s", described(JOB, namespace), cause_of(error))
            await asyncio.sleep(LONGEST_WAIT)
            return False
        return all(self._cache.was_delivered((meta["namespace"], meta["name"])) for meta in listed)

    async def run(self, queue: WorkQueue[Key], metrics: Metrics) -> None:
        """Compare periodically until cancelled. If the API server is unreachable, the Lease decides."""
        while True:
            await asyncio.sleep(RESYNC_SECONDS)
            metrics.stale_watch = await self.compare(queue)
            metrics.report_orphans(self.find_orphans())

    def find_orphans(self) -> dict[Key, int]:
        """Return the running pods of each job that was deleted without its objects; log each job once."""
        known, self._orphans = self._orphans, self._cache.orphans()
        for namespace, job in self._orphans.keys() - known.keys():
            log.warning(
                "%s/%s was deleted without its objects (--cascade=orphan); pods that still run: %d. %s",
                *(namespace, job, self._orphans[namespace, job]),
                RELEASE_ORPHANS.format(namespace=namespace, job=job),
            )
        return self._orphans

    async def compare(self, queue: WorkQueue[Key]) -> str:
        """Remove deleted objects from the cache and queue their jobs.

        Return an object that two comparisons listed and no watch delivered; empty if there is none.
        """
        undelivered: dict[str, str] = {}
        for kind, namespace in self._lists():
            cached = self._cache.uids(kind, namespace)
            try:
                listed = await self._list(kind, namespace)
            except (ApiException, *UNREACHABLE) as error:
                log.warning("could not list %s for the resync: %s", described(kind, namespace), cause_of(error))
                continue
            # Only objects that were cached before the request: the list lacks those that were created during it.
            self._drop(kind, cached - {meta["uid"] for meta in listed}, queue)
            for meta in self._not_cached(kind, listed):
                undelivered[meta["uid"]] = f"{kind} {meta['namespace']}/{meta['name']}"
        repeated = [name for uid, name in undelivered.items() if uid in self._undelivered]
        self._undelivered = set(undelivered)
        return repeated[-1] if repeated else ""

    def _drop(self, kind: str, deleted: Iterable[str], queue: WorkQueue[Key]) -> None:
        for uid in deleted:
            if (dropped := self._cache.drop(kind, uid)) is not None:
                key, name = dropped
                log.warning("%s/%s: %s/%s was deleted, but no watch reported it", *key, kind, name)
                queue.add(key)

    def _not_cached(self, kind: str, listed: list[Body]) -> Iterator[Body]:
        """Return the listed objects that are not cached, except claims of earlier jobs: watches deliver them once."""
        cached = self._cache.uids(kind, "")
        for meta in listed:
            if meta["uid"] in cached:
                continue
            job = self._cache.job((meta["namespace"], meta.get("labels", {}).get(names.JOB_LABEL, "")))
            if kind == JOB or (job is not None and not is_older({"metadata": meta}, job)):
                yield meta

    def _lists(self) -> Iterator[tuple[str, str]]:
        return ((kind, namespace) for kind in self._kinds for namespace in self._namespaces)

    async def _list(self, kind: str, namespace: str) -> list[Body]:
        return await self._client.list_metadata(kind, namespace, selector="" if kind == JOB else names.SELECTOR)
