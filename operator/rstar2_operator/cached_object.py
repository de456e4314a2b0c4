"""The form in which the cache keeps an object: immutable, compact JSON of the fields that the operator reads. Pure.

An object of the API server takes about ten times its JSON as Python objects. A job with ten pods has about forty
objects, and one of them changes at a time, so the cache keeps JSON and decodes the objects of one job per round.

- A Pod keeps its labels, owner, node, limits and status: its template is in the object that created it.
- A Job keeps no pod template: it is immutable, and an attempt is never compared with a newer form.
- Other children keep their content, because `drift.py` compares it, and what other clients added (field_owners.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json, to_json

from rstar2_operator.field_owners import additions, last_write

Object = Mapping[str, Any]

METADATA = frozenset({"managedFields", "generateName", "selfLink", "resourceVersion"})
"""Fields of metadata that are not kept, of every kind. `CachedObject.version` has the resourceVersion."""
ADDITIONS = "additions"
"""Member of metadata with the additions of other clients, if there are any."""
WRITTEN = "written"
"""Member of metadata of a ConfigMap: when another client has last written it, by the API server's clock."""
POD_SPEC = ("nodeName", "schedulerName", "schedulingGates")
"""Fields of a pod's spec that are kept."""
POD_STATUS = ("phase", "reason", "message", "conditions")
"""Fields of a pod's status that are kept, apart from its containers."""
CONDITION = ("type", "status", "reason", "lastTransitionTime")
"""Fields of a pod's condition that are kept; the message only of one that is not True."""
CONTAINER_STATUS = ("name", "ready", "started", "restartCount", "state", "lastState")
JOB_SPEC = frozenset({"template", "selector"})
"""Fields of a batch Job's spec that are not kept."""
EVENT = (
    *("metadata", "involvedObject", "reason", "message"),
    *("series", "lastTimestamp", "eventTime"),
)
"""Fields of a Warning event that are kept."""


@dataclass(frozen=True, slots=True)
class CachedObject:
    """One object of the cache."""

    uid: str
    version: int
    """Its resourceVersion, which the API server increases with every write to any object of a kind."""
    data: bytes
    """JSON of the kept fields."""

    def only_newer(self, other: CachedObject) -> bool:
        """Return whether this is a newer version of the other one, with the same kept fields."""
        return self.version > other.version and (self.uid, self.data) == (other.uid, other.data)

    def body(self) -> Object:
        """Return the object. Each call returns a new one."""
        return bodies([self])[0]


def bodies(cached: Iterable[CachedObject]) -> list[Object]:
    """Return the objects. One text of all of them is decoded faster than one text per object."""
    result: list[Object] = from_json(b"[" + b",".join(entry.data for entry in cached) + b"]")
    return result


def to_cached(kind: str, body: Object) -> CachedObject:
    """Return the cached form of an object as the API server sent it."""
    return CachedObject(uid_of(body), version_of(body), to_json(strip_fields(kind, body)))


def strip_fields(kind: str, body: Object) -> dict[str, Any]:
    """Return the object with the kept fields."""
    metadata = {field: value for field, value in body["metadata"].items() if field not in METADATA}
    if added := additions(kind, body["metadata"]):
        metadata[ADDITIONS] = added
    if kind == "ConfigMap" and (written := last_write(body["metadata"])):
        metadata[WRITTEN] = written
    result = {**body, "metadata": metadata}
    if kind == "Pod":
        metadata.pop("annotations", None)
        result |= {"spec": _pod_spec(body.get("spec") or {}), "status": _pod_status(body.get("status") or {})}
    elif kind == "Job" and "spec" in body:
        result["spec"] = {field: value for field, value in body["spec"].items() if field not in JOB_SPEC}
    return result


def strip_event(event: Object) -> dict[str, Any]:
    """Return a Warning event with the kept fields."""
    kept = {field: event[field] for field in EVENT if field in event}
    if "metadata" in event:
        kept["metadata"] = {"creationTimestamp": event["metadata"].get("creationTimestamp")}
    return kept


def uid_of(body: Object) -> str:
    """Return the UID of an object."""
    return str(body["metadata"]["uid"])


def version_of(body: Object) -> int:
    """Return the resourceVersion of an object; 0 if it has none."""
    version = str(body["metadata"].get("resourceVersion", ""))
    return int(version) if version.isdecimal() else 0


def _pod_spec(spec: Object) -> dict[str, Any]:
    kept = {field: spec[field] for field in POD_SPEC if field in spec}
    containers = [
        {"name": container.get("name", ""), "resources": {"limits": limits}}
        for container in spec.get("containers") or ()
        if (limits := (container.get("resources") or {}).get("limits"))
    ]
    return {**kept, "containers": containers}


def _pod_status(status: Object) -> dict[str, Any]:
    kept = {field: status[field] for field in POD_STATUS if field in status}
    if "conditions" in kept:
        kept["conditions"] = [_condition(condition) for condition in kept["conditions"]]
    for field in ("initContainerStatuses", "containerStatuses"):
        if status.get(field):
            kept[field] = [{name: state[name] for name in CONTAINER_STATUS if name in state} for state in status[field]]
    return kept


def _condition(condition: Object) -> dict[str, Any]:
    fields = CONDITION if condition.get("status") == "True" else (*CONDITION, "message")
    return {field: condition[field] for field in fields if field in condition}
