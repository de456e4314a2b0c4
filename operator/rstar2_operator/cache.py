"""The watch cache: every job and its children as last delivered, grouped by job. In memory only.

watch.py writes kopf's events into it; reconcile.py reads an `ObservedJob` from it. A child's label names its job, so
that reading needs no request.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any

from rstar2_operator import names
from rstar2_operator.observed import Object, ObservedJob, is_true, labels

Key = tuple[str, str]
"""(namespace, name) of a job."""
JOB = "AgenticRLJob"
KEPT_WARNINGS = 64
"""Warning events kept per job."""


class WatchCache:
    """Jobs and their children as last delivered."""

    def __init__(self) -> None:
        self._jobs: dict[Key, Object] = {}
        self._children: defaultdict[Key, dict[tuple[str, str], Object]] = defaultdict(dict)
        self._pods: defaultdict[Key, dict[str, Object]] = defaultdict(dict)
        self._warnings: defaultdict[Key, deque[Object]] = defaultdict(lambda: deque(maxlen=KEPT_WARNINGS))
        self._disrupted: defaultdict[Key, set[str]] = defaultdict(set)
        self._delivered: set[tuple[str, str, str]] | None = set()
        """(kind, namespace, name) of every delivered object, deleted ones included; None after the initial sync."""

    def jobs(self) -> list[Key]:
        """Return the keys of all jobs."""
        return list(self._jobs)

    def record_job(self, body: Object, *, gone: bool) -> Key:
        """Record a job, or its deletion. Return its key."""
        self._mark_delivered(JOB, body)
        key = _key(body, body["metadata"]["name"])
        if gone:
            for table in (self._jobs, self._children, self._pods, self._warnings, self._disrupted):
                table.pop(key, None)
        else:
            self._jobs[key] = body
        return key

    def record_child(self, kind: str, body: Object, *, gone: bool) -> Key | None:
        """Record a child, or its deletion. Return the key of its job, None if it belongs to no job."""
        self._mark_delivered(kind, body)
        owner = labels(body).get(names.JOB_LABEL)
        if owner is None:
            return None
        key, name = _key(body, owner), body["metadata"]["name"]
        table: dict[Any, Object] = self._pods[key] if kind == "Pod" else self._children[key]
        entry: Any = name if kind == "Pod" else (kind, name)
        if gone:
            table.pop(entry, None)
        else:
            table[entry] = body
        if kind == "Pod" and key in self._jobs and is_true(body, "DisruptionTarget"):
            self._disrupted[key].add(labels(body).get(names.OF_JOB_LABEL, ""))
        if key not in self._jobs and not table:  # the last child of a deleted job
            self._pods.pop(key, None) if kind == "Pod" else self._children.pop(key, None)
        return key

    def record_warning(self, event: Object) -> Key | None:
        """Record a Warning event. Return the key of the job that it is about, None if there is none."""
        about = event["involvedObject"]
        key = self._owner(about.get("namespace", ""), str(about.get("name", "")))
        if key is not None:
            self._warnings[key].append(event)
        return key

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
            children=dict(self._children.get(key, {})),
            pods=tuple(sorted(self._pods.get(key, {}).values(), key=lambda pod: str(pod["metadata"]["name"]))),
            warnings=tuple(self._warnings.get(key, ())),
            disrupted=frozenset(self._disrupted.get(key, ())),
        )

    def _owner(self, namespace: str, name: str) -> Key | None:
        """The job of an object, by the object's name alone: an event may be delivered before its object."""
        return max(
            (key for key in self._of_namespace(namespace) if name.startswith(f"{key[1]}-")),
            key=lambda key: len(key[1]),
            default=None,
        )

    def _of_namespace(self, namespace: str) -> Iterator[Key]:
        return (key for key in self._jobs if key[0] == namespace)


def _key(body: Object, name: str) -> Key:
    return body["metadata"]["namespace"], name
