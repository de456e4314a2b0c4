"""Whether the objects of other owners exist that the pods of a job name: for all stages, when the job is new.

A stage may start days after the job. A missing Secret, ServiceAccount, RuntimeClass, claim, ConfigMap, PriorityClass,
ResourceClaim or ResourceClaimTemplate of it is a problem of the job from its first round. The job starts nevertheless:
the object may be created later. The names are those of the built pods, so no field is left out. The operator may not
read Secrets, and asks by a dry run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kubernetes.aio.client.exceptions import ApiException

from rstar2_operator import names
from rstar2_operator.apply import is_missing
from rstar2_operator.builders.manifest import Manifest
from rstar2_operator.builders.objects import objects
from rstar2_operator.builders.pod import BuildContext
from rstar2_operator.client import UNREACHABLE, KubeClient
from rstar2_operator.decide.advice import REFERENCE_NOT_FOUND
from rstar2_operator.decide.decision import Decision, StageAttempt
from rstar2_operator.decide.diagnostics import Diagnosis
from rstar2_operator.decide.restarts import NO_RESTARTS
from rstar2_operator.observed import ObservedJob, condition, labels

RETRY_SECONDS = 30.0
"""Time between two requests about a missing object."""
CLUSTER_WIDE = frozenset({"RuntimeClass", "PriorityClass"})
_VOLUMES = {"secret": ("Secret", "secretName"), "configMap": ("ConfigMap", "name"),
            "persistentVolumeClaim": ("PersistentVolumeClaim", "claimName")}  # fmt: skip
_CLAIMS = {"resourceClaimTemplateName": "ResourceClaimTemplate", "resourceClaimName": "ResourceClaim"}
_SOURCES = {
    "secretKeyRef": "Secret",
    "configMapKeyRef": "ConfigMap",
    "secretRef": "Secret",
    "configMapRef": "ConfigMap",
}


@dataclass(frozen=True, slots=True)
class Reference:
    """One object of another owner."""

    kind: str
    name: str
    role: str
    """First role whose pods name it."""
    stage: str
    """First stage with such pods; empty: preparation."""


def references(context: BuildContext) -> tuple[Reference, ...]:
    """Return the objects of other owners that the pods of all stages name, in the order of their first use."""
    result: dict[tuple[str, str], Reference] = {}
    own = {("Secret", names.secrets(context.name))}
    for stage in ("", *(stage.name for stage in context.job.spec.stages)):
        bodies = objects(context, _decision(context, stage), has_secret=False)
        own |= {(body["kind"], body["metadata"]["name"]) for body in bodies}
        for body in bodies:
            template = body.get("spec", {}).get("template")
            role = labels(template).get(names.ROLE_LABEL, "") if template else ""
            for key in _named(template["spec"]) if template else ():
                result.setdefault(key, Reference(*key, role, stage))
    return tuple(reference for key, reference in result.items() if key not in own)


def _decision(context: BuildContext, stage: str) -> Decision:
    """Return a decision with all pods of a stage, or with those for preparation and report."""
    if not stage:
        return Decision(None, NO_RESTARTS, phase="Preparing", prepare=True, report=True, ending="completed")
    serving = context.job.stage(stage).needs_engines
    return Decision(stage, NO_RESTARTS, phase="Running", serving=serving, attempt=StageAttempt(stage, 1))


def _named(spec: Manifest) -> Iterator[tuple[str, str]]:
    """Yield (kind, name) of the objects without which a pod does not start."""
    for field, kind in (("serviceAccountName", "ServiceAccount"), ("runtimeClassName", "RuntimeClass"),
                        ("priorityClassName", "PriorityClass")):  # fmt: skip
        if spec.get(field):
            yield kind, spec[field]
    for secret in spec.get("imagePullSecrets", ()):
        yield "Secret", secret["name"]
    for claim in spec.get("resourceClaims", ()):
        for field, kind in _CLAIMS.items():
            if claim.get(field):
                yield kind, claim[field]
    for volume in spec.get("volumes", ()):
        for field, (kind, member) in _VOLUMES.items():
            if (source := volume.get(field)) is not None and not source.get("optional"):
                yield kind, source[member]
    for container in spec["containers"]:
        variables = [variable.get("valueFrom") or {} for variable in container.get("env", ())]
        for source in (*variables, *container.get("envFrom", ())):
            for field, kind in _SOURCES.items():
                if (target := source.get(field)) is not None and not target.get("optional"):
                    yield kind, target["name"]


class ReferenceReader:
    """The requests about references, of all jobs."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._existing: set[tuple[str, str]] = set()
        """Kind and name of cluster-wide objects that exist."""

    async def missing(self, namespace: str, wanted: Sequence[Reference]) -> list[Reference]:
        """Return the references whose objects do not exist."""
        return [reference for reference in wanted if await self._is_missing(namespace, reference)]

    async def _is_missing(self, namespace: str, reference: Reference) -> bool:
        """Return whether an object does not exist; False if the operator may not ask, or cannot now."""
        kind, name = reference.kind, reference.name
        if (kind, name) in self._existing:
            return False
        try:
            if kind == "Secret":
                metadata = {"name": name, "namespace": namespace}
                return await is_missing(self._client, {"apiVersion": "v1", "kind": kind, "metadata": metadata})
            await self._client.read(kind, "" if kind in CLUSTER_WIDE else namespace, name)
        except (ApiException, *UNREACHABLE) as error:
            return _is_no_object(error)
        if kind in CLUSTER_WIDE:
            self._existing.add((kind, name))
        return False


