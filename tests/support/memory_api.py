"""An API server in memory, for unit tests: the objects of one namespace, and the requests of client.py on them.

It has the API server's rules that the operator relies on: server-side apply keeps the fields of others, a status is a
subresource, finalizers delay a deletion, a deletion names its UID, a creation fails if the object exists. It rejects
kinds, and ends the operator before a write, on request. A subclass receives every change:

    fake_kube_api: watches and queue ──┐
    simulated_cluster: controllers,    ├─▶ memory_api ◀── Reconciler (as its client)
      kubelets, orchestrator ──────────┘
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from kubernetes.aio.client.exceptions import ApiException
from pydantic_core import from_json, to_json

from rstar2_operator.cache import JOB
from rstar2_operator.decide.workload_status import MANAGER
from rstar2_operator.names import FIELD_MANAGER, FINALIZER
from rstar2_operator.observed import timestamp

Body = dict[str, Any]
NAMESPACE = "lab"
GVISOR = "RuntimeClass", "gvisor"
"""An object that the cluster has."""


class Killed(BaseException):
    """The operator's process ends, as by SIGKILL: no handler of the operator catches it."""


def api_error(status: int, reason: str, message: str) -> ApiException:
    """Return an error in the form of the API server."""
    error = ApiException(status=status, reason=reason)
    error.body = json.dumps({"kind": "Status", "reason": reason, "message": message})
    return error


def copied(body: Body) -> Body:
    """Return a deep copy."""
    copy: Body = from_json(to_json(body))
    return copy


