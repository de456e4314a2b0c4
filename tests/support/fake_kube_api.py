"""The API server in memory with the operator's watches and queue, and an operator on it, for unit tests.

It updates the watch cache and the queue as the watches would, or later, when the test delivers the events.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from rstar2_operator.cache import JOB, WatchCache
from rstar2_operator.metrics import Metrics
from rstar2_operator.names import FIELD_MANAGER
from rstar2_operator.observed import timestamp
from rstar2_operator.reconcile import Reconciler
from rstar2_operator.settings import OperatorSettings
from rstar2_operator.workqueue import WorkQueue
from tests.support.memory_api import NAMESPACE, Body, MemoryApi, api_error, copied

__all__ = ["FakeKubeApi", "Operator", "api_error"]


class FakeKubeApi(MemoryApi):
    """The API server, with the watch cache and the queue of one operator."""

    def __init__(self) -> None:
        super().__init__()
        self.store = WatchCache()
        self.store.end_initial_sync()
        self.queue: WorkQueue[tuple[str, str]] = WorkQueue()
        self.requests: list[tuple[str, str, str]] = []
        """(verb, kind, name) of every request that is not a read."""
        self.events: list[Body] = []
        self.late_kinds: set[str] = set()
        """Kinds whose watch events are held back until `deliver`."""
        self._late: list[tuple[Body, bool]] = []

    def changed(self, body: Body, *, is_new: bool) -> None:
        """Deliver the event, or hold it back."""
        self._notify(copied(body), gone=False)

    def deleted(self, body: Body) -> None:
        """Deliver the event, or hold it back."""
        self._notify(copied(body), gone=True)

    def _notify(self, body: Body, *, gone: bool) -> None:
        if body["kind"] in self.late_kinds:
            self._late.append((body, gone))
        elif body["kind"] == JOB:
            self.queue.add(self.store.record_job(body, gone=gone))
        elif body["kind"] != "Secret":
            key = self.store.record_child(body["kind"], body, gone=gone)
            if key is not None:
                self.queue.add(key)

    def restore(self, body: Body) -> None:
        """Store an object as it was in another API server."""
        table, entry = self._place(body["kind"], body["metadata"]["name"])
        table[entry] = body
        self.changed(body, is_new=True)

    @property
    def has_late_events(self) -> bool:
        """Whether watch events are held back."""
        return bool(self._late)

    def deliver(self) -> None:
        """Deliver the watch events that were held back, in order."""
        events, self._late, kinds, self.late_kinds = self._late, [], self.late_kinds, set()
        for body, gone in events:
            self._notify(body, gone=gone)
        self.late_kinds = kinds

    async def apply(
        self, body: Body, *, subresource: str = "", manager: str = FIELD_MANAGER, force: bool = True
    ) -> Body:
        """Record the request."""
        self.requests.append(("status" if subresource else "apply", body["kind"], body["metadata"]["name"]))
        return await super().apply(body, subresource=subresource, manager=manager, force=force)

    async def patch(self, kind: str, namespace: str, name: str, operations: list[Body]) -> Body:
        """Record the request."""
        self.requests.append(("patch", kind, name))
        return await super().patch(kind, namespace, name, operations)

    async def create(self, body: Body, *, dry_run: bool = False) -> Body:
        """Record the request, or the Event."""
        if body["kind"] == "Event":
            self.events.append(body)
        else:
            self.requests.append(("dry-run" if dry_run else "create", body["kind"], body["metadata"]["name"]))
        return await super().create(body, dry_run=dry_run)

    async def delete(self, kind: str, namespace: str, name: str, *, uid: str, force: bool = False) -> Body:
        """Record the request."""
        self.requests.append(("delete", kind, name))
        return await super().delete(kind, namespace, name, uid=uid, force=force)


class Operator:
    """A Reconciler on a FakeKubeApi, which runs when the test asks for it."""

    def __init__(self, job: Body) -> None:
        self.api = FakeKubeApi()
        self.name = job["metadata"]["name"]
        self.api.put(job)
        self.restart()

    def copy(self) -> Operator:
        """Return a new operator on a copy of the API server."""
        other = Operator(copied(self.api.objects[JOB, self.name]))
        other.api.version = self.api.version
        for body in self.api.objects.values():
            other.api.restore(copied(body))
        return other

    def restart(self, settings: OperatorSettings | None = None) -> None:
        """Replace the Reconciler by a new one without state, as a restart of the process does, or an upgrade."""
        self._metrics = Metrics()
        self._reconciler = Reconciler(
            cache=self.api.store,
            queue=self.api.queue,
            client=self.api,  # type: ignore[arg-type]
            settings=settings or OperatorSettings(),
            metrics=self._metrics,
            clock=lambda: time.time(),  # the clock of the test, which may replace it
        )
        self.api.queue.add((NAMESPACE, self.name))

    @property
    def rounds(self) -> float:
        """The number of rounds since the last restart."""
        return self._metrics.registry.get_sample_value("rstar2_operator_reconcile_seconds_count") or 0.0

    async def run(self, seconds: float = 0.3) -> None:
        """Reconcile until no job waits, and then for a number of seconds, in which timers of the queue fire."""
        work = asyncio.create_task(self._reconciler.work())
        for pause in (0.0, seconds, 0.0):
            await asyncio.sleep(pause)
            while self.api.queue.busy and not work.done():
                await asyncio.sleep(0.001)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    async def until(self, reached: Callable[[], bool], seconds: float = 120.0) -> None:
        """Reconcile until `reached` is true."""
        deadline = time.monotonic() + seconds
        while not reached():
            assert time.monotonic() < deadline, self.status
            await self.run()

    async def finish_preparation(self) -> None:
        """Finish the preparation of the storage successfully."""
        await self.run()
        condition = {"type": "Complete", "status": "True", "lastTransitionTime": timestamp(time.time())}
        self.api.edit("Job", f"{self.name}-prepare", status={"conditions": [condition]})
        await self.run()

    async def start_stage(self, stage: str) -> None:
        """Finish the preparation; the first stage, `stage`, starts."""
        await self.finish_preparation()
        assert ("Job", f"{self.name}-{stage}-1") in self.api.objects

    def run_orchestrator(self, stage: str) -> None:
        """Let the pod "orchestrator" of the first attempt of a stage run, as the kubelet does."""
        job = self.api.objects["Job", f"{self.name}-{stage}-1"]
        owner = {"kind": "Job", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"], "controller": True}
        labels = job["spec"]["template"]["metadata"]["labels"]
        meta = {"name": "orchestrator", "labels": labels, "ownerReferences": [owner]}
        self.api.put({"kind": "Pod", "metadata": meta, "status": {"phase": "Running"}})

    def delete(self, *finalizers: str) -> None:
        """Delete the job as a user would; `finalizers`: those that the API server adds for the kind of deletion."""
        meta = self.api.objects["AgenticRLJob", self.name]["metadata"]
        if held := [*meta.get("finalizers", ()), *finalizers]:
            deleted = {"deletionTimestamp": timestamp(time.time()), "finalizers": held}
            self.api.edit("AgenticRLJob", self.name, metadata={**meta, **deleted})
        else:
            self.api.drop("AgenticRLJob", self.name)

    def change(self, **spec: Any) -> None:
        """Change the spec of the job as a user would."""
        old = self.api.objects["AgenticRLJob", self.name]
        self.api.edit("AgenticRLJob", self.name, spec={**old["spec"], **spec})

    @property
    def status(self) -> Body:
        """The status of the job."""
        status: Body = self.api.objects["AgenticRLJob", self.name].get("status", {})
        return status

    def condition(self, kind: str) -> Body:
        """Return a condition of the job."""
        return next(condition for condition in self.status["conditions"] if condition["type"] == kind)

    def names(self, kind: str) -> list[str]:
        """Return the names of the objects of a kind."""
        return sorted(name for object_kind, name in self.api.objects if object_kind == kind)
