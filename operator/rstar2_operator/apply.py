"""Writes objects to the API server: server-side apply of changed objects with one field manager, and deletion.

reconcile.py calls it with the objects from builders/. Every write can be repeated: names are deterministic, and each
object has an annotation with the hash of its last applied form.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from typing import Any

from kubernetes.aio.client.exceptions import ApiException

from rstar2_operator import names
from rstar2_operator.cache import WORKLOADS
from rstar2_operator.client import KubeClient, is_gone, is_transient
from rstar2_operator.decide.diagnostics import NAME_CONFLICT, Diagnosis
from rstar2_operator.drift import SCALED_KINDS, additions_of, as_applied, replacement
from rstar2_operator.failed_rounds import lasting_cause
from rstar2_operator.identity import Mutated, Refused, identity_changes
from rstar2_operator.observed import (
    Object,
    ObservedJob,
    annotations_of,
    as_json,
    belongs,
    controller_of,
    is_alive,
    is_older,
    labels,
)
from rstar2_train.api.base import API_VERSION, KIND

log = logging.getLogger(__name__)

CREATE_ONLY = frozenset({"Job", "Secret", "Workload"})
"""Created once: Jobs and admitted Workloads are immutable, and a Secret's passwords must not change."""
GRANTS = frozenset({"NetworkPolicy", "RoleBinding", "PodDisruptionBudget"})
"""Kinds that permit or protect pods: an edit must not change them while pods use them."""
OWNERLESS = frozenset({"PersistentVolumeClaim"})
"""Kept when the job is deleted, unless spec.storage.reclaimPolicy is Delete."""

SCALED = ("rollout", "teacher", "judge", "executor")
"""Members of the spec whose `replicas` may change without a change of pods."""
FIELDS_WITHOUT_POD_CHANGES = frozenset(
    {
        *("suspend", "failurePolicy", "nodeLoss", "stuck"),
        *("pendingDeadlineSeconds", "activeDeadlineSeconds", "ttlSecondsAfterFinished"),
    }
)
"""Members of the spec that change no pod."""
RELEASE_ORPHANS = (
    "To release its pods, run: kubectl delete jobs,deploy,sts,svc,cm,sa,roles,rolebindings,netpol,pdb,secrets "
    "-l rstar2.dev/job={job} -n {namespace}"
)
ORPHANED = (
    "belongs to an earlier job of this name, which was deleted without its objects (--cascade=orphan). "
    + RELEASE_ORPHANS
)
UNLABELLED_CLAIM = (
    "exists without the operator's labels. If it is the storage of this job, run: kubectl label pvc {claim} -n "
    f"{{namespace}} {names.MANAGED_BY}={names.FIELD_MANAGER} {names.JOB_LABEL}={{job}}. Otherwise give the job another "
    "name."
)
EXISTS = "already exists"
"""The API server's words about the creation of an object whose name is in use; a policy may have status 409 too."""
NO_KUEUE = "the cluster has no Kueue with API v1beta2: install Kueue 0.15 or later, or remove spec.queueName"


def owned(body: dict[str, Any], job: Object, *, keep_claims: bool, spec: str) -> dict[str, Any]:
    """Return the object with namespace, owner reference and hash; `spec`: the job's `applied_spec`. Pure."""
    meta = job["metadata"]
    body = {**body, "metadata": {**body["metadata"], "namespace": meta["namespace"]}}
    if not (keep_claims and body["kind"] in OWNERLESS):
        body["metadata"]["ownerReferences"] = [_owner(job)]
    own = {names.HASH: _digest(body), names.SPEC: spec}
    body["metadata"]["annotations"] = {**body["metadata"].get("annotations", {}), **own}
    return body


