"""Kueue's Workload of a stage: one pod set per role, with the requests and constraints of the pods that will run.

Kueue reads from a pod only what decides about quota and flavors, so the pod sets have nothing else. `capped` limits
Deployments to the admitted number of pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rstar2_operator import names
from rstar2_operator.builders.manifest import Manifest
from rstar2_operator.builders.pod import BuildContext
from rstar2_operator.decide.kueue import Placement, priority_class, request
from rstar2_train.api.stages import Stage

_OF_POD = (
    "nodeSelector",
    "tolerations",
    "affinity",
    "priorityClassName",
    "runtimeClassName",
    "restartPolicy",
    "resourceClaims",
)
"""Fields of a pod, besides its containers' resources, that Kueue reads."""


def workload(context: BuildContext, name: str, stage: Stage, bodies: Iterable[Manifest]) -> Manifest:
    """Return the Workload of a stage. `bodies`: the objects of the stage; those without pods are skipped."""
    pod_sets = [_pod_set(body) for body in bodies if "template" in body.get("spec", {})]
    spec: Manifest = {"queueName": context.job.spec.queue_name, "podSets": pod_sets}
    kind, class_name = priority_class(context.job)
    in_queue = kind == "WorkloadPriorityClass"
    if class_name and (in_queue or context.priority is not None):
        # The API server rejects a reference without a value: the WorkloadPriorityClass does not exist.
        spec |= {} if context.priority is None else {"priority": context.priority}
        group = names.KUEUE_API.partition("/")[0] if in_queue else "scheduling.k8s.io"
        spec["priorityClassRef"] = {"group": group, "kind": kind, "name": class_name}
    return {
        "apiVersion": names.KUEUE_API,
        "kind": "Workload",
        "metadata": {
            "name": name,
            "labels": {**context.labels("workload"), names.STAGE_LABEL: stage.name},
            "annotations": {names.QUOTA: request(context.job, stage)},
        },
        "spec": spec,
    }


def capped(body: Manifest, placements: Mapping[str, Placement]) -> Manifest:
    """Return a Deployment with at most the admitted number of pods, other objects unchanged."""
    placement = placements.get(body["metadata"].get("labels", {}).get(names.ROLE_LABEL, ""))
    if placement is None or body["kind"] != "Deployment":
        return body
    return {**body, "spec": {**body["spec"], "replicas": min(body["spec"]["replicas"], placement.count)}}


def _pod_set(body: Manifest) -> Manifest:
    spec = body["spec"]
    pod: dict[str, Any] = spec["template"]["spec"]
    containers = [_only(("name", "image", "resources"), container) for container in pod["containers"]]
    return {
        "name": body["metadata"]["labels"][names.ROLE_LABEL],
        "count": spec.get("parallelism", spec.get("replicas", 1)),
        "template": {"spec": {"containers": containers, **_only(_OF_POD, pod)}},
    }


def _only(fields: Iterable[str], body: Manifest) -> Manifest:
    return {field: body[field] for field in fields if field in body}
