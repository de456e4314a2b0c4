"""An API server in memory for unit tests: it rejects writes and loses objects on request.

It accepts the requests of client.py (server-side apply of whole objects, one controller each) and updates the watch
cache and the queue as the watches would.
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
from rstar2_operator.names import FINALIZER
from rstar2_operator.observed import timestamp
from rstar2_operator.reconcile import Reconciler
from rstar2_operator.settings import OperatorSettings
from rstar2_operator.workqueue import WorkQueue

Body = dict[str, Any]
NAMESPACE = "lab"


def api_error(status: int, reason: str, message: str) -> ApiException:
    """Return an error in the form of the API server."""
    error = ApiException(status=status, reason=reason)
    error.body = json.dumps({"kind": "Status", "reason": reason, "message": message})
    return error


class FakeKubeApi:
    """Objects by (kind, name) in one namespace. It replaces client.Client."""

    def __init__(self) -> None:
        self.store = WatchCache()
        self.store.end_initial_sync()
        self.queue: WorkQueue[tuple[str, str]] = WorkQueue()
        self.objects: dict[tuple[str, str], Body] = {}
        self.rejected_kinds: dict[str, Exception] = {}
        """Kind -> error of each write to it."""
        self.requests: list[tuple[str, str, str]] = []
        """(verb, kind, name) of every request that is not a read."""
        self.events: list[Body] = []
        self.late_kinds: set[str] = set()
        """Kinds whose watch events are held back until `deliver`."""
        self._late: list[tuple[Body, bool]] = []
        self._count = 0

    def put(self, body: Body) -> Body:
        """Write an object as another client would."""
        body = copy.deepcopy(body)
        self._count += 1
        meta = body["metadata"]
        meta |= {"namespace": NAMESPACE, "resourceVersion": str(self._count)}
        meta.setdefault("uid", f"uid-{self._count}")
        meta.setdefault("creationTimestamp", timestamp(time.time()))
        self.objects[body["kind"], meta["name"]] = body
        self._notify(body)
        return copy.deepcopy(body)

    def edit(self, kind: str, name: str, **fields: Any) -> None:
        """Change top-level fields of an object as another client would."""
        old = self.objects[kind, name]
        if "spec" in fields and "generation" in old["metadata"]:
            fields["metadata"] = {**old["metadata"], "generation": old["metadata"]["generation"] + 1}
        self.put({**old, **fields})

    def drop(self, kind: str, name: str) -> Body:
        """Delete an object as another client would."""
        body = self.objects.pop((kind, name))
        self._notify(body, gone=True)
        return body

    def _notify(self, body: Body, *, gone: bool = False) -> None:
        body = copy.deepcopy(body)
        if body["kind"] in self.late_kinds:
            self._late.append((body, gone))
        elif body["kind"] == "AgenticRLJob":
            self.queue.add(self.store.record_job(body, gone=gone))
        elif body["kind"] != "Secret":
            key = self.store.record_child(body["kind"], body, gone=gone)
            if key is not None:
                self.queue.add(key)

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

    # -- client.Client ----------------------------------------------------------------------------------------------

    async def apply(self, body: Body, *, subresource: str = "") -> Body:
        """Replace Client.apply."""
        kind, name = body["kind"], body["metadata"]["name"]
        self.requests.append(("status" if subresource else "apply", kind, name))
        old = self.objects.get((kind, name), {})
        if subresource:
            return self.put({**old, "status": body["status"]})
        if kind in self.rejected_kinds:
            raise self.rejected_kinds[kind]
        meta = {**old.get("metadata", {}), **body["metadata"]}
        if "finalizers" in body["metadata"]:  # those of others stay
            others = [each for each in old["metadata"].get("finalizers", ()) if each != FINALIZER]
            meta["finalizers"] = others + body["metadata"]["finalizers"]
        applied = self.put({**old, **body, "metadata": meta})
        if "deletionTimestamp" in meta and not meta.get("finalizers"):
            self.drop(kind, name)
        return applied

    async def patch(self, kind: str, namespace: str, name: str, operations: list[Body]) -> Body:
        """Replace Client.patch, with the operations of a JSON Patch that the operator uses."""
        self.requests.append(("patch", kind, name))
        body = copy.deepcopy(self.objects[kind, name])
        for operation in operations:
            *folders, last = operation["path"].strip("/").split("/")
            node = body
            for folder in folders:
                node = node[folder]
            if operation["op"] == "test" and node[last] != operation["value"]:
                raise api_error(422, "Invalid", operation["path"])
            node[last] = operation["value"]
        return self.put(body)

    async def find(self, kind: str, namespace: str, name: str) -> Body | None:
        """Replace Client.find; Secrets are unreadable."""
        assert kind != "Secret"
        return copy.deepcopy(self.objects.get((kind, name)))

    async def create(self, body: Body, *, dry_run: bool = False) -> Body:
        """Replace Client.create."""
        kind, name = body["kind"], body["metadata"]["name"]
        if kind == "Event":
            self.events.append(body)
            return body
        self.requests.append(("dry-run" if dry_run else "create", kind, name))
        if kind in self.rejected_kinds:
            raise self.rejected_kinds[kind]
        if (kind, name) in self.objects:
            raise api_error(409, "AlreadyExists", f"{name} already exists")
        return body if dry_run else self.put(body)

    async def delete(self, kind: str, namespace: str, name: str, *, uid: str, force: bool = False) -> Body:
        """Replace Client.delete."""
        self.requests.append(("delete", kind, name))
        if self.objects.get((kind, name), {}).get("metadata", {}).get("uid") != uid:
            raise api_error(404, "NotFound", name)
        meta = self.objects[kind, name]["metadata"]
        if meta.get("finalizers"):
            self.edit(kind, name, metadata={**meta, "deletionTimestamp": timestamp(time.time())})
            return copy.deepcopy(self.objects[kind, name])
        self.drop(kind, name)
        return {"kind": "Status"}

    async def list_metadata(self, kind: str, namespace: str, *, selector: str) -> list[Body]:
        """Replace Client.list_metadata."""
        return [body["metadata"] for (object_kind, _), body in self.objects.items() if object_kind == kind]


class Operator:
    """A Reconciler on a FakeKubeApi, which runs when the test asks for it."""

    def __init__(self, job: Body) -> None:
        self.api = FakeKubeApi()
        self.name = job["metadata"]["name"]
        self.api.put(job)
        self.restart()

    def restart(self, settings: OperatorSettings | None = None) -> None:
        """Replace the Reconciler by a new one without state, as a restart of the process does, or an upgrade."""
        self._reconciler = Reconciler(
            cache=self.api.store,
            queue=self.api.queue,
            client=self.api,  # type: ignore[arg-type]
            settings=settings or OperatorSettings(),
            metrics=Metrics(),
        )
        self.api.queue.add((NAMESPACE, self.name))

    async def run(self, seconds: float = 0.3) -> None:
        """Reconcile until no job waits, and then for a number of seconds, in which timers of the queue fire."""
        work = asyncio.create_task(self._reconciler.work())
        for pause in (0.0, seconds, 0.0):
            await asyncio.sleep(pause)
            while self.api.queue.busy and not work.done():
                await asyncio.sleep(0)
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
        labels = self.api.objects["Job", f"{self.name}-{stage}-1"]["spec"]["template"]["metadata"]["labels"]
        self.api.put(
            {"kind": "Pod", "metadata": {"name": "orchestrator", "labels": labels}, "status": {"phase": "Running"}}
        )

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
