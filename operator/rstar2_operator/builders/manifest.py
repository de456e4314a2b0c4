"""Parts of Kubernetes objects as plain dicts: resources, and lists that are merged by a key. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rstar2_train.api.base import amount
from rstar2_train.api.roles import Resources

Manifest = dict[str, Any]


def missing(entries: Sequence[Manifest], existing: Sequence[Manifest], key: str) -> list[Manifest]:
    """Return the entries whose value under `key` no existing entry has."""
    known = {entry[key] for entry in existing}
    return [entry for entry in entries if entry[key] not in known]


def resources(spec: Resources) -> Manifest:
    """Return requests and limits as a container has them."""
    return {key: dict(value) for key, value in (("requests", spec.requests), ("limits", spec.limits)) if value}


def merge(base: Manifest, overlay: Manifest) -> Manifest:
    """Return the resources of `overlay` over those of `base`.

    If the overlay sets only the request or only the limit, and the base contradicts it, the other one is adapted.
    """
    merged: dict[str, dict[str, Any]] = {
        key: {**base.get(key, {}), **overlay.get(key, {})}
        for key in ("requests", "limits")
        if key in base or key in overlay
    }
    requests, limits = merged.get("requests", {}), merged.get("limits", {})
    for name in requests.keys() & limits.keys():
        if amount(requests[name]) > amount(limits[name]):
            if name in overlay.get("requests", {}):
                limits[name] = requests[name]
            else:
                requests[name] = limits[name]
    claims = [*base.get("claims", ()), *overlay.get("claims", ())]
    return {**base, **merged, **({"claims": claims} if claims else {})}
