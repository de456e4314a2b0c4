"""Comparison of the cluster's definition of AgenticRLJob with the fields that this version of the operator has.

The API server drops unknown fields of specs and rejects unknown fields of statuses. An operator that is newer than the
definition could not record restarts, so it does not lead until the definition is upgraded. Every client may read the
schema, so the check needs no rights.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kubernetes.aio.client.exceptions import ApiException

from rstar2_operator.client import UNREACHABLE, KubeClient
from rstar2_operator.watch_health import cause_of
from rstar2_train.api.base import KIND
from rstar2_train.api.crd import build_schema

log = logging.getLogger(__name__)

POLL_SECONDS = 15.0
MAX_FIELDS = 5
"""Fields that the message names."""
Schema = Mapping[str, Any]


def missing_fields(own: Schema, served: Schema, path: str = "") -> Iterator[str]:
    """Yield the paths of the fields of `own` that `served` lacks. Pure."""
    for name, field in own.get("properties", {}).items():
        at = f"{path}.{name}" if path else name
        other = served.get("properties", {}).get(name)
        if other is None:
            yield at
        else:
            yield from missing_fields(field, other, at)
    for inner, suffix in (("items", "[]"), ("additionalProperties", "")):
        if isinstance(own.get(inner), Mapping):
            other = served.get(inner)
            yield from missing_fields(own[inner], other if isinstance(other, Mapping) else {}, f"{path}{suffix}")


def served_schema(document: Mapping[str, Any]) -> Schema:
    """Return the schema of AgenticRLJob in the OpenAPI document of its API version; empty without one. Pure."""
    for schema in (document.get("components") or {}).get("schemas", {}).values():
        if any(group.get("kind") == KIND for group in schema.get("x-kubernetes-group-version-kind") or ()):
            return dict(schema)
    return {}


def outdated(document: Mapping[str, Any]) -> str:
    """Return an error message if the served definition lacks fields of this version; else empty. Pure."""
    own, served = build_schema()["properties"], served_schema(document).get("properties", {})
    fields = list(
        missing_fields({"properties": {part: own[part] for part in ("spec", "status")}}, {"properties": served})
    )
    if not fields:
        return ""
    listed = ", ".join(fields[:MAX_FIELDS]) + (
        f" and {len(fields) - MAX_FIELDS} more" if len(fields) > MAX_FIELDS else ""
    )
    return (
        f"the definition of {KIND} in the cluster is older than this operator: it lacks {listed}. Apply it: kubectl "
        "apply --server-side -f crds/. This replica does not lead before."
    )


async def wait_until_current(client: KubeClient, *, report: Callable[[str], None]) -> None:
    """Return when the definition has every field. `report` is called with the error message, empty at the end."""
    last = ""
    while True:
        try:
            message = await asyncio.to_thread(outdated, await client.openapi())  # 60 ms of CPU time
        except (ApiException, *UNREACHABLE) as error:
            if isinstance(error, ApiException) and error.status in (401, 403):
                log.warning("could not read the definition of %s: %s", KIND, cause_of(error))
                return
            message = f"could not read the definition of {KIND}: {cause_of(error)}"
        report(message)
        if not message:
            return
        if message != last:
            log.error("%s", message)
        last = message
        await asyncio.sleep(POLL_SECONDS)
