"""spec.runtimePatches on the pod of a role: which patches apply, and the fields that they may add. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rstar2_operator.builders.manifest import Manifest, merge, missing, resources
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.roles import Role, RuntimePatch

SHARED_WITH_HELPERS = (
    *("labels", "annotations", "image_pull_secrets", "tolerations", "node_selector"),
    *("env", "env_from", "volumes", "volume_mounts", "service_account_name"),
)
"""Fields by which patches of `trainer` reach the Jobs for preparation and report: not gangs, networks and devices."""
NOT_SHARED_LABELS = ("scheduling.x-k8s.io/", "scheduling.k8s.io/", "pod-group.scheduling.sigs.k8s.io", "k8s.v1.cni")
"""Prefixes of labels and annotations of gangs and networks, which are for the pods of an attempt."""


def patches_of(job: AgenticRLJob, role: str, helper: Role | None) -> list[tuple[int, RuntimePatch]]:
    """Return a pod's patches with their numbers; those of a helper's own role first, because earlier values win."""
    numbered = list(enumerate(job.spec.runtime_patches))
    if helper is None:
        return [(number, patch) for number, patch in numbered if role in patch.roles]
    own = [(number, patch) for number, patch in numbered if helper in patch.roles]
    has_account = any(patch.service_account_name for _, patch in own)
    others = [(number, patch) for number, patch in numbered if role in patch.roles and helper not in patch.roles]
    return own + [(number, _shared(patch, account=not has_account)) for number, patch in others]


def _shared(patch: RuntimePatch, *, account: bool) -> RuntimePatch:
    """Return the part of a trainer's patch that its helpers share."""
    fields = {name: getattr(patch, name) for name in SHARED_WITH_HELPERS if name != "service_account_name" or account}
    for kind in ("labels", "annotations"):
        fields[kind] = {key: value for key, value in fields[kind].items() if not key.startswith(NOT_SHARED_LABELS)}
    return RuntimePatch.model_construct(**{**RuntimePatch(manager=patch.manager, roles=patch.roles).__dict__, **fields})


def patch_metadata(metadata: Manifest, patch: RuntimePatch) -> None:
    """Add the labels and annotations of a runtime patch, in place; those of the builder win."""
    metadata["labels"] = {**patch.labels, **metadata["labels"]}
    if patch.annotations:
        metadata["annotations"] = {**patch.annotations, **metadata.get("annotations", {})}


def patch_pod(
    spec: Manifest,
    patch: RuntimePatch,
    *,
    role: str,
    prefix: str,
    fixed: Collection[str] = (),
    labels: Mapping[str, str] | None = None,
) -> None:
    """Apply a runtime patch to a pod spec, in place. It replaces no value of the builder but the ServiceAccount.

    `prefix`: of the patch's volume names, which keeps them distinct from those of the builder and of other patches;
    `fixed`: resources that the patch cannot change; `labels`: of the role's pods. Executors accept only placement,
    labels and pull secrets. api/pod_rules.py has rejected every other field for them, and contradictions between
    patches.
    """
    values = patch.model_dump(mode="json", exclude_none=True)
    if patch.node_selector:
        spec["nodeSelector"] = {**patch.node_selector, **spec.get("nodeSelector", {})}
    if patch.tolerations:
        spec["tolerations"] = [*spec.get("tolerations", []), *values["tolerations"]]
    if patch.image_pull_secrets:
        before = spec.get("imagePullSecrets", [])
        spec["imagePullSecrets"] = [*before, *missing(values["imagePullSecrets"], before, "name")]
    if patch.topology_spread_constraints:
        same = {"labelSelector": {"matchLabels": dict(labels or {})}}
        spread = [{**constraint, **same} for constraint in values["topologySpreadConstraints"]]
        spec["topologySpreadConstraints"] = [*spec.get("topologySpreadConstraints", []), *spread]
    if patch.scheduler_name:
        spec["schedulerName"] = patch.scheduler_name
    if patch.scheduling_gates:
        before = spec.get("schedulingGates", [])
        spec["schedulingGates"] = [*before, *missing(values["schedulingGates"], before, "name")]
    if role == "executor":
        return
    if patch.affinity is not None:
        spec["affinity"] = values["affinity"]
    if patch.service_account_name:
        spec["serviceAccountName"] = patch.service_account_name
    if patch.resource_claims:
        spec["resourceClaims"] = [*spec.get("resourceClaims", []), *values["resourceClaims"]]
    for named in (*values["volumes"], *values["volumeMounts"]):
        named["name"] = prefix + named["name"]
    spec["volumes"] += values["volumes"]
    for container in spec["containers"]:
        container["env"] += missing(values["env"], container["env"], "name")
        if patch.env_from:
            container["envFrom"] = [*container.get("envFrom", []), *values["envFrom"]]
        container["volumeMounts"] += missing(values["volumeMounts"], container["volumeMounts"], "mountPath")
        if patch.resources is not None:
            overlay = {
                kind: {name: amount for name, amount in amounts.items() if name not in fixed}
                for kind, amounts in resources(patch.resources).items()
            }
            container["resources"] = merge(container.get("resources", {}), overlay)
        if patch.resource_claims:
            claims = [{"name": claim.name} for claim in patch.resource_claims]
            before = container.get("resources", {})
            container["resources"] = {**before, "claims": [*before.get("claims", []), *claims]}
