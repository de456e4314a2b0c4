"""Writes objects: server-side apply with one field manager, only what has changed, and deletes what is left over.

Between build/, which says how objects should look, and the API server. Every write can be repeated: names are fixed,
and what was applied is known by a hash on the object itself.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable
from typing import Any

from kubernetes.aio.client.exceptions import ApiException

from rstar2_operator import names
from rstar2_operator.client import KubeClient
from rstar2_operator.decide.diagnostics import Diagnosis
from rstar2_operator.observed import Object, ObservedJob, annotations_of, as_json, belongs, labels
from rstar2_train.api.base import API_VERSION

log = logging.getLogger(__name__)

CREATE_ONLY = frozenset({"Job", "Secret"})
"""A Job's template cannot be changed and a Secret's passwords must not: they are made once."""
OWNERLESS = frozenset({"PersistentVolumeClaim"})
"""Not deleted with the job, unless its user asks for that."""

WORKLOADS = frozenset({"Deployment", "StatefulSet", "Job"})
"""What makes pods."""


def owned(body: dict[str, Any], job: Object, *, keep_claims: bool) -> dict[str, Any]:
    """The object with namespace, owner and hash. Pure."""
    meta = job["metadata"]
    body = {**body, "metadata": {**body["metadata"], "namespace": meta["namespace"]}}
    if not (keep_claims and body["kind"] in OWNERLESS):
        body["metadata"]["ownerReferences"] = [
            {
                "apiVersion": API_VERSION,
                "kind": job["kind"],
                "name": meta["name"],
                "uid": meta["uid"],
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]
    digest = hashlib.sha256(as_json(body).encode()).hexdigest()[:32]
    body["metadata"]["annotations"] = {**body["metadata"].get("annotations", {}), names.HASH: digest}
    return body


def changed(bodies: Iterable[dict[str, Any]], observed: ObservedJob) -> list[dict[str, Any]]:
    """Those that the cluster does not have like this. Pure."""
    out = []
    for body in bodies:
        there = observed.child(body["kind"], body["metadata"]["name"])
        if there is None:
            out.append(body)
        elif body["kind"] in CREATE_ONLY or there["metadata"].get("deletionTimestamp"):
            continue
        elif annotations_of(there).get(names.HASH) != body["metadata"]["annotations"][names.HASH]:
            out.append(body)
    return out


def must_wait(body: dict[str, Any], observed: ObservedJob) -> bool:
    """Whether an object may not be made once another could not be: pods need what stands before them. Pure.

    No executor without its NetworkPolicies, no trainer that holds accelerators without engines that answer it.
    """
    return body["kind"] in WORKLOADS and observed.child(body["kind"], body["metadata"]["name"]) is None


class NameConflict(Exception):
    """An object of that name is there, and it is somebody else's."""


def refusal(kind: str, thing: Object, error: ApiException | NameConflict) -> Diagnosis:
    """Why an object was not written: in the API server's own words. Pure."""
    role, what = labels(thing).get(names.ROLE_LABEL, ""), f"{kind}/{thing['metadata']['name']}"
    if isinstance(error, NameConflict):
        return Diagnosis(role, what, "NameTaken", str(error))
    try:
        told = json.loads(error.body or "")
        words = f"{told['reason']}: {told['message']}"
    except (ValueError, KeyError, TypeError):
        words = f"{error.status} {error.reason}: {error.body or ''}"
    return Diagnosis(role, what, "Refused", words)


async def apply(client: KubeClient, body: dict[str, Any], observed: ObservedJob) -> Object | None:
    """Create or change one object. None: it is made only once and is there already, or it is on its way out.

    Raises NameConflict when it is not the job's. Whose a Secret is cannot be asked: one that is there is never written.
    """
    kind, meta = body["kind"], body["metadata"]
    if kind == "Secret":
        return await _create(client, body)
    there = observed.child(kind, meta["name"])
    if there is None:  # the watches tell only what carries our labels
        there = await client.find(kind, meta["namespace"], meta["name"])
    if there is None:
        return await (_create(client, body) if kind in CREATE_ONLY else client.apply(body))
    if not belongs(there, observed.job):
        raise NameConflict(_taken(there, observed.job))
    if there["metadata"].get("deletionTimestamp"):
        return None
    return there if kind in CREATE_ONLY else await client.apply(body)


def _taken(there: Object, job: Object) -> str:
    owners = there["metadata"].get("ownerReferences") or ()
    owner = next((one for one in owners if one.get("controller")), None)
    if owner is not None and (owner["kind"], owner["name"]) == (job["kind"], job["metadata"]["name"]):
        return "belongs to an earlier job of this name, and goes with it: wait"
    whose = f"belongs to {owner['kind']}/{owner['name']}" if owner is not None else "is not this job's"
    return f"exists and {whose}: delete or rename it, or give the job another name"


async def is_missing(client: KubeClient, body: dict[str, Any]) -> bool:
    """Whether an object that may not be read is not there: asked by a creation that creates nothing."""
    try:
        await client.create(body, dry_run=True)
    except ApiException as error:
        if error.status is not None and error.status >= 500:
            raise
        return False  # it is there; or it is refused (a quota), which says nothing
    return True


async def _create(client: KubeClient, body: dict[str, Any]) -> Object | None:
    try:
        return await client.create(body)
    except ApiException as error:
        if error.status != 409:
            raise
        return None


async def delete(client: KubeClient, kind: str, child: Object) -> None:
    """Delete one object and what it made; its pods get SIGTERM and their grace."""
    meta = child["metadata"]
    log.info("deleting %s %s/%s", kind, meta["namespace"], meta["name"])
    try:
        await client.delete(kind, meta["namespace"], meta["name"], uid=meta["uid"])
    except ApiException as error:
        if error.status not in (404, 409):  # gone already, or another one of that name is there by now
            raise