def _owner(job: Object) -> dict[str, Any]:
    meta = job["metadata"]
    return {
        "apiVersion": API_VERSION,
        "kind": job["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


async def adopt_unbound_claim(client: KubeClient, observed: ObservedJob) -> None:
    """Let a deleted job take its retained claim with it, if the claim never had a volume and so has no data.

    A job of the same name could otherwise only wait for it: the class of a claim cannot change.
    """
    claim = observed.child("PersistentVolumeClaim", names.claim(observed.name))
    if claim is None or (claim.get("status") or {}).get("phase") != "Pending" or claim["spec"].get("volumeName"):
        return
    if claim["metadata"].get("ownerReferences") or claim["metadata"].get("deletionTimestamp"):
        return
    meta = claim["metadata"]
    owner = {"op": "add", "path": "/metadata/ownerReferences", "value": [_owner(observed.job)]}
    unchanged = {"op": "test", "path": "/metadata/uid", "value": meta["uid"]}
    try:
        await client.patch("PersistentVolumeClaim", meta["namespace"], meta["name"], [unchanged, owner])
    except ApiException as error:
        if is_transient(error):
            raise
        # It is gone, has changed, or a policy protects it: then it stays, and the job goes without it.
        log.warning("PersistentVolumeClaim %s/%s stays: %s", meta["namespace"], meta["name"], error.reason)


def _digest(value: object) -> str:
    return hashlib.sha256(as_json(value).encode()).hexdigest()[:32]


def applied_spec(job: Object) -> str:
    """Return `GENERATION.DIGEST` of a job; the digest leaves out the fields that change no pod."""
    spec = {field: value for field, value in job["spec"].items() if field not in FIELDS_WITHOUT_POD_CHANGES}
    for role in SCALED:
        spec[role] = {field: value for field, value in (spec.get(role) or {}).items() if field != "replicas"}
    return f"{job['metadata'].get('generation', 0)}.{_digest(spec)}"


def has_equal_pods(applied: str, new: str) -> bool:
    """Return whether two results of `applied_spec` have the same digest: no pod changes. Pure."""
    return applied.split(".")[1:] == new.split(".")[1:]


def keep_revision(bodies: Iterable[dict[str, Any]], observed: ObservedJob) -> list[dict[str, Any]]:
    """Return the objects without those that only another version of the operator would change. Pure.

    While an attempt runs, an upgrade must replace no pod: another default image or another builder takes effect with
    the next attempt. A changed number of replicas is applied to the object as it is.
    """
    result = []
    for body in bodies:
        live = observed.child(body["kind"], body["metadata"]["name"])
        if live is None or body["kind"] in CREATE_ONLY or not _is_other_revision(body, live, observed):
            result.append(body)
        elif body["kind"] == "Deployment" and _is_scaled(body, live):
            if as_applied(live, body):  # apart from the replicas
                result.append(body)
                continue
            digest = _digest([annotations_of(live).get(names.HASH), body["spec"]["replicas"]])
            own = {**body["metadata"]["annotations"], names.HASH: digest}
            meta = {**body["metadata"], "annotations": own}
            spec = {**live["spec"], "replicas": body["spec"]["replicas"]}
            result.append({**body, "metadata": meta, "spec": spec})
    return result


def keep_grants(bodies: Iterable[dict[str, Any]], observed: ObservedJob) -> list[dict[str, Any]]:
    """Return the objects without changed GRANTS while a Job of the job has pods: an edit is for the next one. Pure."""
    jobs = ("trainer", "prepare", "report")
    holds = any(is_alive(pod) and labels(pod).get(names.ROLE_LABEL) in jobs for pod in observed.pods)
    return [body for body in bodies if not (holds and body["kind"] in GRANTS and _is_changed(body, observed))]


def _is_changed(body: dict[str, Any], observed: ObservedJob) -> bool:
    """Return whether an object exists in another form."""
    live = observed.child(body["kind"], body["metadata"]["name"])
    return live is not None and annotations_of(live).get(names.HASH) != body["metadata"]["annotations"][names.HASH]


def _is_other_revision(body: dict[str, Any], live: Object, observed: ObservedJob) -> bool:
    """Return whether an object differs from its applied form though the job's spec is the same."""
    old, new = annotations_of(live), body["metadata"]["annotations"]
    if old.get(names.HASH) == new[names.HASH]:
        return False
    if names.SPEC not in old:  # applied by a version without the annotation
        return bool(observed.status.get("observedGeneration") == observed.job["metadata"].get("generation"))
    same_generation = old[names.SPEC].split(".")[0] == new[names.SPEC].split(".")[0]
    return same_generation or has_equal_pods(old[names.SPEC], new[names.SPEC])


def _is_scaled(body: dict[str, Any], live: Object) -> bool:
    """Return whether the job changed the replicas of a Deployment, and not an autoscaler."""
    edited = annotations_of(live).get(names.SPEC) != body["metadata"]["annotations"][names.SPEC]
    return edited and bool(live["spec"].get("replicas") != body["spec"]["replicas"])


def changed(bodies: Iterable[dict[str, Any]], observed: ObservedJob) -> list[dict[str, Any]]:
    """Return the objects that the cluster lacks, or has in another form. Pure."""
    result = []
    for body in bodies:
        live = observed.child(body["kind"], body["metadata"]["name"])
        if live is None:
            result.append(body)
        elif body["kind"] in CREATE_ONLY or live["metadata"].get("deletionTimestamp"):
            continue
        elif annotations_of(live).get(names.HASH) != body["metadata"]["annotations"][names.HASH]:
            result.append(body)
    return result


def must_wait(body: dict[str, Any], observed: ObservedJob) -> bool:
    """Return whether an object must not be created after another was rejected. Pure.

    Executors need their NetworkPolicies first; a trainer must not hold accelerators without engines.
    """
    return body["kind"] in WORKLOADS and observed.child(body["kind"], body["metadata"]["name"]) is None


def any_terminating(bodies: Iterable[dict[str, Any]], observed: ObservedJob) -> bool:
    """Return whether an object that an attempt needs is being deleted: the attempt would wait for its pods. Pure."""
    live = (observed.child(body["kind"], body["metadata"]["name"]) for body in bodies if body["kind"] in SCALED_KINDS)
    return any(child is not None and child["metadata"].get("deletionTimestamp") for child in live)


class NameConflict(Refused):
    """An object of that name exists and does not belong to the job."""


def rejection(kind: str, obj: Object, error: Exception) -> Diagnosis:
    """Return the problem of an object that could not be written, in the API server's own words. Pure."""
    role, subject = labels(obj).get(names.ROLE_LABEL, ""), f"{kind}/{obj['metadata']['name']}"
    if isinstance(error, NameConflict):
        return Diagnosis(role, subject, NAME_CONFLICT, str(error))
    if kind == "Workload" and isinstance(error, ApiException) and error.status == 404:
        return Diagnosis(role, subject, "ApplyRejected", NO_KUEUE)
    return Diagnosis(role, subject, "ApplyRejected", lasting_cause(error))


async def apply(client: KubeClient, body: dict[str, Any], observed: ObservedJob) -> Object | None:
    """Create or update one object. Return None if it is create-only and exists, or if it is being deleted, or gone.

    Raises NameConflict if it does not belong to the job, and Mutated if a webhook has changed what the operator reads.
    An existing Secret is never written, because its owner cannot be read.
    """
    kind, meta = body["kind"], body["metadata"]
    if kind == "Secret":
        return await _create(client, body)
    cached = observed.child(kind, meta["name"])
    # The watches deliver only objects with the operator's labels.
    live = cached or await client.find(kind, meta["namespace"], meta["name"])
    if live is None:
        # Another client may have created an object of this name meanwhile: its fields are not taken over.
        created = await (_create(client, body) if kind in CREATE_ONLY else client.apply(body, force=False))
        return _accepted(body, created, is_new=True)
    if not belongs(kind, live, observed.job):
        raise NameConflict(_conflict(live, observed.job))
    if live["metadata"].get("deletionTimestamp"):
        return None
    if kind in CREATE_ONLY:
        return live if cached else _accepted(body, live, is_new=True)  # its deletion may have failed
    if additions_of(live) and not await _remove_additions(client, body, live):
        return None
    return _accepted(body, await _update(client, body, uid=live["metadata"]["uid"]), is_new=False)


async def _update(client: KubeClient, body: dict[str, Any], *, uid: str) -> Object | None:
    """Apply to the object with that UID; None if it is gone, also if another one has its name."""
    try:
        return await client.apply({**body, "metadata": {**body["metadata"], "uid": uid}})
    except ApiException as error:
        if not is_gone(error):
            raise
        return None


async def _remove_additions(client: KubeClient, body: dict[str, Any], live: Object) -> bool:
    """Remove what other clients added: a server-side apply keeps it. Return False if the object is gone."""
    kind, meta = body["kind"], body["metadata"]
    log.info("removing from %s/%s what other clients added: %s", kind, meta["name"], ", ".join(additions_of(live)))
    unchanged = {"op": "test", "path": "/metadata/uid", "value": live["metadata"]["uid"]}
    try:
        await client.patch(kind, meta["namespace"], meta["name"], [unchanged, *replacement(live, body)])
    except ApiException as error:
        if not is_gone(error):
            raise
        return False
    return True


def _conflict(live: Object, job: Object) -> str:
    owner = controller_of(live)
    if owner is not None and (owner["kind"], owner["name"]) == (job["kind"], job["metadata"]["name"]):
        return "belongs to an earlier job of this name, and is being deleted with it; the operator retries."
    if owner is None and labels(live).get(names.MANAGED_BY) == names.FIELD_MANAGER and is_older(live, job):
        return ORPHANED.format(job=job["metadata"]["name"], namespace=job["metadata"]["namespace"])
    if owner is None and live["kind"] in OWNERLESS:  # its deletion would delete the checkpoints of the job
        meta = live["metadata"]
        return UNLABELLED_CLAIM.format(job=job["metadata"]["name"], claim=meta["name"], namespace=meta["namespace"])
    belonging = f"belongs to {owner['kind']}/{owner['name']}" if owner is not None else "does not belong to this job"
    return f"exists and {belonging}. Delete or rename it, or give the job another name."


def _accepted(body: dict[str, Any], live: Object | None, *, is_new: bool) -> Object | None:
    """Return an object as the API server stored it. Raises Mutated if the operator could not read it or its pods."""
    if live is None or not (changes := identity_changes(body, live)):
        return live
    message = (
        f"an admission webhook or policy has changed {', '.join(changes)}. Exempt objects with the label "
        f"{names.SELECTOR} from it"
    )
    raise Mutated(message, live if is_new and body["kind"] in WORKLOADS else None)


async def set_finalizer(client: KubeClient, job: Object, *, present: bool) -> Object | None:
    """Add the operator's finalizer to an AgenticRLJob, or remove it. Return the job; None if it is gone."""
    meta = job["metadata"]
    body = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            **{field: meta[field] for field in ("name", "namespace", "uid")},
            "finalizers": [names.FINALIZER] if present else [],
        },
    }
    try:
        return await client.apply(body)
    except ApiException as error:
        if not is_gone(error):
            raise
        return None