def _is_no_object(error: Exception) -> bool:
    """Return whether an API server has no object of that name; False if it does not define the kind."""
    # About a kind that it does not define it answers 404 too, but in plain text.
    return isinstance(error, ApiException) and error.status == 404 and (error.body or "").lstrip().startswith("{")


class MissingReferences:
    """The missing objects of one job, as far as the operator knows them."""

    def __init__(self) -> None:
        self._generation: object = None
        self._ask_at = math.inf
        """Monotonic time of the next requests."""
        self._missing: list[Reference] = []

    def due_in(self) -> float | None:
        """Return the seconds until the next requests; None if there are none."""
        return None if self._ask_at == math.inf else max(0.0, self._ask_at - time.monotonic())

    def stop(self) -> None:
        """Ask no more until the spec changes: the job needs no pods."""
        self._ask_at = math.inf

    async def problems(
        self, reader: ReferenceReader, wanted: Callable[[], Sequence[Reference]], observed: ObservedJob
    ) -> list[Diagnosis]:
        """Return the problems of a job. Asks about a new spec once, and again while an object is missing."""
        metadata = observed.job["metadata"]
        generation = metadata.get("generation")
        if generation != self._generation:
            # A new process trusts the status of a running job: requests for 1,000 jobs would delay their first rounds.
            is_checked = self._generation is None and _is_checked(observed)
            self._generation, self._missing = generation, []
            self._ask_at = math.inf if is_checked else 0.0
        if time.monotonic() >= self._ask_at:
            self._missing = await reader.missing(metadata["namespace"], wanted())
            self._ask_at = time.monotonic() + RETRY_SECONDS if self._missing else math.inf
        return [_problem(reference) for reference in self._missing]


def _is_checked(observed: ObservedJob) -> bool:
    """Return whether the last status of a running job is about this spec, and names no missing object."""
    status, degraded = observed.status, condition(observed.job, "Degraded") or {}
    is_current = status.get("observedGeneration") == observed.job["metadata"].get("generation")
    return bool(is_current and status.get("phase") == "Running" and REFERENCE_NOT_FOUND not in str(degraded))


def _problem(reference: Reference) -> Diagnosis:
    when = f"stage {reference.stage}" if reference.stage else "the preparation"
    message = f"no {reference.kind} has this name; pods of role {reference.role} need it from {when} on"
    return Diagnosis(reference.role, f"{reference.kind}/{reference.name}", REFERENCE_NOT_FOUND, message)
