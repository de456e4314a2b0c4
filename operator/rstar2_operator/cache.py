"""What the watches have told so far: every job and its children, by owner. In memory, lost with the process.

kopf delivers events here (watch.py); reconcile.py takes an Observed of one job out. Children are found by the label
of their job, so that nothing is asked of the API server.
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
"""Warning events remembered for each job."""


class WatchCache:
    """Jobs and their children as last seen."""

    def __init__(self) -> None:
        self._jobs: dict[Key, Object] = {}
        self._children: defaultdict[Key, dict[tuple[str, str], Object]] = defaultdict(dict)
        self._pods: defaultdict[Key, dict[str, Object]] = defaultdict(dict)
        self._warnings: defaultdict[Key, deque[Object]] = defaultdict(lambda: deque(maxlen=KEPT_WARNINGS))
        self._disrupted: defaultdict[Key, set[str]] = defaultdict(set)
        self._told: set[tuple[str, str, str]] | None = set()
        """(kind, namespace, name) of all that was seen, also of what is gone by now; None once nobody asks any more."""

    def jobs(self) -> list[Key]:
        """All jobs."""
        return list(self._jobs)

    def saw_job(self, body: Object, *, gone: bool) -> Key:
        """A job was seen, or is gone; returns its key."""
        self._note(JOB, body)
        key = _key(body, body["metadata"]["name"])
        if gone:
            for table in (self._jobs, self._children, self._pods, self._warnings, self._disrupted):
                table.pop(key, None)
        else:
            self._jobs[key] = body
        return key

    def saw_child(self, kind: str, body: Object, *, gone: bool) -> Key | None:
        """A child was seen, or is gone; returns its job's key. None: it belongs to no job."""
        self._note(kind, body)
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
        if key not in self._jobs and not table:  # the last of a deleted job
            self._pods.pop(key, None) if kind == "Pod" else self._children.pop(key, None)
        return key

    def saw_warning(self, event: Object) -> Key | None:
        """A Warning event was seen; returns the key of the job that it is about, None when it is about none."""
        about = event["involvedObject"]
        key = self._owner(about.get("namespace", ""), str(about.get("name", "")))
        if key is not None:
            self._warnings[key].append(event)
        return key

    def was_told(self, kind: str, namespace: str, name: str) -> bool:
        """Whether an object has ever been seen; True for all after `forget_told`."""
        return self._told is None or (kind, namespace, name) in self._told

    def forget_told(self) -> None:
        """Nobody will ask `was_told` any more."""
        self._told = None

    def _note(self, kind: str, body: Object) -> None:
        if self._told is not None:
            self._told.add((kind, body["metadata"]["namespace"], body["metadata"]["name"]))

    def of_kind(self, kind: str) -> list[Object]:
        """Every object of a kind that is thought to be there."""
        if kind == JOB:
            return list(self._jobs.values())
        if kind == "Pod":
            return [pod for pods in self._pods.values() for pod in pods.values()]
        return [body for held in self._children.values() for (one, _), body in held.items() if one == kind]

    def forget(self, kind: str, body: Object) -> Key | None:
        """An object that `of_kind` gave is gone; returns its job's key. None: another of its name is there by now."""
        now = next((one for one in self.of_kind(kind) if one["metadata"]["uid"] == body["metadata"]["uid"]), None)
        if now is None:
            return None
        return self.saw_job(now, gone=True) if kind == JOB else self.saw_child(kind, now, gone=True)

    def observed(self, key: Key) -> ObservedJob | None:
        """One job and its own; None when the job is gone."""
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
        """The job that an object belongs to, by its name alone: an event may come before its object."""
        return max(
            (key for key in self._of_namespace(namespace) if name.startswith(f"{key[1]}-")),
            key=lambda key: len(key[1]),
            default=None,
        )

    def _of_namespace(self, namespace: str) -> Iterator[Key]:
        return (key for key in self._jobs if key[0] == namespace)


def _key(body: Object, name: str) -> Key:
    return body["metadata"]["namespace"], name
