"""Keeps what the watches told true to what is there: at the start, and from then on.

A job of which only a part has been seen would be taken for one that lacks the rest: what it runs on would be deleted as
left over, and made again. kopf does not say when its first listings are complete; so the API server is asked for the
names, again until the store has been told of every one of them.

Later a watch can lose its place (410 Gone, after the API server's restart or a long partition). kopf then lists anew
what there is, but nobody tells of what went meanwhile. So the UIDs are asked for now and then: what is not among them
is gone, and what is among them twice and was never told shows that a watch is deaf.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator

from kubernetes.aio.client.exceptions import ApiException

from rstar2_operator import names
from rstar2_operator.cache import JOB, Key, WatchCache
from rstar2_operator.client import UNREACHABLE, Body, KubeClient
from rstar2_operator.metrics import Metrics
from rstar2_operator.observed import Object
from rstar2_operator.workqueue import WorkQueue

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.3
RESYNC_SECONDS = 120.0


class Resync:
    """Compares a store with the API server. `kinds`: of the children; `namespaces`: those watched, none for all."""

    def __init__(
        self, client: KubeClient, store: WatchCache, *, kinds: Iterable[str], namespaces: Iterable[str]
    ) -> None:
        self._client = client
        self._store = store
        self._kinds = (JOB, *kinds)
        self._namespaces = tuple(namespaces) or ("",)
        self._untold: set[str] = set()
        """UIDs that the last look found and no watch had told of."""

    async def complete(self) -> None:
        """Return when every job and child that exists has been told to the store."""
        known = 0
        for kind, namespace in self._everything():
            while True:
                there = await self._list(kind, namespace)
                if all(self._store.was_told(kind, one["namespace"], one["name"]) for one in there):
                    break
                await asyncio.sleep(LOOK_SECONDS)
            known += len(there)
        self._store.forget_told()
        log.info("the watches have told all that is there: %d objects", known)

    async def keep(self, queue: WorkQueue[Key], metrics: Metrics) -> None:
        """Look now and then, for ever. An API server that cannot be asked is the Lease's affair."""
        while True:
            await asyncio.sleep(RESYNC_SECONDS)
            try:
                metrics.deaf_to = await self.look(queue)
            except (ApiException, *UNREACHABLE) as error:
                log.warning("what is there could not be listed: %s", error or type(error).__name__)

    async def look(self, queue: WorkQueue[Key]) -> str:
        """Forget what is gone, and have its jobs reconciled; what two looks found and no watch told, or nothing."""
        untold: dict[str, str] = {}
        for kind, namespace in self._everything():
            before = [one for one in self._store.of_kind(kind) if namespace in ("", one["metadata"]["namespace"])]
            there = await self._list(kind, namespace)
            listed = {one["uid"] for one in there}
            # Only of what was held before: what is made while the list is on its way is not among them.
            self._forget(kind, [one for one in before if one["metadata"]["uid"] not in listed], queue)
            untold |= {one["uid"]: f"{kind} {one['namespace']}/{one['name']}" for one in self._unheard(kind, there)}
        again = [what for uid, what in untold.items() if uid in self._untold]
        self._untold = set(untold)
        return again[-1] if again else ""

    def _forget(self, kind: str, gone: list[Object], queue: WorkQueue[Key]) -> None:
        for body in gone:
            if (key := self._store.forget(kind, body)) is not None:
                log.warning("%s/%s: %s/%s is gone, which no watch told", *key, kind, body["metadata"]["name"])
                queue.add(key)

    def _unheard(self, kind: str, there: list[Body]) -> Iterator[Body]:
        """What is there and not held, but for what an earlier job has left: a claim that stays is not told again."""
        held = {one["metadata"]["uid"] for one in self._store.of_kind(kind)}
        made = [one["metadata"] for one in self._store.of_kind(JOB)]
        jobs = {(meta["namespace"], meta["name"]): meta for meta in made}
        for one in there:
            job = jobs.get((one["namespace"], one.get("labels", {}).get(names.JOB_LABEL)))
            owned = kind == JOB or (job is not None and one["creationTimestamp"] >= job["creationTimestamp"])
            if owned and one["uid"] not in held:
                yield one

    def _everything(self) -> Iterator[tuple[str, str]]:
        return ((kind, namespace) for kind in self._kinds for namespace in self._namespaces)

    async def _list(self, kind: str, namespace: str) -> list[Body]:
        return await self._client.list_metadata(kind, namespace, selector="" if kind == JOB else names.SELECTOR)
