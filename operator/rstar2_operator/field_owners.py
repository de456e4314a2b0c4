"""Fields that other clients have added to an object of the operator, from the API server's managedFields. Pure.

The API server records which client has set which field, and no owner for its own defaults. So a field of another client
is never a default, in any version of Kubernetes. The operator manages whole parts of its objects, such as `spec` of a
Deployment: in them, a field of another client is an addition, such as a container, a variable or a selector.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_core import from_json

from rstar2_operator import names

Fields = Mapping[str, Any]
"""Fields as in managedFields: `f:NAME`, `k:{...}` (entry of a list), `v:...` (entry of a set), `.` (itself)."""
KINDS = frozenset(
    {
        *("ConfigMap", "Service", "Deployment", "StatefulSet"),
        *("NetworkPolicy", "Role", "RoleBinding", "PodDisruptionBudget"),
    }
)
"""Kinds with parts that only the operator manages: not ServiceAccounts, to which platforms add pull secrets."""
PARTS = {"Role": frozenset({"f:rules"}), "RoleBinding": frozenset({"f:subjects"})}
"""Kind -> parts that only the operator manages; those of other kinds have a field of the operator."""
RESTARTED_AT = "kubectl.kubernetes.io/restartedAt"
"""Annotation of a pod template by which `kubectl rollout restart` replaces the pods."""
FREE = frozenset({"spec.replicas", f"spec.template.metadata.annotations.{RESTARTED_AT}"})
"""Fields of a Deployment or StatefulSet that another client may set: an autoscaler, `kubectl rollout restart`."""
MAX_ADDITIONS = 4
"""Additions that are kept per object."""


def additions(kind: str, metadata: Mapping[str, Any]) -> list[str]:
    """Return the first additions of other clients, as `CLIENT: path`. `metadata`: of the object, with managedFields."""
    if kind not in KINDS:
        return []
    entries = [entry for entry in metadata.get("managedFields") or () if not entry.get("subresource")]
    own: dict[str, Any] = {}
    for entry in entries:
        if entry.get("manager") == names.FIELD_MANAGER:
            own = _union(own, entry.get("fieldsV1") or {})
    # An atomic part, such as the subjects of a RoleBinding, has no field of the operator after another client's edit.
    parts = PARTS.get(kind, frozenset(own)) - {"f:metadata", "f:status"}
    result = []
    for entry in entries:
        if entry.get("manager") == names.FIELD_MANAGER:
            continue
        fields = {part: value for part, value in (entry.get("fieldsV1") or {}).items() if part in parts}
        result += [f"{entry.get('manager', '')}: {path}" for path in _missing(fields, own, "") if path not in FREE]
    return result[:MAX_ADDITIONS]


def last_write(metadata: Mapping[str, Any]) -> str:
    """Return when another client than the operator has last written an object; empty if none has."""
    entries = metadata.get("managedFields") or ()
    times = [str(entry.get("time", "")) for entry in entries if entry.get("manager") != names.FIELD_MANAGER]
    return max(times, default="")


def _union(first: Fields, second: Fields) -> dict[str, Any]:
    merged = {**first, **second}
    return merged | {key: _union(first[key], second[key]) for key in first.keys() & second.keys()}


def _missing(fields: Fields, own: Fields, path: str) -> Iterator[str]:
    """Return the paths of `fields` that `own` lacks: single fields, and whole entries of lists."""
    for key, inner in fields.items():
        if key == ".":
            continue
        here = path + _readable(key, first=not path)
        if key not in own and (key[0] != "f" or not inner.keys() - {"."}):
            yield here
        else:
            yield from _missing(inner, own.get(key, {}), here)


def _readable(key: str, *, first: bool) -> str:
    kind, _, text = key.partition(":")
    if kind == "f":
        return text if first else f".{text}"
    entry = from_json(text)
    return f"[{', '.join(f'{name}={value}' for name, value in entry.items())}]" if kind == "k" else f"[{entry}]"
