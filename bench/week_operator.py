"""The operator in the process of the simulated week: its watches, cache, queue and reconciler; for bench/week.py."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from bench.week_clock import Delivery, WeekClient
from rstar2_operator.cache import JOB, NODE, Key, WatchCache
from rstar2_operator.informer import CHILDREN, WARNING, Informer
from rstar2_operator.metrics import Metrics
from rstar2_operator.reconcile import Reconciler
from rstar2_operator.settings import OperatorSettings
from rstar2_operator.watch_health import WatchHealth
from rstar2_operator.workqueue import WorkQueue


class WeekInformer(Informer):
    """An informer that also reports its position; of the jobs too, which kopf watches in real time."""

    delivery: Delivery

    def _record(self, body: Any, *, gone: bool) -> None:
        if self.kind == JOB:
            self._queue.add(self._cache.record_job(body, gone=gone))
        else:
            super()._record(body, gone=gone)
        self.delivery.event("operator", self.kind, body, gone=gone)

    async def _list(self) -> str:
        version = await super()._list()
        self.delivery.listed("operator", self.kind, version)
        return version


class OperatorRun:
    """One run of the operator, between two restarts."""

    def __init__(self, client: WeekClient, delivery: Delivery, metrics: Metrics) -> None:
        self.queue: WorkQueue[Key] = WorkQueue()
        cache, health = WatchCache(), WatchHealth()
        kinds = (JOB, *CHILDREN, NODE, WARNING)
        self._informers = [
            WeekInformer(kind, "", client=client, cache=cache, queue=self.queue, health=health) for kind in kinds
        ]
        for informer in self._informers:
            informer.delivery = delivery
            if informer.kind == JOB:
                informer._selectors = {}
        self._cache, self._delivery = cache, delivery
        self._reconciler = Reconciler(
            cache=cache,
            queue=self.queue,
            client=client,
            settings=OperatorSettings(),
            metrics=metrics,
            clock=lambda: time.time(),  # the function that FakeClock has set, not that of the import
        )
        self._kinds = frozenset(kinds) - {WARNING}
        self._tasks: list[asyncio.Task[Any]] = []

    async def start(self) -> None:
        """List all objects, then reconcile."""
        self._tasks = [asyncio.create_task(informer.run()) for informer in self._informers]
        await asyncio.gather(*(informer.synced.wait() for informer in self._informers))
        self._delivery.start("operator", self._kinds)
        self._cache.end_initial_sync()
        for key in self._cache.jobs():
            self.queue.add(key)
        self._tasks += [asyncio.create_task(self._reconciler.work()) for _ in range(4)]

    async def stop(self) -> None:
        """Stop in the middle of the work, as a killed process."""
        self._delivery.stop("operator")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