class MemoryApi:
    """Objects of one namespace. It replaces client.KubeClient."""

    def __init__(self) -> None:
        self.jobs: dict[str, Body] = {}
        """AgenticRLJobs by name."""
        self.pods: dict[str, Body] = {}
        self.children: dict[tuple[str, str], Body] = {}
        """All other objects by kind and name."""
        self.rejected_kinds: dict[str, Exception] = {}
        """Kind -> error of each write to it."""
        self.denies_updates = False
        """Whether an admission policy rejects every update of an existing object, but no status."""
        self.writes = 0
        """Number of requests that have changed an object."""
        self.forced: list[str] = []
        """Pods that were deleted without a grace period."""
        self.writes_left: int | None = None
        """Writes after which the operator is killed; None: it is not."""
        self.version = 0
        self._own_conditions: dict[str, set[str]] = {}
        """Name of a Workload -> types of the conditions that the operator has applied."""

    @property
    def objects(self) -> dict[tuple[str, str], Body]:
        """All objects by kind and name."""
        jobs = {(JOB, name): body for name, body in self.jobs.items()}
        return jobs | {("Pod", name): body for name, body in self.pods.items()} | self.children

    def _place(self, kind: str, name: str) -> tuple[dict[Any, Body], Any]:
        if kind == JOB:
            return self.jobs, name
        return (self.pods, name) if kind == "Pod" else (self.children, (kind, name))

    def _find(self, kind: str, name: str) -> Body | None:
        table, entry = self._place(kind, name)
        return table.get(entry)

    def clock(self) -> float:
        """Return the time of new timestamps."""
        return time.time()

    # -- other clients -----------------------------------------------------------------------------------------------

    def put(self, body: Body) -> Body:
        """Write an object as another client would."""
        body = copied(body)
        kind, meta = body["kind"], body["metadata"]
        table, entry = self._place(kind, meta["name"])
        is_new = entry not in table
        self.version += 1
        meta |= {"namespace": NAMESPACE, "resourceVersion": str(self.version)}
        meta.setdefault("uid", f"uid-{self.version}")
        meta.setdefault("creationTimestamp", timestamp(self.clock()))
        table[entry] = body
        self.changed(body, is_new=is_new)
        return copied(body)

    def edit(self, kind: str, name: str, **fields: Any) -> None:
        """Change top-level fields of an object as another client would."""
        old = self._find(kind, name)
        assert old is not None
        if "spec" in fields and "generation" in old["metadata"]:
            fields["metadata"] = {**old["metadata"], "generation": old["metadata"]["generation"] + 1}
        self.put({**old, **fields})

    def drop(self, kind: str, name: str) -> Body:
        """Remove an object, as the API server does after its last finalizer."""
        table, entry = self._place(kind, name)
        body = table.pop(entry)
        self.deleted(body)
        return body

    def changed(self, body: Body, *, is_new: bool) -> None:
        """Act on a written object, as watches and controllers do."""

    def deleted(self, body: Body) -> None:
        """Act on a deleted object."""

    # -- client.KubeClient -------------------------------------------------------------------------------------------

    def _write(self, kind: str) -> None:
        """Count a write, reject it, or kill the operator before it."""
        if self.writes_left == 0:
            raise Killed
        if kind in self.rejected_kinds:
            raise self.rejected_kinds[kind].with_traceback(None)
        if self.writes_left is not None:
            self.writes_left -= 1
        self.writes += 1

    async def apply(
        self, body: Body, *, subresource: str = "", manager: str = FIELD_MANAGER, force: bool = True
    ) -> Body:
        """Apply on the server: fields of others stay, and without `force` every object of others."""
        kind, meta = body["kind"], body["metadata"]
        old = self._find(kind, meta["name"])
        if subresource:
            self._write(f"{kind}/{subresource}")
            if old is None or old["metadata"]["uid"] != meta.get("uid", old["metadata"]["uid"]):
                raise api_error(409, "Conflict", meta["name"])
            status = self._quota(old, body["status"], manager) if kind == "Workload" else body["status"]
            return self.put({**old, "status": status})
        if old is not None and self.denies_updates:
            raise api_error(403, "Forbidden", f"a policy denies the update of {kind} {meta['name']}")
        self._write(kind)
        if "uid" in meta and old is None:
            raise api_error(409, "Conflict", "uid mismatch: no existing object was found")
        if old is not None and meta.get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
            raise api_error(422, "Invalid", 'metadata.uid: Invalid value: "a": field is immutable')
        if old is not None and not force:
            raise api_error(409, "Conflict", "Apply failed with 1 conflict")
        old = old or {}
        merged = {**old.get("metadata", {}), **meta}
        if "finalizers" in meta:  # those of others stay
            others = [each for each in old["metadata"].get("finalizers", ()) if each != FINALIZER]
            merged["finalizers"] = others + meta["finalizers"]
        applied = self.put({**old, **body, "metadata": merged})
        if "deletionTimestamp" in merged and not merged.get("finalizers"):
            self.drop(kind, meta["name"])
        return applied

    def _quota(self, old: Body, status: Body, manager: str) -> Body:
        """Return the status of a Workload, in which each condition has an owner."""
        own = self._own_conditions.setdefault(old["metadata"]["name"], set())
        types, before = {each["type"] for each in status["conditions"]}, old.get("status", {})
        if manager == MANAGER:
            return {**status, "conditions": [*status["conditions"], *_conditions(before, lambda kind: kind in own)]}
        own |= types
        return {
            **before,
            "conditions": [*_conditions(before, lambda kind: kind not in types), *status["conditions"]],
        }

    async def patch(self, kind: str, namespace: str, name: str, operations: list[Body]) -> Body:
        """Apply the operations of a JSON Patch that the operator uses: test, add and replace of members."""
        body = await self.read(kind, namespace, name)
        self._write(kind)
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
        """Return one object, None if it does not exist; Secrets are unreadable."""
        assert kind != "Secret"
        if (kind, name) == GVISOR:
            return {"kind": kind, "metadata": {"name": name}, "handler": "runsc"}
        body = self._find(kind, name)
        return None if body is None else copied(body)

    async def read(self, kind: str, namespace: str, name: str) -> Body:
        """Return one object."""
        body = await self.find(kind, namespace, name)
        if body is None:
            raise api_error(404, "NotFound", name)
        return body

    async def create(self, body: Body, *, dry_run: bool = False) -> Body:
        """Create; with `dry_run` only validate."""
        kind, name = body["kind"], body["metadata"]["name"]
        if kind == "Event":
            return body
        if kind in self.rejected_kinds:
            raise self.rejected_kinds[kind].with_traceback(None)
        if self._find(kind, name) is not None:
            raise api_error(409, "AlreadyExists", f"{name} already exists")
        if dry_run:
            return body
        self._write(kind)
        return self.put(body)

    async def delete(self, kind: str, namespace: str, name: str, *, uid: str, force: bool = False) -> Body:
        """Delete the object with that UID; it remains as long as it has finalizers."""
        body = self._find(kind, name)
        if body is None or body["metadata"].get("uid") != uid:
            raise api_error(404, "NotFound", name)
        self._write(f"{kind}/delete")
        self.forced += [name] * force
        if body["metadata"].get("finalizers"):
            return self.put({**body, "metadata": {**body["metadata"], "deletionTimestamp": timestamp(self.clock())}})
        self.drop(kind, name)
        return {"kind": "Status"}

    async def list_metadata(self, kind: str, namespace: str, *, selector: str) -> list[Body]:
        """Return the metadata of all objects of a kind."""
        return [body["metadata"] for (object_kind, _), body in self.objects.items() if object_kind == kind]


def _conditions(status: Body, kept: Callable[[str], bool]) -> list[Body]:
    return [each for each in status.get("conditions", ()) if kept(each["type"])]


__all__ = ["NAMESPACE", "Body", "Killed", "MemoryApi", "api_error", "copied"]