def _has_pods(child: Object) -> bool:
    return bool(child["spec"].get("replicas", 1) or (child.get("status") or {}).get("replicas"))


async def _scaled_to_zero(client: KubeClient, kind: str, child: Object) -> Object:
    """Remove the pods of a Deployment or StatefulSet, whose controller ignores it after its deletion. Return it."""
    meta = child["metadata"]
    if child["spec"].get("replicas") == 0:
        return child
    log.info("scaling %s %s/%s to 0: its finalizers keep it", kind, meta["namespace"], meta["name"])
    unchanged = {"op": "test", "path": "/metadata/uid", "value": meta["uid"]}
    replicas = {"op": "replace", "path": "/spec/replicas", "value": 0}
    return await client.patch(kind, meta["namespace"], meta["name"], [unchanged, replicas])


async def is_missing(client: KubeClient, body: dict[str, Any]) -> bool:
    """Return whether an object that must not be read does not exist, by a dry-run creation."""
    try:
        await client.create(body, dry_run=True)
    except ApiException as error:
        if is_transient(error):
            raise
        return False  # it exists, or it is rejected (by a quota), which proves nothing
    return True


async def _create(client: KubeClient, body: dict[str, Any]) -> Object | None:
    try:
        return await client.create(body)
    except ApiException as error:
        if error.status != 409 or EXISTS not in (error.body or ""):
            raise
        return None


async def delete(client: KubeClient, kind: str, child: Object, *, force: bool = False) -> Object | None:
    """Delete one object and its dependents, whose pods get SIGTERM and their grace period. `force`: a Pod gets none.

    Return the object if it remains until its finalizers are removed; None if it is gone. An object with a finalizer
    keeps its pods, so it loses them before.
    """
    meta = child["metadata"]
    try:
        if kind in SCALED_KINDS and meta.get("finalizers") and _has_pods(child):
            return await _scaled_to_zero(client, kind, child)
        log.info("deleting %s %s/%s", kind, meta["namespace"], meta["name"])
        answer = await client.delete(kind, meta["namespace"], meta["name"], uid=meta["uid"], force=force)
    except ApiException as error:
        if not is_gone(error):
            raise
        return None
    return answer if answer.get("kind") == kind else None
