"""An API server in memory, for what a real one cannot be made to answer in a unit test: refusals and lost objects.

It takes what client.py sends (server-side apply of whole objects, one controller each), and tells the store and the
queue as the watches would.
"""

from __future__ import annotations

import asyncio
import copy
import json
import time
from collections.abc import Callable
from typing import Any

from kubernetes.aio.client.exceptions import ApiException

from rstar2_operator.cache import WatchCache
from rstar2_operator.metrics import Metrics
from rstar2_operator.observed import timestamp
from rstar2_operator.reconcile import Reconciler
from rstar2_operator.settings import OperatorSettings
from rstar2_operator.workqueue import WorkQueue

Body = dict[str, Any]
NAMESPACE = "lab"


def answer(status: int, reason: str, message: str) -> ApiException:
    """An error as the API server sends it."""
    error = ApiException(status=status, reason=reason)
    error.body = json.dumps({"kind": "Status", "reason": reason, "message": message})
    return error


class Api:
    """Objects by (kind, name), in one namespace; stands in for client.Client."""

    def __init__(self) -> None:
        self.store = WatchCache()
        self.queue: WorkQueue[tuple[str, str]] = WorkQueue()
        self.objects: dict[tuple[str, str], Body] = {}
        self.refuses: dict[str, ApiException] = {}
        """Kind -> what each write of it is answered."""
        self.written: list[tuple[str, str, str]] = []
        """(verb, kind, name) of every request that is not a read."""
        self.events: list[Body] = []
        self._count = 0

    def put(self, body: Body) -> Body:
        """Somebody else writes an object."""
        body = copy.deepcopy(body)
        self._count += 1
        meta = body["metadata"]
        meta |= {"namespace": NAMESPACE, "resourceVersion": str(self._count)}
        meta.setdefault("uid", f"uid-{self._count}")
        meta.setdefault("creationTimestamp", timestamp(time.time()))
        self.objects[body["kind"], meta["name"]] = body
        self._tell(body)
        return copy.deepcopy(body)

    def edit(self, kind: str, name: str, **fields: Any) -> None:
        """Somebody else changes top-level fields of an object."""
        self.put({**self.objects[kind, name], **fields})

    def lose(self, kind: str, name: str) -> Body:
        """Somebody else deletes an object."""
        body = self.objects.pop((kind, name))
        self._tell(body, gone=True)
        return body

    def _tell(self, body: Body, *, gone: bool = False) -> None:
        body = copy.deepcopy(body)
        if body["kind"] == "AgenticRLJob":
            self.queue.add(self.store.saw_job(body, gone=gone))
        elif body["kind"] != "Secret":
            key = self.store.saw_child(body["kind"], body, gone=gone)
            if key is not None:
                self.queue.add(key)

    # -- client.Client ----------------------------------------------------------------------------------------------

    async def apply(self, body: Body, *, subresource: str = "") -> Body:
        """As Client.apply."""
        kind, name = body["kind"], body["metadata"]["name"]
        self.written.append(("status" if subresource else "apply", kind, name))
        old = self.objects.get((kind, name), {})
        if subresource:
            return self.put({**old, "status": body["status"]})
        if kind in self.refuses:
            raise self.refuses[kind]
        meta = {**old.get("metadata", {}), **body["metadata"]}
        return self.put({**old, **body, "metadata": meta})

    async def find(self, kind: str, namespace: str, name: str) -> Body | None:
        """As Client.find; Secrets cannot be read."""
        assert kind != "Secret"
        return copy.deepcopy(self.objects.get((kind, name)))

    async def create(self, body: Body, *, dry_run: bool = False) -> Body:
        """As Client.create."""
        kind, name = body["kind"], body["metadata"]["name"]
        if kind == "Event":
            self.events.append(body)
            return body
        self.written.append(("dry-run" if dry_run else "create", kind, name))
        if kind in self.refuses:
            raise self.refuses[kind]
        if (kind, name) in self.objects:
            raise answer(409, "AlreadyExists", f"{name} already exists")
        return body if dry_run else self.put(body)

    async def delete(self, kind: str, namespace: str, name: str, *, uid: str) -> None:
        """As Client.delete."""
        self.written.append(("delete", kind, name))
        if self.objects.get((kind, name), {}).get("metadata", {}).get("uid") != uid:
            raise answer(404, "NotFound", name)
        self.lose(kind, name)


class Operator:
    """A Reconciler on an Api, round by round."""

    def __init__(self, job: Body) -> None:
        self.api = Api()
        self.name = job["metadata"]["name"]
        self.api.put(job)
        self.restart()

    def restart(self) -> None:
        """Another process, which remembers nothing."""
        self._reconciler = Reconciler(
            store=self.api.store,
            queue=self.api.queue,
            client=self.api,  # type: ignore[arg-type]
            settings=OperatorSettings(),
            metrics=Metrics(),
        )
        self.api.queue.add((NAMESPACE, self.name))

    async def run(self, seconds: float = 0.3) -> None:
        """Reconcile for a while."""
        work = asyncio.create_task(self._reconciler.work())
        await asyncio.sleep(seconds)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    async def until(self, reached: Callable[[], bool], seconds: float = 10.0) -> None:
        """Reconcile until it is so."""
        deadline = time.monotonic() + seconds
        while not reached():
            assert time.monotonic() < deadline, self.status
            await self.run()

    async def prepared(self) -> None:
        """The storage is prepared."""
        await self.run()
        ended = {"type": "Complete", "status": "True", "lastTransitionTime": timestamp(time.time())}
        self.api.edit("Job", f"{self.name}-prepare", status={"conditions": [ended]})
        await self.run()

    async def at_stage(self, stage: str) -> None:
        """The storage is prepared, and the first stage runs."""
        await self.prepared()
        assert ("Job", f"{self.name}-{stage}-1") in self.api.objects

    def change(self, **spec: Any) -> None:
        """The user edits the job."""
        old = self.api.objects["AgenticRLJob", self.name]
        self.api.edit("AgenticRLJob", self.name, spec={**old["spec"], **spec})

    @property
    def status(self) -> Body:
        """The job's status."""
        status: Body = self.api.objects["AgenticRLJob", self.name].get("status", {})
        return status

    def condition(self, kind: str) -> Body:
        """A condition of the job."""
        return next(one for one in self.status["conditions"] if one["type"] == kind)

    def have(self, kind: str) -> list[str]:
        """Names of the objects of a kind."""
        return sorted(name for one, name in self.api.objects if one == kind)
