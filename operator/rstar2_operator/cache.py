"""The watch cache: every job and its children as last delivered or written, grouped by job. In memory only.

watch.py and informer.py write events into it, reconcile.py the responses to its own writes; reconcile.py reads an
`ObservedJob` from it. A child's label names its job, so that reading needs no request. The cache keeps compact JSON
(cached_object.py), not whole objects.

The cache is never older than the operator's own writes: of two versions of an object it keeps the one with the higher
resourceVersion, whichever arrives last. A UID that was deleted does not return. A snapshot has the objects of one job
UID: objects of a deleted job of the same name are not part of it, but the pods are, because they may still run.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rstar2_operator import names
from rstar2_operator.cached_object import CachedObject, bodies, strip_event, to_cached, uid_of, version_of
from rstar2_operator.node_health import FaultIndicator, NodeFault, node_fault, unreported_since
from rstar2_operator.observed import (
    Object,
    ObservedJob,
    belongs,
    condition,
    controller_of,
    deletion_requested_at,
    is_alive,
    is_true,
    labels,
    seconds,
)

Key = tuple[str, str]
"""(namespace, name) of a job."""
JOB = "AgenticRLJob"
NODE = "Node"
WORKLOADS = frozenset({"Deployment", "StatefulSet", "Job"})
"""Kinds that create pods."""
KEPT_WARNINGS = 64
"""Warning events kept per job."""
KEPT_DELETIONS = 4096
"""UIDs of deleted objects that are kept, to ignore responses and events that arrive later."""


@dataclass(frozen=True, slots=True)
class _Node:
    uid: str
    fault: NodeFault | None
    lost_since: float | None
    """Time since which it is not ready; None while it is."""


class WatchCache:
    """Jobs and their children as last delivered or written."""

    def __init__(self, indicators: Sequence[FaultIndicator] = ()) -> None:
        """`indicators`: additional ones of faulty nodes."""
        self._indicators = tuple(indicators)
        self._jobs: dict[Key, CachedObject] = {}
        self._children: defaultdict[Key, dict[tuple[str, str], CachedObject]] = defaultdict(dict)
        self._pods: defaultdict[Key, dict[str, CachedObject]] = defaultdict(dict)
        self._warnings: defaultdict[Key, deque[Object]] = defaultdict(lambda: deque(maxlen=KEPT_WARNINGS))
        self._disrupted: defaultdict[Key, set[str]] = defaultdict(set)
        self._deletions: defaultdict[Key, dict[str, float]] = defaultdict(dict)
        self._nodes: dict[str, _Node] = {}
        """Faulty nodes, and those that are not ready, by name."""
        self._sees_nodes = False
        """Whether a node was ever delivered."""
        self._keys: dict[Key, Key] = {}
        """One tuple per job, which all its objects share: 37 tuples and 74 strings take 6 KB."""
        self._owners: dict[str, Key] = {}
        """UID of a cached object -> its job."""
        self._tombstones: dict[str, float] = {}
        """UID of a deleted object -> last resourceVersion that is ignored; oldest deletion first."""
        self._complete: set[str] = set()
        """Namespaces whose objects are all in the cache; empty name: all namespaces."""
        self._delivered: set[Key] = set()
        """Every delivered job of other namespaces, deleted ones included."""
        self._snapshot: tuple[Key, ObservedJob] | None = None
        """The last result of `observed`; None after a change of the job. A round without writes reads it twice."""

    def jobs(self) -> list[Key]:
        """Return the keys of all jobs."""
        return list(self._jobs)

    def record_job(self, body: Object, *, gone: bool) -> Key:
        """Record a job, or its deletion. Return its key."""
        key = self._changed(self._key(body, body["metadata"]["name"]))
        if not self.is_complete(key[0]):
            self._delivered.add(key)
        replaced = self._jobs.get(key)
        stored = self._store(self._jobs, key, JOB, body, key, gone=gone)
        if stored and (gone or (replaced is not None and replaced.uid != uid_of(body))):
            self._warnings.pop(key, None)
            self._disrupted.pop(key, None)
            self._deletions.pop(key, None)
        self._drop_empty(key)
        return key

    def record_child(self, kind: str, body: Object, *, gone: bool) -> Key | None:
        """Record a child, or its deletion. Return the key of its job, None if no job sees a change.

        A newer version with the same kept fields is no change: kubelets write much that no policy reads.
        """
        owner = labels(body).get(names.JOB_LABEL)
        if owner is None:
            return None
        key, name = self._changed(self._key(body, owner)), body["metadata"]["name"]
        table: dict[Any, CachedObject] = self._pods[key] if kind == "Pod" else self._children[key]
        entry = name if kind == "Pod" else (kind, name)
        before = table.get(entry)
        self._store(table, entry, kind, body, key, gone=gone)
        after = table.get(entry)
        if kind == "Pod" and key in self._jobs:
            self._record_disruption(key, body)
        self._drop_empty(key)
        return None if before is not None and after is not None and after.only_newer(before) else key

    def _record_disruption(self, key: Key, pod: Object) -> None:
        """Record the deletion or disruption of a pod, or that Kubernetes has withdrawn the disruption."""
        job, disruption = labels(pod).get(names.BATCH_JOB_LABEL, ""), condition(pod, "DisruptionTarget")
        if (deleted_at := deletion_requested_at(pod)) is not None:
            deletions = self._deletions[key]
            deletions[job] = min(deleted_at, deletions.get(job, deleted_at))
        if disruption is None:
            return
        if disruption["status"] == "True":
            self._disrupted[key].add(job)
        elif not any(is_true(other, "DisruptionTarget") for other in self._pods_of(key, job)):
            self._disrupted[key].discard(job)

    def _pods_of(self, key: Key, job: str) -> list[Object]:
        pods = bodies(self._pods.get(key, {}).values())
        return [pod for pod in pods if labels(pod).get(names.BATCH_JOB_LABEL, "") == job]

    def _store(
        self, table: dict[Any, CachedObject], entry: Any, kind: str, body: Object, key: Key, *, gone: bool
    ) -> bool:
        """Write an object to a table, or remove it; False if the table has a newer one or the object is deleted."""
        uid, version, cached = uid_of(body), version_of(body), table.get(entry)
        if gone:
            self._mark_deleted(uid, version)
            if cached is None or cached.uid != uid:
                return False
            del table[entry]
            return True
        # An object can come back: one whose label was removed and restored is deleted and added for its watch.
        if version <= self._tombstones.get(uid, -1) or (cached is not None and version < cached.version):
            return False
        if cached is not None and cached.uid != uid:
            self._mark_deleted(cached.uid, version)
        table[entry] = to_cached(kind, body)
        self._owners[uid] = key
        return True

    def _mark_deleted(self, uid: str, version: float) -> None:
        self._owners.pop(uid, None)
        self._tombstones[uid] = max(version, self._tombstones.pop(uid, -1))
        if len(self._tombstones) > KEPT_DELETIONS:
            del self._tombstones[next(iter(self._tombstones))]

    def record_write(self, kind: str, body: Object) -> None:
        """Record the API server's response to an own write, before its watch event."""
        if kind != JOB:
            self.record_child(kind, body, gone=False)
            return
        cached = self._jobs.get((body["metadata"]["namespace"], body["metadata"]["name"]))
        if cached is not None and cached.uid == uid_of(body):
            self.record_job(body, gone=False)

    def record_deletion(self, kind: str, body: Object) -> None:
        """Record an own deletion that the API server has carried out; no later event of the object is a newer one."""
        if kind == JOB:
            self.record_job(body, gone=True)
        else:
            self.record_child(kind, body, gone=True)
        self._mark_deleted(uid_of(body), math.inf)

    def record_warning(self, event: Object) -> list[Key]:
        """Record a Warning event. Return the keys of the jobs that it may be about."""
        about = event["involvedObject"]
        owner = self._owners.get(str(about.get("uid")))
        # An event may be delivered before its object. Then every job with a matching name gets it, and `diagnoses`
        # compares kind, name and UID.
        keys = [owner] if owner is not None else self._candidates(about.get("namespace", ""), str(about.get("name")))
        for key in keys:
            self._warnings[self._changed(key)].append(strip_event(event))
        return keys

    def record_node(self, body: Object, *, gone: bool) -> list[Key]:
        """Record the fault of a node, if it has any. Return the keys of the jobs that see a change."""
        self._snapshot, self._sees_nodes = None, True
        name, since = body["metadata"]["name"], unreported_since(body)
        before = self._nodes.pop(name, None)
        node = _Node(uid_of(body), node_fault(body, self._indicators), None if since is None else seconds(since))
        now = None if gone or (node.fault is None and node.lost_since is None) else node
        if now is not None:
            self._nodes[name] = now
        if before == now:
            return []
        own = f'"nodeName":{json.dumps(name)}'.encode()
        return [key for key, pods in self._pods.items() if any(own in pod.data for pod in pods.values())]

    def drop_nodes(self) -> list[Key]:
        """Drop all nodes: the operator has lost its right on them. Return the keys of the jobs that see a change."""
        self._snapshot, self._nodes, seen, self._sees_nodes = None, {}, self._sees_nodes, False
        return [key for key, pods in self._pods.items() if pods] if seen else []

    def was_delivered(self, key: Key) -> bool:
        """Return whether a job was ever delivered; True for all jobs after `end_initial_sync`."""
        return self.is_complete(key[0]) or key in self._delivered

    def is_complete(self, namespace: str) -> bool:
        """Return whether all objects of a namespace were delivered; before, a job seems to lack objects."""
        return namespace in self._complete or "" in self._complete

    def end_initial_sync(self, namespace: str = "") -> None:
        """Record that a namespace is complete (empty: all)."""
        self._complete.add(namespace)
        self._delivered = {key for key in self._delivered if not self.is_complete(key[0])}

    def uids(self, kind: str, namespace: str) -> set[str]:
        """Return the UIDs of all cached objects of a kind. An empty namespace means all namespaces."""
        if kind == NODE:
            return {node.uid for node in self._nodes.values()}
        if kind == JOB:
            return {job.uid for key, job in self._jobs.items() if namespace in ("", key[0])}
        tables = self._pods if kind == "Pod" else self._children
        selected = (table.items() for key, table in tables.items() if namespace in ("", key[0]))
        return {job.uid for table in selected for entry, job in table if kind == "Pod" or entry[0] == kind}

    def drop(self, kind: str, uid: str) -> tuple[Key, str] | None:
        """Remove a deleted object of `uids`. Return the key of its job and its name; None if it is not cached.

        Of a deleted node None: the deletions of its pods are delivered too.
        """
        if kind == NODE:
            self._snapshot = None
            self._nodes = {name: node for name, node in self._nodes.items() if node.uid != uid}
            return None
        key = self._owners.get(uid)
        if key is None:
            return None
        table: dict[Any, CachedObject] = self._pods[key] if kind == "Pod" else self._children[key]
        cached = (
            self._jobs.get(key) if kind == JOB else next((entry for entry in table.values() if entry.uid == uid), None)
        )
        if cached is None or cached.uid != uid:
            return None
        body = cached.body()
        if kind == JOB:
            self.record_job(body, gone=True)
        else:
            self.record_child(kind, body, gone=True)
        return key, str(body["metadata"]["name"])

    def orphans(self) -> dict[Key, int]:
        """Return the number of running pods of each job that was deleted without its objects (--cascade=orphan).

        The garbage collector has removed the owner of these objects. Those of other deleted jobs keep it until the end.
        """
        running: dict[Key, int] = {}
        for key, pods in self._pods.items():
            if key in self._jobs or not self.is_complete(key[0]) or not self._has_orphans(key):
                continue
            if count := sum(is_alive(pod) for pod in bodies(pods.values())):
                running[key] = count
        return running

    def _has_orphans(self, key: Key) -> bool:
        children = self._children.get(key, {}).items()
        creators = bodies(child for (kind, _), child in children if kind in WORKLOADS)
        return any(not body["metadata"].get("deletionTimestamp") and controller_of(body) is None for body in creators)

    def job(self, key: Key) -> Object | None:
        """Return a job; None if it is deleted."""
        cached = self._jobs.get(key)
        return None if cached is None else cached.body()

    def observed(self, key: Key) -> ObservedJob | None:
        """Return the snapshot of one job; None if the job is deleted. Do not change it: callers share it."""
        if self._snapshot is not None and self._snapshot[0] == key:
            return self._snapshot[1]
        cached = self._jobs.get(key)
        if cached is None:
            return None
        cached_pods = [pod for _, pod in sorted(self._pods.get(key, {}).items())]
        cached_children = self._children.get(key, {})
        job, *rest = bodies([cached, *cached_pods, *cached_children.values()])
        pods = tuple(rest[: len(cached_pods)])
        children = dict(zip(cached_children, rest[len(cached_pods) :], strict=True))
        nodes = {pod["spec"].get("nodeName", "") for pod in pods}
        own_nodes = {name: node for name, node in self._nodes.items() if name in nodes}
        lost = {name: node.lost_since for name, node in own_nodes.items() if node.lost_since is not None}
        observed = ObservedJob(
            job=job,
            children={entry: child for entry, child in children.items() if belongs(entry[0], child, job)},
            pods=pods,
            node_faults={name: node.fault for name, node in own_nodes.items() if node.fault is not None},
            lost_nodes=lost if self._sees_nodes else None,
            warnings=tuple(self._warnings.get(key, ())),
            disrupted=frozenset(self._disrupted.get(key, ())),
            deletions=dict(self._deletions.get(key, ())),
        )
        self._snapshot = key, observed
        return observed

    def _candidates(self, namespace: str, name: str) -> list[Key]:
        """Return the jobs that may have an object of that name: those whose name is followed by a dash in it."""
        ends = [index for index, letter in enumerate(name) if letter == "-"]
        return [key for end in ends if (key := (namespace, name[:end])) in self._jobs]

    def _drop_empty(self, key: Key) -> None:
        """Drop the tables of a job without objects, if the job is deleted."""
        if key not in self._jobs and not self._children.get(key) and not self._pods.get(key):
            self._children.pop(key, None)
            self._pods.pop(key, None)
            self._keys.pop(key, None)

    def _changed(self, key: Key) -> Key:
        """Drop the last snapshot if it is of this job. Return the key."""
        if self._snapshot is not None and self._snapshot[0] == key:
            self._snapshot = None
        return key

    def _key(self, body: Object, name: str) -> Key:
        """Return the key of a job, the same tuple for all its objects."""
        key = body["metadata"]["namespace"], name
        return self._keys.setdefault(key, key)
