"""Subsets of Kubernetes types, as far as a job may use them: variables, volumes, tolerations, affinity.

Volumes only of the kinds that restricted Pod Security admits and that hold no account token: so runtimePatches, which
are made of these, need no embedded PodTemplate, and the CRD stays small.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from rstar2_train.api.base import (
    FOLDER,
    LABEL_KEY,
    LABEL_VALUE,
    RELATIVE,
    VARIABLE,
    ApiModel,
    Name,
    ObjectName,
    Quantity,
    keys,
)

Key = Annotated[str, StringConstraints(pattern=LABEL_KEY, max_length=317)]
"""A label key with its prefix."""
LabelValue = Annotated[str, StringConstraints(pattern=LABEL_VALUE, max_length=63)]
Labels = Annotated[dict[str, LabelValue], Field(max_length=16), keys(LABEL_KEY)]
"""Label key -> value."""


class EnvVar(ApiModel):
    """One environment variable."""

    name: Annotated[str, StringConstraints(pattern=VARIABLE, max_length=128)]
    """Its name; not the operator's own: RSTAR2_*, POD_*, RAY_*, KUBERNETES_*, HOME, HOSTNAME, REDIS_PASSWORD, ..."""
    value: Annotated[str, StringConstraints(max_length=4096)] = ""
    """Its value."""


class KeyToPath(ApiModel):
    """One key of a ConfigMap or Secret as a file."""

    key: Annotated[str, StringConstraints(max_length=253)]
    """The key."""
    path: Annotated[str, StringConstraints(pattern=RELATIVE, max_length=253)]
    """The file, relative to the volume."""


class ClaimVolume(ApiModel):
    """A PersistentVolumeClaim of the job's namespace."""

    claim_name: ObjectName
    """Its name."""
    read_only: bool = False
    """Mount it read-only everywhere."""


class ConfigMapVolume(ApiModel):
    """A ConfigMap as files."""

    name: ObjectName
    """Its name."""
    items: Annotated[list[KeyToPath], Field(max_length=32)] = []
    """Only these keys; default: all."""


class SecretVolume(ApiModel):
    """A Secret as files."""

    secret_name: ObjectName
    """Its name."""
    items: Annotated[list[KeyToPath], Field(max_length=32)] = []
    """Only these keys; default: all."""


class EmptyDirVolume(ApiModel):
    """Scratch space that goes with the pod."""

    medium: Literal["", "Memory"] = ""
    """Memory: a tmpfs, which counts as the pod's memory."""
    size_limit: Quantity | None = None
    """The pod is evicted when it writes more."""


class Volume(ApiModel):
    """A pod volume: exactly one of persistentVolumeClaim, configMap, secret, emptyDir."""

    name: Name
    """Unique in the patch; volumeMounts refer to it."""
    persistent_volume_claim: ClaimVolume | None = None
    """A claim of the job's namespace."""
    config_map: ConfigMapVolume | None = None
    """A ConfigMap as files."""
    secret: SecretVolume | None = None
    """A Secret as files."""
    empty_dir: EmptyDirVolume | None = None
    """Scratch space."""


class VolumeMount(ApiModel):
    """A mount of one of the patch's own volumes into every container of the role."""

    name: Name
    """The volume."""
    mount_path: Annotated[str, StringConstraints(pattern=FOLDER, max_length=512)]
    """Where; not where the operator or the kernel has mounts: /etc/rstar2, /state, /pvc, /tmp itself, /dev, ..."""
    sub_path: Annotated[str, StringConstraints(pattern=RELATIVE, max_length=512)] | None = None
    """A folder or file inside the volume in place of all of it."""
    read_only: bool = False
    """Mount it read-only."""


class Toleration(ApiModel):
    """A taint that the pods put up with."""

    key: Key | None = None
    """Its key; none with operator Exists: every taint."""
    operator: Literal["Exists", "Equal"] | None = None
    """Equal (the default) compares the value too."""
    value: LabelValue | None = None
    """Its value."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Its effect; default: all."""
    toleration_seconds: Annotated[int, Field(ge=0, le=31_536_000)] | None = None
    """With NoExecute: how long."""


class Requirement(ApiModel):
    """A condition on one label."""

    key: Key
    """The label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    """How its value is compared."""
    values: Annotated[list[LabelValue], Field(max_length=32)] = []
    """With what."""


class NodeTerm(ApiModel):
    """Conditions on a node's labels; all must hold."""

    match_expressions: Annotated[list[Requirement], Field(min_length=1, max_length=16)]
    """The conditions."""


class NodeSelectorTerms(ApiModel):
    """Nodes of which one term or another holds."""

    node_selector_terms: Annotated[list[NodeTerm], Field(min_length=1, max_length=8)]
    """One of these must hold."""


class PreferredNodes(ApiModel):
    """A wish about nodes."""

    weight: Annotated[int, Field(ge=1, le=100)]
    """Against other wishes."""
    preference: NodeTerm
    """The nodes."""


class NodeAffinity(ApiModel):
    """Which nodes the pods may and should run on."""

    required_during_scheduling_ignored_during_execution: NodeSelectorTerms | None = None
    """Nodes they may run on."""
    preferred_during_scheduling_ignored_during_execution: Annotated[list[PreferredNodes], Field(max_length=8)] = []
    """Nodes they should run on."""


class PodSelector(ApiModel):
    """Pods by their labels."""

    match_labels: Labels = {}
    """Labels that they have."""


class PodTerm(ApiModel):
    """Pods, and what counts as near them."""

    label_selector: PodSelector
    """The pods, in the job's namespace."""
    topology_key: Key
    """Node label; two nodes with the same value of it are near one another."""


class PreferredPods(ApiModel):
    """A wish about nearness."""

    weight: Annotated[int, Field(ge=1, le=100)]
    """Against other wishes."""
    pod_affinity_term: PodTerm
    """The pods."""


class PodAffinity(ApiModel):
    """Which pods these must and should be near (or, in podAntiAffinity, away from)."""

    required_during_scheduling_ignored_during_execution: Annotated[list[PodTerm], Field(max_length=8)] = []
    """What must hold."""
    preferred_during_scheduling_ignored_during_execution: Annotated[list[PreferredPods], Field(max_length=8)] = []
    """What should hold."""


class Affinity(ApiModel):
    """Where the pods run, as in a pod's spec.affinity."""

    node_affinity: NodeAffinity | None = None
    """Nodes."""
    pod_affinity: PodAffinity | None = None
    """Pods to be near."""
    pod_anti_affinity: PodAffinity | None = None
    """Pods to be away from."""
