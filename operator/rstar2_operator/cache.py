"""The watch cache: every job and its children as last delivered or written, grouped by job. In memory only.

watch.py writes kopf's events into it, reconcile.py the responses to its own writes; reconcile.py reads an `ObservedJob`
from it. A child's label names its job, so that reading needs no request.

The cache is never older than the operator's own writes: of two versions of an object it keeps the one with the higher
resourceVersion, whichever arrives last. A UID that was deleted does not return. A snapshot has the objects of one job
UID: objects of a deleted job of the same name are not part of it, but the pods are, because they may still run.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any

from rstar2_operator import names
from rstar2_operator.observed import Object, ObservedJob, belongs, is_true, labels

Key = tuple[str, str]
"""(namespace, name) of a job."""
JOB = "AgenticRLJob"
KEPT_WARNINGS = 64
"""Warning events kept per job."""
KEPT_DELETIONS = 4096
"""UIDs of deleted objects that are kept, to ignore responses and events that arrive later."""


class WatchCache:
    """Jobs and their children as last delivered or written."""

    def __init__(self) -> None:
        self._jobs: dict[Key, Object] = {}
        self._children: defaultdict[Key, dict[tuple[str, str], Object]] = defaultdict(dict)
        self._pods: defaultdict[Key, dict[str, Object]] = defaultdict(dict)
        self._warnings: defaultdict[Key, deque[Object]] = defaultdict(lambda: deque(maxlen=KEPT_WARNINGS))
        self._disrupted: defaultdict[Key, set[str]] = defaultdict(set)
        self._owners: dict[str, Key] = {}
        """UID of a cached object -> its job."""
        self._deleted: dict[str, float] = {}
        """UID of a deleted object -> last resourceVersion that is ignored; oldest deletion first."""
        self._delivered: set[tuple[str, str, str]] | None = set()
        """(kind, namespace, name) of every delivered object, deleted ones included; None after the initial sync."""

    def jobs(self) -> list[Key]:
        """Return the keys of all jobs."""
        return list(self._jobs)

    def record_job(self, body: Object, *, gone: bool) -> Key:
        """Record a job, or its deletion. Return its key."""
        self._mark_delivered(JOB, body)
        key = _key(body, body["metadata"]["name"])
        replaced = self._jobs.get(key)
        if not self._store(self._jobs, key, body, key, gone=gone):
            return key
        if gone or (replaced is not None and _uid(replaced) != _uid(body)):
            self._warnings.pop(key, None)
            self._disrupted.pop(key, None)
        return key

    def record_child(self, kind: str, body: Object, *, gone: bool) -> Key | None:
        """Record a child, or its deletion. Return the key of its job, None if it belongs to no job."""
        self._mark_delivered(kind, body)
        owner = labels(body).get(names.JOB_LABEL)
        if owner is None:
            return None
        key, name = _key(body, owner), body["metadata"]["name"]
        table: dict[Any, Object] = self._pods[key] if kind == "Pod" else self._children[key]
        self._store(table, name if kind == "Pod" else (kind, name), body, key, gone=gone)
        if kind == "Pod" and key in self._jobs and is_true(body, "DisruptionTarget"):
            self._disrupted[key].add(labels(body).get(names.OF_JOB_LABEL, ""))
        if key not in self._jobs and not table:  # the last child of a deleted job
            self._pods.pop(key, None) if kind == "Pod" else self._children.pop(key, None)
        return key

    def _store(self, table: dict[Any, Object], entry: Any, body: Object, key: Key, *, gone: bool) -> bool:
        """Write an object to a table, or remove it; False if the table has a newer one or the object is deleted."""
        uid, cached = _uid(body), table.get(entry)
        if gone:
            self._bury(uid, _version(body))
            if cached is None or _uid(cached) != uid:
                return False
            del table[entry]
            return True
        # An object can come back: one whose label was removed and restored is deleted and added for its watch.
        if _version(body) <= self._deleted.get(uid, -1) or (cached is not None and _version(body) < _version(cached)):
            return False
        if cached is not None and _uid(cached) != uid:
            self._bury(_uid(cached), _version(body))
        table[entry] = body
        self._owners[uid] = key
        return True

    def _bury(self, uid: str, version: float) -> None:
        self._owners.pop(uid, None)
        self._deleted[uid] = max(version, self._deleted.pop(uid, -1))
        if len(self._deleted) > KEPT_DELETIONS:
            del self._deleted[next(iter(self._deleted))]

    def record_write(self, kind: str, body: Object) -> None:
        """Record the API server's response to an own write, before its watch event."""
        if kind != JOB:
            self.record_child(kind, plain(body), gone=False)
        elif (cached := self._jobs.get(_key(body, body["metadata"]["name"]))) is not None and _uid(cached) == _uid(
            body
        ):
            self.record_job(plain(body), gone=False)

    def record_deletion(self, kind: str, body: Object) -> None:
        """Record an own deletion that the API server has carried out; no later event of the object is a newer one."""
        if kind == JOB:
            self.record_job(body, gone=True)
        else:
            self.record_child(kind, body, gone=True)
        self._bury(_uid(body), math.inf)

    def record_warning(self, event: Object) -> list[Key]:
        """Record a Warning event. Return the keys of the jobs that it may be about."""
        about = event["involvedObject"]
        owner = self._owners.get(str(about.get("uid")))
        # An event may be delivered before its object. Then every job with a matching name gets it, and `diagnoses`
        # compares kind, name and UID.
        keys = [owner] if owner is not None else self._candidates(about.get("namespace", ""), str(about.get("name")))
        for key in keys:
            self._warnings[key].append(event)
        return keys

    def was_delivered(self, kind: str, namespace: str, name: str) -> bool:
        """Whether an object was ever delivered; True for all objects after `end_initial_sync`."""
        return self._delivered is None or (kind, namespace, name) in self._delivered

    def end_initial_sync(self) -> None:
        """Stop to record deliveries for `was_delivered`."""
        self._delivered = None

    def _mark_delivered(self, kind: str, body: Object) -> None:
        if self._delivered is not None:
            self._delivered.add((kind, body["metadata"]["namespace"], body["metadata"]["name"]))

    def of_kind(self, kind: str) -> list[Object]:
        """Return every cached object of a kind."""
        if kind == JOB:
            return list(self._jobs.values())
        if kind == "Pod":
            return [pod for pods in self._pods.values() for pod in pods.values()]
        children = (child for of_job in self._children.values() for child in of_job.items())
        return [body for (child_kind, _), body in children if child_kind == kind]

    def drop(self, kind: str, body: Object) -> Key | None:
        """Remove a deleted object of `of_kind`. Return the key of its job, None if another object has its name now."""
        uid = body["metadata"]["uid"]
        cached = next((each for each in self.of_kind(kind) if each["metadata"]["uid"] == uid), None)
        if cached is None:
            return None
        return self.record_job(cached, gone=True) if kind == JOB else self.record_child(kind, cached, gone=True)

    def observed(self, key: Key) -> ObservedJob | None:
        """Return the snapshot of one job; None if the job is deleted."""
        job = self._jobs.get(key)
        if job is None:
            return None
        return ObservedJob(
            job=job,
            children={entry: child for entry, child in self._children.get(key, {}).items() if belongs(child, job)},
            pods=tuple(sorted(self._pods.get(key, {}).values(), key=lambda pod: str(pod["metadata"]["name"]))),
            warnings=tuple(self._warnings.get(key, ())),
            disrupted=frozenset(self._disrupted.get(key, ())),
        )

    def _candidates(self, namespace: str, name: str) -> list[Key]:
        """The jobs that may have an object of that name."""
        return [key for key in self._of_namespace(namespace) if name.startswith(f"{key[1]}-")]

    def _of_namespace(self, namespace: str) -> Iterator[Key]:
        return (key for key in self._jobs if key[0] == namespace)


def plain(body: Object) -> dict[str, Any]:
    """Return the object without managedFields, which is large and unused here."""
    metadata = {field: value for field, value in body["metadata"].items() if field != "managedFields"}
    return {**body, "metadata": metadata}


def _key(body: Object, name: str) -> Key:
    return body["metadata"]["namespace"], name


def _uid(body: Object) -> str:
    return str(body["metadata"]["uid"])


def _version(body: Object) -> int:
    """The resourceVersion, which the API server increases with every write to any object of a kind."""
    version = str(body["metadata"].get("resourceVersion", ""))
    return int(version) if version.isdecimal() else 0
