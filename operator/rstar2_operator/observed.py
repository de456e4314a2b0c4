"""What the operator knows about one job at one moment: the raw objects, and questions about them. Pure.

Between cache.py, which collects them from the watches, and decide/, which asks. Objects are plain dicts as the API
server sends them.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rstar2_operator import names
from rstar2_train.api.contracts import (
    OUTCOME_PREFIX,
    PREPARE_KEY,
    PROGRESS_KEY,
    Outcome,
    Progress,
    WireModel,
    outcome_key,
)

Object = Mapping[str, Any]
T = TypeVar("T", bound=WireModel)


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """One job and all that belongs to it."""

    job: Object
    """The AgenticRLJob."""
    children: Mapping[tuple[str, str], Object] = field(default_factory=dict)
    """(kind, name) -> object, of the kinds that are watched, but for pods."""
    pods: tuple[Object, ...] = ()
    """Its pods."""
    warnings: tuple[Object, ...] = ()
    """Warning events about any of them, oldest first."""
    disrupted: frozenset[str] = frozenset()
    """Batch Jobs of which a pod was evicted, preempted or drained; such a pod may be gone before its Job has failed."""
    secret_missing: bool = False
    """The Secret is gone, and there are pods that hold what it said."""

    @property
    def name(self) -> str:
        """The job's name."""
        return str(self.job["metadata"]["name"])

    @property
    def status(self) -> Object:
        """The job's last status."""
        return self.job.get("status") or {}

    def child(self, kind: str, name: str) -> Object | None:
        """A child by kind and name."""
        return self.children.get((kind, name))

    def of_kind(self, kind: str) -> Iterator[Object]:
        """All children of a kind."""
        return (child for (one, _), child in self.children.items() if one == kind)

    def attempts(self, stage: str) -> dict[int, Object]:
        """Attempt number -> Job, of a stage."""
        found = (job for job in self.of_kind("Job") if labels(job).get(names.STAGE_LABEL) == stage)
        return {int(labels(job)[names.ATTEMPT_LABEL]): job for job in found}

    def progress(self) -> Progress | None:
        """What the driver last told; None before the first, or when it cannot be read (see `unreadable`)."""
        return _read(Progress, self._told.get(PROGRESS_KEY))

    def outcome(self, stage: str) -> Outcome | None:
        """How the last attempt of a stage ended, as its driver told; None as for `progress`."""
        return _read(Outcome, self._told.get(outcome_key(stage)))

    def prepared(self) -> Outcome | None:
        """How the preparation of the storage ended; None as for `progress`."""
        return _read(Outcome, self._told.get(PREPARE_KEY))

    def unreadable(self) -> list[str]:
        """Keys of the progress ConfigMap that hold what cannot be read."""
        known = {key: Outcome for key in self._told if key == PREPARE_KEY or key.startswith(OUTCOME_PREFIX)}
        kinds: dict[str, type[WireModel]] = {**known, PROGRESS_KEY: Progress}
        return sorted(key for key, kind in kinds.items() if self._told.get(key) and not _read(kind, self._told[key]))

    @property
    def _told(self) -> Mapping[str, str]:
        return (self.child("ConfigMap", names.progress(self.name)) or {}).get("data") or {}

    def stage_status(self, stage: str) -> Object:
        """A stage's entry in the last status; empty when there is none."""
        return next((one for one in self.status.get("stages", ()) if one.get("name") == stage), {})


def _read(kind: type[T], text: str | None) -> T | None:
    try:
        return kind.model_validate_json(text) if text else None
    except ValueError:
        return None


def labels(thing: Object) -> Mapping[str, str]:
    """Labels of an object."""
    return thing["metadata"].get("labels") or {}


def belongs(thing: Object, job: Object) -> bool:
    """Whether an object is the job's own: by its controller, or by the labels where it has none, as a kept claim."""
    meta = job["metadata"]
    for owner in thing["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            return bool(owner["uid"] == meta["uid"])
    told = labels(thing)
    return (told.get(names.MANAGED_BY), told.get(names.JOB_LABEL)) == (names.FIELD_MANAGER, meta["name"])


def annotations_of(thing: Object) -> Mapping[str, str]:
    """Annotations of an object."""
    return thing["metadata"].get("annotations") or {}


def condition(thing: Object, kind: str) -> Object | None:
    """A condition of an object's status, whatever its value."""
    conditions = (thing.get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one["type"] == kind), None)


def is_true(thing: Object, kind: str) -> bool:
    """Whether a condition is there and True."""
    found = condition(thing, kind)
    return found is not None and found["status"] == "True"


def seconds(timestamp: str) -> float:
    """A Kubernetes timestamp as seconds since the epoch."""
    return datetime.datetime.fromisoformat(timestamp).timestamp()


def timestamp(when: float) -> str:
    """Seconds since the epoch as a Kubernetes timestamp."""
    return datetime.datetime.fromtimestamp(when, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def precise(when: float) -> str:
    """The same with microseconds, as Leases and Events have it."""
    return f"{timestamp(when)[:-1]}.{int(when % 1 * 1e6):06d}Z"


def job_finished_at(job: Object) -> float | None:
    """When a batch Job ended, either way; None while it runs.

    Only the final conditions count: FailureTarget and SuccessCriteriaMet come before the last pod is gone.
    """
    for kind in ("Complete", "Failed"):
        found = condition(job, kind)
        if found is not None and found["status"] == "True":
            return seconds(found["lastTransitionTime"])
    return None


def lacks_pods(kind: str, child: Object) -> bool:
    """Whether a StatefulSet, or a batch Job that runs, has not got all its pods made yet."""
    status = child.get("status") or {}
    if kind == "StatefulSet":
        return not status.get("currentReplicas")
    if kind != "Job" or job_finished_at(child) is not None:
        return False
    made = sum(int(status.get(field) or 0) for field in ("active", "terminating", "succeeded", "failed"))
    return made < int(child["spec"].get("parallelism", 1))


def exit_code(pod: Object) -> int | None:
    """Exit code of a pod's only container; None while it runs or when the kubelet never said."""
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        ended = (status.get("state") or {}).get("terminated")
        if ended is not None:
            return int(ended["exitCode"])
    return None


def running_since(pod: Object) -> float | None:
    """When a pod's only container began to run; None when it does not, or is about to end."""
    if pod["metadata"].get("deletionTimestamp"):
        return None
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        runs = (status.get("state") or {}).get("running")
        if runs is not None:
            return seconds(runs["startedAt"])
    return None


def as_json(value: object) -> str:
    """Compact JSON with sorted keys: the same value always gives the same text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
